"""``verify`` on real servers: answers with and without speculation, and a target that is not quite the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import models
import requests
from conftest import Models, speculate

from sglang_eagle31.tools.cli import main
from sglang_eagle31.tools.shared.server_process import Server

TOKENS = 40


def prompt(length: int, seed: int) -> list[int]:
    """Random tokens, none of them special."""
    generator = random.Random(seed)
    return [generator.randrange(3, models.VOCAB) for _ in range(length)]


def requests_file(folder: Path) -> Path:
    """Greedy requests: several answers, an early end, two chunks, more than logits that decides; and a sampled one."""
    sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    bodies = [{"input_ids": prompt(20 + 7 * i, i), "sampling_params": sampling} for i in range(6)]
    bodies.append({"input_ids": prompt(30, 9), "sampling_params": {**sampling, "n": 2}})
    bodies.append({"input_ids": prompt(30, 10), "sampling_params": {**sampling, "stop_token_ids": list(range(3, 90))}})
    bodies.append({"input_ids": prompt(30, 11), "sampling_params": {**sampling, "logit_bias": {"77": 4.0}}})
    bodies.append({"input_ids": prompt(250, 13), "sampling_params": sampling})
    bodies.append({"input_ids": prompt(30, 14), "sampling_params": {**sampling, "frequency_penalty": 0.5}})
    bodies.append({"input_ids": prompt(30, 12), "sampling_params": {**sampling, "temperature": 1.0}})
    file = folder / "requests.jsonl"
    file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return file


def verify(file: Path, speculative: Server, baseline: Server, out: Path) -> tuple[int, dict[str, Any]]:
    arguments = ["verify", "--requests", str(file), "--url", speculative.url, "--baseline", baseline.url]
    status = main([*arguments, "--concurrency", "3", "--out", str(out)])
    record: dict[str, Any] = json.loads((out / "identity.json").read_text())
    return status, record


def test_identical_and_not(start: Any, tiny: Models, tmp_path: Path) -> None:
    file = requests_file(tmp_path)
    other = models.write_target(tmp_path / "other", noise=0.4)
    with start("verify-spec", *speculate("EAGLE31", tiny.eagle31, 4, 2, 8)) as speculative:
        with start("verify-plain", "--disable-overlap-schedule") as plain:
            status, record = verify(file, speculative, plain, tmp_path)
        assert (status, record["counts"]["same"], record["counts"]["sampled"]) == (0, 11, 1)
        assert record["tokens_compared"] >= 9 * TOKENS and record["speculative_steps"] > 50
        assert record["tokens_not_checked"] == {"frequency_penalty": TOKENS, "sampled": TOKENS}
        assert record["tokens_checked"] == record["tokens"] - 2 * TOKENS and record["tokens_differing"] == 0
        assert record["tie_bound"] == 0.0 and record["notes"] == []

        with start("verify-other", target=other) as doctored:
            status, record = verify(file, speculative, doctored, tmp_path)
            assert status == 1 and record["counts"]["tie"] == 0 and record["counts"]["different"] >= 3
            assert "model" in record["notes"][0] and record["tokens_differing"] > record["counts"]["different"]
            for entry in record["requests"]:
                if entry["outcome"] == "DIFFERENT":
                    check(entry, json.loads(file.read_text().splitlines()[entry["line"] - 1]), speculative, doctored)


def check(entry: dict[str, Any], body: dict[str, Any], speculative: Server, doctored: Server) -> None:
    """The position is the first at which the answers differ, and each server finds its own token the most probable."""
    answers = [ask(server, body, entry["choice"]) for server in (speculative, doctored)]
    ours, theirs = (answer[entry["position"]] for answer in answers)
    assert answers[0][: entry["position"]] == answers[1][: entry["position"]] and ours != theirs
    assert (entry["speculative_token"], entry["baseline_token"]) == (ours, theirs)
    told = entry["logprobs"]
    if "frequency_penalty" in body["sampling_params"]:
        return  # told without it
    if "logit_bias" not in body["sampling_params"]:
        assert told["speculative"]["best"] == told["speculative"]["speculative_token"]
        assert told["baseline"]["best"] == told["baseline"]["baseline_token"]
    assert told["speculative"]["speculative_token"] > told["speculative"]["baseline_token"]
    assert told["baseline"]["baseline_token"] > told["baseline"]["speculative_token"]


def ask(server: Server, body: dict[str, Any], choice: int) -> list[int]:
    answer = requests.post(f"{server.url}/generate", json=body, timeout=60).json()
    ids: list[int] = (answer[choice] if isinstance(answer, list) else answer)["output_ids"]
    return ids
