"""Where a request ends, if several ends lie in one accepted run.

Target: sglang.srt.managers.schedule_batch.Req.update_finish_state
Why: SGLang looks at a run as a whole: it takes the first of the request's stop strings, not the first in the text, and
    a stop string before a stop token, wherever the two lie. Tokens after the real end are output then. A request that
    is aborted in the round in which it ends has all of the round's tokens, more than `max_new_tokens` even.
How: around the method: for a request with stop strings or patterns the run is handed over token by token, as without
    speculation; an aborted request keeps its reason, and its output ends where the run would have ended it.
Upstream: none reported (0.5.23).
Remove when: SGLang ends at the earliest of all ends in a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_eagle31.patches._seam import Seam


def earliest(original: Callable[[Any, int], None], self: Any, new_accepted_len: int = 1) -> None:
    """AROUND hook: the state after the first token of the run that ends the request."""
    broken_off = self.to_finish
    if new_accepted_len <= 1 or not broken_off:
        return one_by_one(original, self, new_accepted_len)
    self.to_finish = None
    one_by_one(original, self, new_accepted_len)
    self.finished_reason = broken_off  # and `finished_len` is where the run would have ended it


def one_by_one(original: Callable[[Any, int], None], self: Any, new_accepted_len: int) -> None:
    """The run token by token, where a stop string or pattern could end it."""
    params = self.sampling_params
    if new_accepted_len <= 1 or not (params.stop_strs or params.stop_regex_strs):
        return original(self, new_accepted_len)
    first = len(self.output_ids) - new_accepted_len + 1
    rest, grammar = self.output_ids[first:], self.grammar
    del self.output_ids[first:]
    self.grammar = None  # it has seen the whole run, so only the last token can ask it
    try:
        original(self, 1)
        for place, token in enumerate(rest, 1):
            if not self.finished():
                self.output_ids.append(token)
                self.grammar = grammar if place == len(rest) else None
                original(self, 1)
    finally:
        self.grammar = grammar
        self.output_ids.extend(rest[len(self.output_ids) - first :])


SEAM = Seam(
    "sglang.srt.managers.schedule_batch.Req.update_finish_state",
    ("self", "new_accepted_len"),
    "AROUND",
    "eagle31",
    earliest,
)
