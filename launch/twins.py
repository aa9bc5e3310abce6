"""What the measured pairs of heads say together: the content of docs/results/pairs.json.

A figure over both seeds pools, for each prompt, the verify rounds of the seeds in which neither twin's answer loops;
intervals resample prompts (95 %, percentile bootstrap), both twins and all seeds with the same draw. Ratios are EAGLE
3.1 by its EAGLE-3 twin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sglang_eagle31.tools.robust.statistics import LEVEL, Array, Estimate, acceptance, length, ratio, resamples, table

ROOT = Path(__file__).resolve().parents[1]
STORE, RESULT = ROOT / "docs/results/pairs", ROOT / "docs/results/pairs.json"
TRIES = ROOT / "docs/results/tries.json"
"""Pairs served in other ways, by ``twins_at.py``."""
SHIPPED = ROOT / "launch/heads/smollm2-135m-eagle31/model.safetensors"
VARIANTS = ("eagle3", "eagle31")
TREE = (5, 4, 16)
"""Steps, topk, draft tokens."""
DEPTH = TREE[0]
SWITCHED = {"eagle3": "post", "eagle31": "pre"}
"""The feedback that a head was not trained with."""
STEPS = 8
"""Drafted steps of the probe."""
TEMPLATES = ("regular", "no_bos", "no_template", "no_bos_no_template")
"""The four template conditions of the attention-drift paper."""
Measured = dict[str, Any]


def folder_of(seed: int, variant: str) -> Path:
    """Where the measurements of a head are kept."""
    return STORE / f"seed{seed}" / variant


def seeds() -> list[int]:
    """Seeds whose twins are both measured."""
    found = [int(path.name.removeprefix("seed")) for path in STORE.glob("seed*")]
    return sorted(s for s in found if all((folder_of(s, v) / "head.json").exists() for v in VARIANTS))


@cache
def read(seed: int, variant: str, name: str) -> Measured:
    """One of head, drift, conditions, contexts."""
    loaded: Measured = json.loads((folder_of(seed, variant) / f"{name}.json").read_text())
    return loaded


def _conditions(seed: int, variant: str) -> dict[str, Measured]:
    """Measured conditions by name; ``regular`` is that of all prompts, not the one beside the contexts."""
    found: dict[str, Measured] = {}
    for name in ("conditions", "contexts"):
        for entry in read(seed, variant, name)["heads"][0]["conditions"]:
            found.setdefault(entry["condition"], entry)
    return found


def kept(entry: Measured) -> dict[int, list[int]]:
    """Histograms by prompt of the answers that count."""
    rows = [row for row in entry["per_prompt"] if sum(row["histogram"])]
    straight = [row for row in rows if not row["loops"]]
    return {row["prompt"]: row["histogram"] for row in straight or rows}


def pooled(condition: str, which: Sequence[int]) -> dict[str, Array]:
    """By variant, histograms ``[P, DEPTH + 1]`` of the same prompts, summed over the seeds ``which``."""
    total: dict[int, dict[str, Array]] = {}
    for seed in which:
        both = {variant: kept(_conditions(seed, variant)[condition]) for variant in VARIANTS}
        for prompt in both["eagle3"].keys() & both["eagle31"].keys():
            into = total.setdefault(prompt, {variant: np.zeros(DEPTH + 1) for variant in VARIANTS})
            for variant in VARIANTS:
                into[variant] += table([both[variant][prompt]], DEPTH)[0]
    return {v: np.array([total[p][v] for p in sorted(total)]).reshape(-1, DEPTH + 1) for v in VARIANTS}


def estimate(value: Estimate, digits: int = 3) -> Measured:
    """For JSON: ``value`` and ``ci95``, rounded; None where nothing was measured."""
    if value.value is None:
        return {"value": None, "ci95": None}
    ends = None if value.low is None or value.high is None else [round(value.low, digits), round(value.high, digits)]
    return {"value": round(value.value, digits), "ci95": ends}


def _condition(condition: str, which: Sequence[int]) -> Measured:
    """Everything about one condition: both variants, and their ratio over all seeds and for each."""
    rows = pooled(condition, which)
    entry: Measured = {"prompts": len(rows["eagle3"])}
    for variant in VARIANTS:
        found = acceptance(rows[variant], 0)
        entry[variant] = {
            "accept_length": estimate(found.length),
            "rounds": found.rounds,
            "reach": [estimate(e) for e in found.reach],
            "conditional": [estimate(e) for e in found.conditional],
        }
    entry["ratio"] = _ratio(rows)
    entry["by_seed"] = {str(seed): _ratio(pooled(condition, [seed])) for seed in which}
    return entry


def _ratio(rows: dict[str, Array]) -> Measured:
    return estimate(ratio(length, rows["eagle31"], rows["eagle3"], 0))


def rms_growth(variant: str, which: Sequence[int]) -> Measured:
    """Of all seeds together, and of each."""
    probed = {seed: read(seed, variant, "drift")["per_prompt"] for seed in which}
    by_seed = {str(seed): growth([prompts])["value"] for seed, prompts in probed.items()}
    return growth(list(probed.values())) | {"by_seed": by_seed}


def growth(probed: Sequence[list[Measured]]) -> Measured:
    """Growth of the fed-back state's RMS over 8 drafted steps: exp of 7 fitted slopes of its logarithm.

    ``probed`` has the same prompts for each head; a prompt's values are the heads' mean.
    """
    values = np.array([[_rms(one) for one in prompts] for prompts in probed]).mean(axis=0)  # [P, STEPS]

    def fitted(means: Array) -> Array:
        slope: Array = np.polyfit(np.arange(STEPS), means.T, 1)[0]
        return np.exp((STEPS - 1) * slope)

    drawn = fitted(resamples(len(values), 0) @ values / len(values))
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return estimate(Estimate(float(fitted(values.mean(0)[None])[0]), float(low), float(high)))


def _rms(one: Measured) -> list[float]:
    return [float(np.log(one[str(depth)]["rms_fed"])) for depth in range(1, STEPS + 1)]


def drift_by_depth(variant: str, which: Sequence[int]) -> Measured:
    """Means over prompts and seeds, depth 0 (prefill) first."""
    return means_by_depth([one for seed in which for one in read(seed, variant, "drift")["per_prompt"]])


def means_by_depth(prompts: Sequence[Measured]) -> Measured:
    """Means over probed prompts, depth 0 (prefill) first."""
    names = ("rms_fed", "mass_sink", "mass_drafted", "mass_prompt", "entropy", "cosine")
    return {
        name: [round(float(np.mean([one[str(d)].get(name, 0.0) for one in prompts])), 4) for d in range(STEPS + 1)]
        for name in names
    }


def summarise() -> Measured:
    """The content of pairs.json.

    Raises ValueError where no pair is measured.
    """
    which = seeds()
    if not which:
        raise ValueError(f"{STORE}: no measured pair; fix: python launch/results.py")
    every = _conditions(which[0], "eagle31")
    conditions = {name: _condition(name, which) for name in every}
    contexts = [name for name in conditions if name.startswith("context_")]
    worst = min(TEMPLATES, key=lambda name: conditions[name]["eagle3"]["accept_length"]["value"])
    one = read(which[0], "eagle31", "conditions")
    return {
        "served_accept_length": _served(which),
        "mean_ratio": conditions["regular"]["ratio"],
        "worst_template_ratio": conditions[worst]["ratio"] | {"condition": worst},
        "longest_context_ratio": conditions[contexts[-1]]["ratio"] | {"condition": contexts[-1]},
        "rms_growth": {variant: rms_growth(variant, which) for variant in VARIANTS},
        "seeds": which,
        "conditions": {
            "target": "SmolLM2-135M-Instruct",
            "tree": dict(zip(("steps", "topk", "draft_tokens"), TREE, strict=True)),
            "probe": read(which[0], "eagle31", "drift")["settings"],
            **{key: one["settings"][key] for key in ("prompts_file", "max_tokens", "temperature")},
            "concurrency": {str(s): read(s, "eagle31", "conditions")["settings"]["concurrency"] for s in which},
            "start_token": one["start_token"],
            **{key: one[key] for key in ("versions", "cpu")},
        },
        "by_condition": conditions,
        "switched_feedback": {variant: _switched(variant, which) for variant in VARIANTS},
        "drift_by_depth": {variant: drift_by_depth(variant, which) for variant in VARIANTS},
        "heads": {f"seed{s}/{v}": _head(read(s, v, "head")) for s in which for v in VARIANTS},
    }


def _served(which: Sequence[int]) -> Measured:
    """Accept length of each 3.1 head under ``regular``; ``value`` is the shipped one's."""
    weights = hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    found = {}
    for seed in which:
        rows = table(list(kept(_conditions(seed, "eagle31")["regular"]).values()), DEPTH)
        found[seed] = estimate(acceptance(rows, 0).length)
    shipped = next((s for s in which if read(s, "eagle31", "head")["sha256"] == weights), None)
    if shipped is None:
        raise ValueError(f"{SHIPPED}: not among the measured heads; fix: python launch/results.py")
    return found[shipped] | {"shipped_seed": shipped, "by_seed": {str(s): e for s, e in found.items()}}


def _switched(variant: str, which: Sequence[int]) -> Measured:
    """Accept length by seed of heads that are served with the other variant's feedback."""
    found: Measured = {"feedback": SWITCHED[variant]}
    for seed in which:
        entry = read(seed, variant, "switched")["heads"][0]["conditions"][0]
        found[str(seed)] = estimate(acceptance(table(list(kept(entry).values()), DEPTH), 0).length)
    return found


def _head(facts: Measured) -> Measured:
    recorded = facts["provenance"]
    held_out = (recorded.get("evaluation") or {}).get("accept_length")
    return {"sha256": facts["sha256"], "megabytes": round(facts["bytes"] / 1e6, 1), "held_out_chain": held_out}
