"""Reasons to refuse that need no SGLang, and the line that says what runs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import heads
import pytest
import torch

from sglang_eagle31.head.spec import DrafterSpec
from sglang_eagle31.server import reasons as refusals
from sglang_eagle31.server import resolve as algorithm
from sglang_eagle31.server.cpu import standin

FLAGS = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")


def arguments(*tree: int | None, **changes: Any) -> SimpleNamespace:
    steps, topk, tokens = tree or (None, None, None)
    facts = {
        "speculative_draft_model_path": "head",
        "enable_multi_layer_eagle": False,
        "speculative_adaptive": False,
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": tokens,
        "speculative_draft_window_size": None,
        "speculative_draft_attention_backend": None,
        "attention_backend": None,
    }
    return SimpleNamespace(**{**facts, **changes})


@pytest.mark.parametrize("tree", [(), (3, 1, 4), (1, 1, 2), (5, 4, 16), (2, 2, 7), (1, 8, 9)])
def test_a_good_tree_is_not_refused(tree: tuple[int, ...]) -> None:
    assert refusals.flag_reasons(arguments(*tree)) == []


@pytest.mark.parametrize(
    "tree",
    [(3, None, None), (None, 4, None), (None, None, 8), (3, 4, None), (3, None, 8), (None, 4, 8)],
)
def test_some_of_three_flags_name_the_others(tree: tuple[int | None, ...]) -> None:
    (reason,) = refusals.flag_reasons(arguments(*tree))
    have = [f"{flag} {value}" for flag, value in zip(FLAGS, tree, strict=True) if value is not None]
    lack = [flag for flag, value in zip(FLAGS, tree, strict=True) if value is None]
    assert reason == f"{', '.join(have)} is given without {', '.join(lack)}; fix: give all three, or none of them"


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ((2, 2, 8), ["--speculative-num-draft-tokens 8", "only 7 tokens", "fix: --speculative-num-draft-tokens 7"]),
        ((1, 8, 10), ["--speculative-num-draft-tokens 10", "only 9 tokens"]),
        ((0, 1, 4), ["--speculative-num-steps 0", "at least 1", "fix: "]),
        ((3, 0, 4), ["--speculative-eagle-topk 0", "at least 1", "fix: "]),
        ((3, 1, 1), ["--speculative-num-draft-tokens 1", "at least 2", "fix: "]),
        ((4, 2, 4), ["--speculative-num-draft-tokens 4", "less than 4 steps and the root", "tokens 5 or more"]),
    ],
)
def test_an_impossible_tree_is_refused(tree: tuple[int, ...], named: list[str]) -> None:
    (reason,) = refusals.flag_reasons(arguments(*tree))
    assert all(part in reason for part in named)


def test_adaptive_speculation_chooses_its_own_tree() -> None:
    assert refusals.flag_reasons(arguments(3, None, None, speculative_adaptive=True)) == []


def test_all_reasons_come_together() -> None:
    wrong = arguments(3, None, None, speculative_draft_model_path=None, enable_multi_layer_eagle=True)
    reasons = refusals.flag_reasons(wrong)
    assert len(reasons) == 3 and all("fix: " in reason for reason in reasons)
    message = str(algorithm.refuse(reasons))
    assert message.startswith("EAGLE31 cannot run this set-up:\n  - ") and message.count("\n  - ") == 3


def spec() -> DrafterSpec:
    return DrafterSpec(
        producer="SpecForge",
        hidden_size=heads.HIDDEN,
        target_hidden_size=heads.HIDDEN,
        intermediate_size=heads.INNER,
        num_layers=1,
        num_heads=heads.HEADS,
        num_kv_heads=heads.KV_HEADS,
        head_dim=heads.HEAD_DIM,
        vocab_size=heads.VOCAB,
        draft_vocab_size=heads.DRAFT_VOCAB,
        boundaries=(2, 6, 9),
        max_position_embeddings=512,
    )


def test_a_longer_context_says_by_how_much_and_what_it_means() -> None:
    assert refusals.context_reasons("head", spec(), heads.target(context_length=512)) == []
    (reason,) = refusals.context_reasons("head", spec(), heads.target(context_length=2048))
    for part in (
        "--speculative-draft-model-path head",
        "512 positions",
        "context is 2048 (1536 more)",
        "output stays right, but acceptance falls",
        "fix: --context-length 512",
        "--eagle31-override max_position_embeddings=2048",
    ):
        assert part in reason


@pytest.mark.parametrize(
    ("ranks", "heads_and_keys", "fits"),
    [
        (1, (9, 3), True),
        (3, (9, 3), True),
        (2, (9, 3), False),
        (4, (8, 2), True),
        (8, (8, 2), True),
        (4, (8, 6), False),
    ],
)
def test_the_head_s_attention_heads_must_divide_among_the_ranks(
    ranks: int, heads_and_keys: tuple[int, int], fits: bool
) -> None:
    head = dataclasses.replace(spec(), num_heads=heads_and_keys[0], num_kv_heads=heads_and_keys[1])
    found = refusals.fit_reasons(arguments(tp_size=ranks), head)
    assert bool(found) != fits
    assert fits or (f"--tp-size {ranks}" in found[0] and "fix:" in found[0])


def test_an_mla_head_has_no_draft_window() -> None:
    latent = dataclasses.replace(spec(), attention="mla")
    flags = arguments(speculative_draft_window_size=64)
    (reason,) = refusals.fit_reasons(flags, latent)
    assert "--speculative-draft-window-size 64" in reason and "fix:" in reason
    assert refusals.fit_reasons(flags, spec()) == [] == refusals.fit_reasons(arguments(), latent)


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, False),
        ({"attention_backend": "fa3", "speculative_eagle_topk": 1}, True),
        ({"attention_backend": "fa3", "speculative_eagle_topk": 4}, False),
        ({"attention_backend": "flashinfer", "speculative_eagle_topk": 1}, False),
        (
            {
                "attention_backend": "flashinfer",
                "speculative_draft_attention_backend": "fa3",
                "speculative_eagle_topk": 1,
            },
            True,
        ),
    ],
)
def test_a_window_needs_a_backend_that_has_it(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], fits: bool
) -> None:
    windowed = dataclasses.replace(spec(), sliding_window=64)
    monkeypatch.setattr(standin, "installed", lambda: False)
    found = refusals.fit_reasons(arguments(**changes), windowed)
    assert (found == []) == fits and all("64 keys" in reason and "fix:" in reason for reason in found)
    assert refusals.fit_reasons(arguments(**changes), spec()) == []
    monkeypatch.setattr(standin, "installed", lambda: True)
    assert refusals.fit_reasons(arguments(**changes), windowed) == []


@pytest.mark.parametrize(
    ("flag", "config", "dtype"),
    [
        ("auto", {"dtype": torch.bfloat16}, "bfloat16"),
        ("auto", {"torch_dtype": "float16"}, "float16"),
        ("auto", {}, "bfloat16"),
        ("float32", {"dtype": torch.bfloat16}, "float32"),
    ],
)
def test_the_draft_takes_the_target_s_dtype(flag: str, config: dict[str, Any], dtype: str) -> None:
    assert refusals._dtype(flag, SimpleNamespace(**config)) == dtype


def test_the_log_line_names_head_variant_layers_vocabulary_and_tree() -> None:
    line = algorithm.describe(
        {
            "variant": "EAGLE 3.1",
            "head": "/heads/one",
            "producer": "SpecForge",
            "target": {"architecture": "LlamaForCausalLM", "num_layers": 12},
            "captured_boundaries": [2, 6, 9],
            "vocabulary": {"draft": 12, "target": 40},
            "tree": {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4},
        }
    )
    assert line.startswith("EAGLE31: EAGLE 3.1 head /heads/one (SpecForge) on LlamaForCausalLM")
    for part in ("[2, 6, 9] of 12", "vocabulary 12 of 40", "steps 3, topk 1, draft tokens 4"):
        assert part in line


@pytest.mark.parametrize("stated", [{}, {"_eagle31": None}])
def test_a_server_without_eagle31_has_no_facts(stated: dict[str, Any]) -> None:
    record = SimpleNamespace(**stated)
    assert algorithm.plan_of(record) is None and algorithm.facts_of(record) is None
