"""Streamed tool calls: text before a call survives however the stream is cut; SGLang's own parser loses it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sglang_eagle31.patches.function_call_parser_parse_stream_chunk import parse_in_parts, parts
from sglang_eagle31.server.cpu import standin

TEXT = 'a < b, so (ig<tool_call>\n{"name": "weather", "arguments": {"city": "<Rome>", "days": 3}}\n</tool_call>'


def parser() -> Any:
    standin.prepare()
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    return FunctionCallParser([Tool(type="function", function={"name": "weather", "parameters": {}})], "qwen")


def streamed(sizes: list[int], ours: bool) -> tuple[str, str, str]:
    """Text, function and arguments of `TEXT` in pieces of these sizes, again and again."""
    served, ends = parser(), list(itertools.accumulate(itertools.islice(itertools.cycle(sizes), len(TEXT))))
    text, names, arguments = "", "", ""
    for start, end in zip([0, *ends], ends, strict=False):
        if start < len(TEXT):
            piece = TEXT[start:end]
            own = type(served).parse_stream_chunk
            more, calls = parse_in_parts(own, served, piece) if ours else own(served, piece)
            text += more
            names += "".join(call.name or "" for call in calls)
            arguments += "".join(call.parameters for call in calls)
    return text.strip(), names, arguments


@pytest.mark.parametrize("sizes", [[1], [2], [3], [5], [7, 1, 4], [13], [16], [29, 8]])
def test_a_stream_in_any_pieces_is_the_same(sizes: list[int]) -> None:
    assert streamed(sizes, ours=True) == ("a < b, so (ig", "weather", '{"city": "<Rome>", "days": 3}')


def test_sglang_s_own_parser_loses_text() -> None:
    assert streamed([16], ours=False)[0] != "a < b, so (ig"


@pytest.mark.parametrize("piece", ["", "abc", "<", "a<b<", "<tool_call>\nx", "(ig<tool"])
def test_parts_add_up(piece: str) -> None:
    found = parts(piece, "<tool_call>\n")
    assert "".join(found) == piece and all("<" not in part[1:] for part in found)
    assert parts(piece, "") == [piece]
