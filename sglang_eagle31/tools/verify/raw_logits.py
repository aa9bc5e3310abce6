"""What else than the target's logits decides the tokens of a greedy request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_eagle31.tools.shared.requests_file import CHAT, Request

NEUTRAL = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_new_tokens": 0,
    "min_tokens": 0,
}
"""What changes logits by the tokens before, unless it has this value. A ``logit_bias`` is the same at every place."""
PARAMETERS = ("regex", "ebnf", "json_schema", "structural_tag")
FIELDS = (
    *("custom_logit_processor", "tools", "max_thinking_tokens", "watermark", "lora_path"),
    *("session_params", "image_data", "video_data", "audio_data", "positional_embed_overrides"),
)
"""Of the body: processors and grammars (SGLang makes one of some tools), other weights, and prompts that are more than
token ids."""


def what_else(request: Request, defaults: Mapping[str, Mapping[str, Any]]) -> str:
    """Names of what else decides; empty where every token is the one with the largest logit.

    ``defaults`` are sampling parameters by route, which the server takes where a request has none.
    """
    return ", ".join(dict.fromkeys(_found(request, defaults.get(request.route, {}))))


def bias(request: Request) -> dict[int, float]:
    """The request's ``logit_bias`` by token id."""
    return {int(token): float(value) for token, value in (request.sampling.get("logit_bias") or {}).items()}


def _found(request: Request, defaults: Mapping[str, Any]) -> Iterator[str]:
    sampling = {**defaults, **{name: value for name, value in request.sampling.items() if value is not None}}
    yield from (name for name, value in NEUTRAL.items() if sampling.get(name, value) != value)
    yield from (name for name in PARAMETERS if sampling.get(name))
    yield from (name for name in FIELDS if request.body.get(name))
    if request.route == CHAT:
        if (request.body.get("response_format") or {}).get("type", "text") != "text":
            yield "response_format"
        if ":" in str(request.body.get("model", "")):
            yield "an adapter"
        parts = (message.get("content") for message in request.body["messages"])
        if any(part.get("type") != "text" for found in parts if isinstance(found, list) for part in found):
            yield "multimodal messages"
