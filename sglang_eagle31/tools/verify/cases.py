"""The cases that are tested, and the controls: samplers that are wrong by a few percent and have to be found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from sglang_eagle31.tools.verify.draft import Drafter, Shape
from sglang_eagle31.tools.verify.exact import Sampling
from sglang_eagle31.tools.verify.rounds import Experiment, Rule, Wrong, likeliest, sometimes, uncorrected
from sglang_eagle31.tools.verify.synthetic import DRAFT_STEPS, DRAFTERS, drafter, target

CHAIN = Shape(DRAFT_STEPS, 1, DRAFT_STEPS + 1)
TREE = Shape(DRAFT_STEPS, 4, 10)
SHAPES = {"chain": CHAIN, "tree": TREE}
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.3),
    Sampling(temperature=1.5),
    Sampling(top_k=3),
    Sampling(top_p=0.7),
    Sampling(min_p=0.2),
    Sampling(temperature=1.5, top_k=4, top_p=0.8, min_p=0.1),
    Sampling(top_k=1),
)
"""The last is what SGLang makes of temperature 0."""
WRONG_SHARE = 0.05
"""Of the rounds that a spoiled sampler spoils."""


@dataclass(frozen=True)
class Case:
    """One experiment with a name."""

    rule: str
    """Key of the rules: ``target-only`` or ``rejection``."""
    shape: str
    drafter: str
    reduced: bool
    sampling: Sampling
    control: str = ""
    """What is wrong with it; empty for a case."""

    @property
    def steps_factor(self) -> int:
        """By how much more steps it gets: leaving out the correction in 1 round of 20 moves about 1 token in 100."""
        return 8 if self.control == SKIP else 1

    @property
    def name(self) -> str:
        """All of it in words."""
        words = [self.rule, self.shape, self.drafter + (", reduced vocabulary" if self.reduced else "")]
        return " · ".join([*words, str(self.sampling), *([self.control] if self.control else [])])

    def experiment(self, rules: Mapping[str, Rule], seed: int) -> Experiment:
        """The case on the tables of ``seed``."""
        rule = rules[self.rule]
        experiment = Experiment(
            rule, target(seed), Drafter(drafter(self.drafter, seed), self.reduced), SHAPES[self.shape], self.sampling
        )
        if self.control == WARM:
            return replace(experiment, rule=_changed(rule, temperature=1.05 * self.sampling.temperature))
        if self.control == NO_MIN_P:
            return replace(experiment, rule=_changed(rule, min_p=0.0))
        return replace(experiment, wrong=SPOILED[self.control]) if self.control else experiment


def cases() -> list[Case]:
    """Both rules, chain and tree, every drafter, every sampling, whole and reduced draft vocabulary."""
    kinds = [("target-only", "chain"), ("target-only", "tree"), ("rejection", "chain")]
    return [
        Case(rule, shape, drafts, reduced, sampling)
        for rule, shape in kinds
        for reduced in (False, True)
        for drafts in DRAFTERS
        for sampling in SAMPLINGS
    ]


ARGMAX = "commits the likeliest token in 5 % of the rounds"
SKIP = "leaves out the correction in 5 % of the rounds"
WARM = "temperature 5 % too high"
NO_MIN_P = "min-p dropped, as SGLang 0.5.23 verifies"
SPOILED: dict[str, Wrong] = {ARGMAX: sometimes(WRONG_SHARE, likeliest), SKIP: sometimes(WRONG_SHARE, uncorrected)}


def controls() -> list[Case]:
    """Wrong samplers, each with a drafter under which its error shows."""
    found = []
    for rule, shape in (("target-only", "chain"), ("target-only", "tree"), ("rejection", "chain")):
        half = "perfect" if (rule, shape) == ("target-only", "chain") else "poor"  # accepted about every other time
        drafters = {ARGMAX: "poor", SKIP: half, WARM: "poor"}
        found += [Case(rule, shape, drafts, False, Sampling(), what) for what, drafts in drafters.items()]
        found.append(Case(rule, shape, "poor", False, Sampling(min_p=0.1), NO_MIN_P))
    return found


def _changed(rule: Rule, **changes: float) -> Rule:
    def weights(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        return rule.weights(logits, replace(sampling, **changes))  # type: ignore[arg-type]

    return replace(rule, weights=weights)
