"""Streamed text before a tool call, when both come in one piece.

Target: sglang.srt.function_call.function_call_parser.FunctionCallParser.parse_stream_chunk
Why: SGLang's streaming detectors drop text that stands before the mark of a call in the same piece. Without
    speculation a piece is one token and that is rare; a verified round gives several at once, and text is lost.
How: around the method: the piece is handed over in parts, each of which begins where the mark could begin.
Upstream: BaseFormatDetector.parse_streaming_increment (0.5.23), no issue known.
Remove when: the detectors return the text before the mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam

Parsed = tuple[str, list[Any]]


def parts(piece: str, mark: str) -> list[str]:
    """``piece`` cut before each character with which ``mark`` begins; whole if there is no mark."""
    first = mark[:1]
    if not first or first not in piece:
        return [piece]
    head, *rest = piece.split(first)
    return ([head] if head else []) + [first + text for text in rest]


def parse_in_parts(original: Callable[[Any, str], Parsed], self: Any, chunk_text: str) -> Parsed:
    """AROUND hook: SGLang's answers to the parts, in one."""
    text = ""
    calls: list[Any] = []
    for part in parts(chunk_text, getattr(self.detector, "bot_token", "") or ""):
        more_text, more_calls = original(self, part)
        text, calls = text + more_text, calls + more_calls
    return text, calls


SEAM = Seam(
    "sglang.srt.function_call.function_call_parser.FunctionCallParser.parse_stream_chunk",
    ("self", "chunk_text"),
    "AROUND",
    "eagle31",
    parse_in_parts,
)
