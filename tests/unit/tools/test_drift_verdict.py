"""Records that add up, and verdicts: on made-up tables, on the paper's, and on heads that do and do not grow."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from rich.console import Console
from test_drift_head import pair
from test_reference import BASE, H
from truth.reference import Switches

from sglang_eagle31.server.probe.record import Moments, Record
from sglang_eagle31.tools.drift import report
from sglang_eagle31.tools.drift.offline import Settings, probe_states
from sglang_eagle31.tools.drift.picture import draw
from sglang_eagle31.tools.drift.served import collect
from sglang_eagle31.tools.drift.verdict import judge


def table(
    rms: list[float], sink: list[float], drafted: list[float], entropy: float = 2.0, noise: float = 0.0
) -> Record:
    """A record of 10 rows a depth; the first of each list is depth 0."""
    record = Record()
    for depth, (size, s, d) in enumerate(zip(rms, sink, drafted, strict=True)):
        wave = [1 + noise * (-1) ** row for row in range(10)]
        record.add(depth, {"rms_fed": [size * w for w in wave], "entropy": [entropy] * 10, "cosine": [0.5] * 10})
        record.add(depth, {"mass_sink": [s] * 10, "mass_drafted": [d] * 10, "mass_prompt": [1 - s - d] * 10})
        record.add(depth, {"mass_answer": [0.0] * 10})
    record.located(0)
    return record


def line(first: float, last: float) -> list[float]:
    return [first + (last - first) * k / 7 for k in range(8)]


PAPER = {
    "pre-norm": (table([12.46, *line(3.92, 14.02)], [0.5, *line(0.46, 0.08)], [0, *line(0.14, 0.31)]), "both"),
    "gated": (table([9.0, *line(8.41, 39.07)], [0.04, *line(0.03, 0.02)], [0, *line(0.29, 0.32)]), "magnitude"),
    "post-norm": (table([1.3, *line(1.21, 1.20)], [0.2, *line(0.11, 0.10)], [0, *line(0.50, 0.53)]), "none"),
    "both": (table([1.0, *line(0.87, 0.88)], [0.0, *line(0.0, 0.0)], [0, *line(0.50, 0.51)], 0.63), "none"),
}
"""The four drafters of the paper's Table 2."""


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_drafters(name: str) -> None:
    record, drift = PAPER[name]
    verdict = judge(record)
    assert verdict.drift == drift and verdict.steps == 8
    assert (verdict.collapsed == tuple(range(1, 9))) == (name == "both")
    assert (verdict.magnitude == "grows") == (name in ("pre-norm", "gated"))


def test_growth_is_stated_over_eight_steps() -> None:
    short = judge(table([1.0, *(1.2**k for k in range(4))], [0.1] * 5, [0.0, *[0.2] * 4]))
    growth = short.trends["rms_fed"]
    assert growth.change == pytest.approx(1.2**7) and growth.low == pytest.approx(growth.high)
    assert short.step_1_to_last["rms_fed"] == pytest.approx((1.0, 1.2**3))
    noisy = judge(table([1.0, *(1.2**k for k in range(4))], [0.1] * 5, [0.0, *[0.2] * 4], noise=0.1)).trends["rms_fed"]
    assert noisy.low < noisy.change < noisy.high


def test_an_mtp_head_drops_at_the_entry_and_stays() -> None:
    """Paper Figure 7: sink 0.11 in prefill, 0.045 from step 1 on."""
    verdict = judge(table([1.0] * 9, [0.11, *[0.045] * 8], [0.0, *[0.42] * 8]))
    assert (verdict.entry, verdict.drift) == ("drops", "none")
    assert verdict.prefill_to_step_1["mass_sink"] == pytest.approx((0.11, 0.045))
    assert judge(table([1.0] * 9, [0.11, *[0.10] * 8], [0.0, *[0.4] * 8])).entry == "holds"
    assert judge(table([1.0] * 9, [0.01, *[0.0] * 8], [0.0, *[0.4] * 8])).entry == "unknown"


def test_attention_that_depends_on_distance_alone_does_not_drift() -> None:
    """The drafted share grows from 0.4 to 0.6, and so does what a prefill row gives to its last keys."""
    drafted = [0.0, *line(0.4, 0.6)]
    local, drifting = table([1.0] * 9, [0.1] * 9, drafted), table([1.0] * 9, [0.1] * 9, drafted)
    for record, last in ((local, 0.6), (drifting, 0.45)):
        record.add(0, {f"near_{d}": [share] * 10 for d, share in enumerate(line(0.4, last), start=1)})
    assert judge(local).attention == "flat" and judge(local).trends["excess"].change == pytest.approx(0.0)
    assert judge(drifting).attention == "leaves" and judge(drifting).trends["excess"].change == pytest.approx(0.15)


def test_an_excess_below_zero_is_within_what_distance_explains() -> None:
    record = table([1.0] * 9, [0.1] * 9, [0.0, *line(0.4, 0.55)])
    record.add(0, {f"near_{d}": [0.6] * 10 for d in range(1, 9)})
    verdict = judge(record)
    assert verdict.trends["excess"].change == pytest.approx(0.15) and verdict.attention == "flat"


def test_a_change_within_its_error_is_unclear() -> None:
    """Ten rows that differ by 80 % cannot show a growth of 1.2x."""
    sizes = [1.0, *line(1.0, 1.2)]
    assert judge(table(sizes, [0.1] * 9, [0.2] * 9)).drift == "magnitude"
    noisy = judge(table(sizes, [0.1] * 9, [0.2] * 9, noise=0.8))
    assert (noisy.magnitude, noisy.drift) == ("unclear", "unclear") and "too few rows" in noisy.text[0]


@pytest.mark.parametrize("depths", [0, 1, 2])
def test_one_step_has_no_slope(depths: int) -> None:
    verdict = judge(table([1.0] * depths, [0.1] * depths, [0.2] * depths))
    assert (verdict.magnitude, verdict.attention, verdict.drift) == ("unknown",) * 3
    assert "slopes need two" in verdict.text[-1]


def synthetic(changes: dict[str, str]) -> Record:
    """Eight steps of a random head; what each layer adds to the state makes it grow when it is fed back as it is."""
    switches: Switches = dataclasses.replace(BASE, **changes)
    ours, _ = pair(switches)
    generator = torch.Generator().manual_seed(5)
    captured = torch.randn(40, 3 * 20, generator=generator)
    ids = torch.randint(BASE.vocab_size, (41,), generator=generator).tolist()
    return probe_states(ours, captured, ids, 10, list(range(12, 40, 3)), Settings(steps=8))


def test_a_head_that_feeds_its_residual_back_grows_and_a_normed_one_is_flat() -> None:
    grows, flat = synthetic({"feedback": "pre"}), synthetic({"feedback": "post"})
    verdict = judge(grows)
    assert verdict.magnitude == "grows" and verdict.drift in ("magnitude", "both")
    assert verdict.trends["rms_fed"].low > 1.1
    other = judge(flat)
    assert other.magnitude == "flat"
    gain = pair(BASE)[1].weights["norm.weight"]
    assert flat.mean(8, "rms_fed") == pytest.approx(float(gain.norm()) / math.sqrt(H), rel=0.3)


def test_records_add_up_and_travel() -> None:
    one, other = synthetic({"feedback": "pre"}), synthetic({"feedback": "post"})
    total = Record.from_json(json.loads(json.dumps(one.to_json())))
    total.merge(other)
    assert total.rows(3) == one.rows(3) + other.rows(3)
    mean = (one.mean(3, "entropy") * one.rows(3) + other.mean(3, "entropy") * other.rows(3)) / total.rows(3)  # type: ignore[operator]
    assert total.mean(3, "entropy") == pytest.approx(mean)
    assert sum(total.sinks.values()) == 2
    with pytest.raises(ValueError, match=r"schema 0.*fix:"):
        Record.from_json({"schema": 0})


def test_moments_leave_out_what_is_not_finite() -> None:
    moments = Moments()
    moments.add([1.0, math.nan, 3.0, math.inf])
    assert (moments.count, moments.mean, moments.error) == (2, 2.0, pytest.approx(1.0))
    assert Moments().mean is None and Moments(1, 1.0, 1.0).error is None


def test_table_picture_and_json(tmp_path: object) -> None:
    record = synthetic({"feedback": "pre"})
    verdict = judge(record)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report.render("a head", record, verdict))
    text = console.export_text()
    assert "0 (prefill)" in text and "drift: " in text and "RMS of the target's states by boundary 2:" in text
    assert all(line in " ".join(text.split()) for line in verdict.text)
    path = tmp_path / "drift.png"  # type: ignore[operator]
    draw(path, "a head", record, verdict)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000
    made = json.loads(json.dumps(report.result(record, verdict, [record], {"head": "h"})))
    assert made["verdict"]["thresholds"]["growth"] == 1.1 and made["head"] == "h"
    assert made["per_prompt"][0]["3"]["rms_fed"] == pytest.approx(record.mean(3, "rms_fed"))
    assert Record.from_json(made["record"]).rows(8) == record.rows(8)


def test_the_record_of_a_server_is_that_of_all_its_schedulers() -> None:
    record = synthetic({"feedback": "pre"})
    probe = {"rate": 1.0, "rounds": 10, "heads": "all", "layers_not_seen": 0, "record": record.to_json()}
    info = {"internal_states": [{"eagle31": {"drift": probe}}] * 2, "speculative_algorithm": "EAGLE3"}
    total, facts = collect(info, "http://x")
    assert total.rows(1) == 2 * record.rows(1) and facts["rounds"] == 20 and facts["variant"] == "EAGLE3"
    with pytest.raises(ValueError, match=r"no drift probe; fix: .*--eagle31-drift-sample"):
        collect({"internal_states": [{}]}, "http://x")
    empty = {"internal_states": [{"eagle31": {"drift": {**probe, "record": Record().to_json()}}}]}
    with pytest.raises(ValueError, match=r"no drafted row yet; fix:"):
        collect(empty, "http://x")
