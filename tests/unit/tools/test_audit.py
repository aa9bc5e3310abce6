"""`audit` on small heads: verdict, exit status, JSON, what it prints, and that it loads no weights."""

from __future__ import annotations

import json
import re
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from truth import producers

from sglang_eagle31.head.target import read_target
from sglang_eagle31.tools.audit.report import audit
from sglang_eagle31.tools.cli import main

SHAPE = producers.Shape()
FIELDS = {"verdict", "producer", "reasons", "spec", "elsewhere", "notes", "head", "target", "evidence", "variant"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return producers.write_target(tmp_path / "target")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["audit", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("variant", "status", "verdict"),
    [
        ("torchspec31", 0, "exact"),
        ("specforge31", 2, "needs-override"),
        ("modelopt_megatron", 3, "refused"),
        ("p_eagle_aws", 3, "refused"),
        ("medusa", 3, "refused"),
    ],
)
def test_the_exit_status_is_the_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: Path, variant: str, status: int, verdict: str
) -> None:
    head = producers.write(tmp_path / "head", variant, SHAPE)
    found, report = run(capsys, str(head), "--target", str(target))
    assert (found, report["verdict"]) == (status, verdict)
    assert set(report) == FIELDS
    assert bool(report["reasons"]) == (status != 0)
    assert set(report["elsewhere"]) == {"sglang", "vllm"}
    assert all(set(field) == {"value", "source"} and field["source"] for field in report["spec"].values())


def test_an_override_settles_it(capsys: pytest.CaptureFixture[str], tmp_path: Path, target: Path) -> None:
    head = producers.write(tmp_path / "head", "specforge31", SHAPE)
    status, report = run(capsys, str(head), "--target", str(target), "--override", "feedback=post")
    assert status == 0
    assert report["spec"]["feedback"] == {"value": "post", "source": "--eagle31-override feedback=post"}
    assert report["elsewhere"]["sglang"]["outcome"] == "exact"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "nowhere"),
        (["HEAD", "--target", "nowhere"], "nowhere"),
        (["HEAD", "--target", "HEAD"], "num_hidden_layers"),
        (["HEAD", "--override", "feedback"], "expected KEY=VALUE"),
    ],
)
def test_an_error_is_status_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], named: str
) -> None:
    head = producers.write(tmp_path / "head", "torchspec", SHAPE, config={"num_hidden_layers": ...})
    assert main(["audit", *[str(head) if item == "HEAD" else item for item in arguments]]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and named in printed.err and "fix:" in printed.err


@pytest.mark.parametrize("arguments", [[], ["HEAD", "--bad"], ["HEAD", "more"], ["HEAD", "--target"]])
def test_a_mistake_in_the_arguments_is_not_needs_override(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["audit", *arguments])
    assert stop.value.code == 1 and "usage: python -m sglang_eagle31 audit" in capsys.readouterr().err


def test_the_fix_of_a_reason_can_be_pasted(capsys: pytest.CaptureFixture[str], tmp_path: Path, target: Path) -> None:
    head = producers.write(tmp_path / "head", "specforge31", SHAPE)
    _, report = run(capsys, str(head), "--target", str(target))
    fix = re.search(r"--eagle31-override feedback=post", "\n".join(report["reasons"]))
    assert fix and main(["audit", str(head), "--target", str(target), *fix[0].split()]) == 0


def test_what_people_see(capsys: pytest.CaptureFixture[str], tmp_path: Path, target: Path) -> None:
    head = producers.write(tmp_path / "head", "nvidia_post_norm", SHAPE)
    assert main(["audit", str(head), "--target", str(target)]) == 0
    printed = capsys.readouterr().out
    for part in ("exact", "NVIDIA", "eagle_config.return_hidden_post_norm", "sglang 0.5.23 would: wrong"):
        assert part in printed
    assert "feedback: runs 'pre', trained with 'post'" in printed


def test_without_a_target_the_head_speaks_for_it(tmp_path: Path) -> None:
    report = audit(str(producers.write(tmp_path / "stated", "torchspec31", SHAPE)))
    assert report.verdict == "exact" and report.target is None
    assert not any("target config" in source for _, source in report.spec.values())
    assert any("no target was given" in note for note in report.notes)
    report = audit(str(producers.write(tmp_path / "default", "safeailab", SHAPE)))
    assert report.verdict == "needs-override"
    assert "depends on the target's N layers" in report.reasons[0] and "--target" in report.reasons[0]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": 128}, "128"),
        ({"vocab_size": 300}, "300"),
        ({"num_hidden_layers": 5}, "outside 0..5"),
    ],
)
def test_the_head_of_another_target(tmp_path: Path, changes: dict[str, int], named: str) -> None:
    boundaries = (2, 5, 6) if "num_hidden_layers" in changes else SHAPE.boundaries
    head = producers.write(tmp_path / "head", "torchspec31", producers.Shape(boundaries=boundaries))
    report = audit(str(head), str(producers.write_target(tmp_path / "target", **changes)))
    assert report.verdict == "refused"
    assert any(named in reason and "fix:" in reason for reason in report.reasons)


def test_a_long_target_is_noted(tmp_path: Path) -> None:
    head = producers.write(tmp_path / "head", "torchspec31", SHAPE)
    report = audit(str(head), str(producers.write_target(tmp_path / "target", max_position_embeddings=100_000)))
    assert report.verdict == "exact"
    assert any("--context-length" in note and "100000" in note for note in report.notes)


def test_a_multimodal_target_s_text_config(tmp_path: Path) -> None:
    folder = producers.write_target(tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    wrapped = {"architectures": config.pop("architectures"), "text_config": config}
    (folder / "config.json").write_text(json.dumps(wrapped))
    assert (read_target(str(folder)).num_layers, read_target(str(folder)).vocab_size) == (8, 512)


def test_a_tokenizer_that_is_not_the_target_s(tmp_path: Path, target: Path) -> None:
    head = producers.write(tmp_path / "head", "torchspec31", SHAPE)
    for folder, ids in ((head, {"a": 0, "b": 1}), (target, {"a": 0, "b": 2})):
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": ids}, "added_tokens": []}))
    report = audit(str(head), str(target))
    assert report.verdict == "refused" and "'b' 1 instead of 2" in report.reasons[0]


def test_a_garbage_embedding_is_reported(tmp_path: Path, target: Path) -> None:
    head = producers.write(tmp_path / "head", "torchspec31", SHAPE)
    embed = torch.randn(SHAPE.vocab, SHAPE.hidden, generator=torch.Generator().manual_seed(5))
    save_file({"model.embed_tokens.weight": embed}, target / "model.safetensors")
    report = audit(str(head), str(target))
    assert report.verdict == "exact"
    assert any("unrelated to the target's embedding" in note and "own_embedding=false" in note for note in report.notes)
    shared = audit(str(head), str(target), {"own_embedding": "false"})
    assert shared.spec["own_embedding"][0] is False and not any("unrelated" in note for note in shared.notes)


def write_headers(folder: Path, layers: int, hidden: int, vocab: int, inner: int) -> None:
    """The weight files of a large target: true headers, and holes on the disk where the weights would be."""
    shards: dict[str, str] = {}
    for number in range(layers):
        tensors = {
            f"model.layers.{number}.{name}.weight": shape
            for name, shape in (
                ("self_attn.q_proj", [hidden, hidden]),
                ("self_attn.o_proj", [hidden, hidden]),
                ("mlp.gate_proj", [inner, hidden]),
                ("mlp.up_proj", [inner, hidden]),
                ("mlp.down_proj", [hidden, inner]),
            )
        }
        if number == 0:
            tensors["model.embed_tokens.weight"] = [vocab, hidden]
        header, end = {}, 0
        for name, (rows, columns) in tensors.items():
            header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [end, end + 2 * rows * columns]}
            end += 2 * rows * columns
        raw = json.dumps(header).encode()
        file = folder / f"model-{number:05d}.safetensors"
        with file.open("wb") as out:
            out.write(len(raw).to_bytes(8, "little") + raw)
            out.truncate(8 + len(raw) + end)
        shards |= dict.fromkeys(tensors, file.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))


def test_a_70b_target_takes_no_more_time_or_memory(tmp_path: Path) -> None:
    shape = producers.Shape(target_hidden=8192, vocab=128256, target_layers=80, boundaries=(2, 40, 77), inner=64)
    head = producers.write(
        tmp_path / "head", "torchspec", shape, weights=producers.head("torchspec", shape, own_embedding=True)
    )
    target = producers.write_target(tmp_path / "target", num_hidden_layers=80, hidden_size=8192, vocab_size=128256)
    write_headers(target, 80, 8192, 128256, 28672)
    size = sum(file.stat().st_size for file in target.glob("*.safetensors"))
    assert size > 130e9  # bytes that are not there: the files are sparse
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    report = audit(str(head), str(target))
    spent, grown = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert report.verdict == "exact"
    assert spent < 20  # CPU seconds, far above the half second that it takes: it must not read the weights
    assert grown < 1_000_000  # KiB
