"""Every token of a replayed answer is checked by the logits without speculation, or counted with the reason."""

from __future__ import annotations

import pytest
from verify_fakes import EAGLE, PLAIN, Fake, chat, native


def test_a_wrong_token_behind_a_tie_is_found(serve, compare) -> None:
    info = {"dtype": "bfloat16"}
    first = serve({**EAGLE, **info}, changes={4: 99, 6: 200}, logits={11: -0.5})
    second = serve({**PLAIN, **info}, logits={99: -0.625})
    status, record, text = compare(first, second, native([7, 8]), native([1, 2, 3, 4, 5, 6, 7]))
    assert status == 1 and (record["counts"]["tie"], record["counts"]["different"]) == (0, 1)
    entry = record["requests"][0]
    assert (entry["what"], entry["position"]) == ("token 4, by the logits without speculation", 2)
    assert [(one["index"], one["token"], one["outcome"]) for one in entry["unlikely"]] == [
        (2, 99, "tie"),
        (4, 200, "different"),
    ]
    assert (record["tokens_checked"], record["tokens_tied"], record["tokens_differing"]) == (12, 1, 1)
    assert "wrong: request 1, token 4 (200): 29.5000 below the best logit without speculation" in text


def test_the_same_answers_are_not_enough_where_the_logits_say_otherwise(serve, compare) -> None:
    info = {"dtype": "bfloat16"}
    servers = serve({**EAGLE, **info}), serve({**PLAIN, **info}, logits={500: 0.0})
    status, record, text = compare(*servers, native([7, 8]))
    assert "wrong: request 1, token 0 (9): 0.5000 below" in text and "; 6 wrong tokens in all" in text
    assert status == 1 and record["tokens_differing"] == 6 and record["counts"]["different"] == 1
    status, record, _ = compare(serve({**EAGLE, **info}), serve({**PLAIN, **info}, logits={500: -0.4}), native([7, 8]))
    assert status == 0 and record["identical"] and (record["tokens_tied"], record["tokens_differing"]) == (6, 0)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (native([1], frequency_penalty=0.5, min_new_tokens=3), "frequency_penalty, min_new_tokens"),
        (native([1], presence_penalty=-1), "presence_penalty"),
        (native([1], repetition_penalty=1.2), "repetition_penalty"),
        (native([1], json_schema="{}"), "json_schema"),
        ({**native([1]), "custom_logit_processor": "x"}, "custom_logit_processor"),
        ({**native([1]), "lora_path": "x"}, "lora_path"),
        ({**native([1]), "session_params": {"id": "x"}}, "session_params"),
        (chat("four", min_tokens=2), "min_tokens"),
        (chat("four", regex="a*"), "regex"),
        (chat("four", response_format={"type": "json_object"}), "response_format"),
        (chat("four", tools=[{"type": "function"}]), "tools"),
        (chat("four", model="base:adapter"), "an adapter"),
        (chat([{"type": "image_url"}]), "multimodal messages"),
    ],
)
def test_tokens_that_logits_alone_do_not_decide_are_compared_only_and_counted(serve, compare, body, why) -> None:
    """The logits speak against every token."""
    second = serve(PLAIN, logits={500: 9.0})
    status, record, text = compare(serve(EAGLE), second, body)
    assert status == 0 and (record["tokens"], record["tokens_compared"]) == (6, 6)
    assert record["tokens_checked"] == 0 and record["tokens_not_checked"] == {why: 6}
    assert f"tokens not checked by the logits: 6 ({why})" in text
    assert not any(one.get("return_logprob") for one in second.bodies)


@pytest.mark.parametrize(
    "body",
    [
        native([1], frequency_penalty=0, repetition_penalty=1.0, min_new_tokens=0, json_schema=None, stop=["x"], n=1),
        native([1], stop_token_ids=[5], ignore_eos=True, top_k=1),
        chat("four", response_format={"type": "text"}, presence_penalty=0.0, model="org/model", tools=None),
        chat([{"type": "text", "text": "x"}]),
    ],
)
def test_what_changes_no_logit_does_not_hinder_the_check(serve, compare, body) -> None:
    status, record, _ = compare(serve(EAGLE), serve(PLAIN), body)
    assert (status, record["tokens_checked"], record["tokens_not_checked"]) == (0, 6, {})


def test_a_logit_bias_counts_in_the_check(serve, compare) -> None:
    """Both servers say 50 at each third place; its logit is far below, but for the bias."""
    changes = {4: 50}
    first, second = serve(EAGLE, changes=changes), serve(PLAIN, changes=changes)
    second.RequestHandlerClass = type("Bare", (Fake,), {"logprobs": lambda self, prefix: {prefix[-1] + 1: -0.5}})
    status, record, _ = compare(first, second, native([7, 8], 3, logit_bias={"50": 30.0}))
    assert (status, record["tokens_checked"], record["tokens_differing"]) == (1, 3, 2)
    assert [one["index"] for one in record["requests"][0]["unlikely"]] == [0, 1]
    status, record, _ = compare(first, second, native([7, 8], 3))
    assert [one["index"] for one in record["requests"][0]["unlikely"]] == [2]


def test_penalties_that_the_server_adds_are_seen(serve, compare, tmp_path) -> None:
    """Those of the model's generation_config.json in chats, and those of the server in the native route."""
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 1.05}')
    model = {"model_path": str(tmp_path), "sampling_defaults": "model"}
    found = {
        "model": model,
        "openai": {**model, "sampling_defaults": "openai"},
        "server": {"preferred_sampling_params": '{"presence_penalty": 1}'},
    }
    counted = {}
    for name, more in found.items():
        servers = serve({**EAGLE, **more}), serve({**PLAIN, **more})
        bodies = chat("four"), chat("four", repetition_penalty=1.0), native([1])
        counted[name] = compare(*servers, *bodies)[1]["tokens_not_checked"]
    assert counted == {"model": {"repetition_penalty": 6}, "openai": {}, "server": {"presence_penalty": 6}}
