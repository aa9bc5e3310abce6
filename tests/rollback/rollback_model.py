"""What KV bookkeeping has to be, written down without SGLang: lengths, slots, and what the prefix cache holds.

Admission, retraction and eviction are policies: the model follows what the scheduler chose, and checks that it was
allowed to. Everything else it predicts. A cached token is known by what its KV rows hold, which depends on all tokens
before it and on the one after it (the draft reads that one): a pair of numbers. Pages are cached whole, and two texts
that part inside a page have a page each, so an entry is a token's pair with that of the last token of its page.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollback_language import STOP, continuation, draft_row, states

Path = tuple[int, ...]
Row = tuple[int, int]
"""What the pools of target and draft hold for a token."""
Entry = tuple[Row, Row]


class Broken(AssertionError):
    """SGLang's state is not the model's."""


def expect(what: str, found: object, expected: object) -> None:
    """Raise `Broken` unless the two are equal."""
    if found != expected:
        raise Broken(f"{what}: found {found}, expected {expected}")


@dataclass
class Text:
    """One request; ``truth`` is its prompt and every token that may follow."""

    prompt: int
    limit: int
    stops: bool
    truth: list[int]
    out: int = 0  # output tokens that the scheduler has seen
    said: int = 0  # output tokens that the target has said; with overlap ahead of `out`
    held: bool = False
    middle: bool = False  # its last prefill was not the last chunk
    committed: int = 0
    allocated: int = 0
    protected: int = 0  # tokens at the front whose slots are the cache's
    pending: deque[int] = field(default_factory=deque)
    aborted: bool = False
    done: bool = False
    rows: list[Row] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)  # of whole pages

    def release(self) -> None:
        """Give up all KV."""
        self.held = self.middle = False
        self.committed = self.allocated = self.protected = 0
        self.pending.clear()
        self.said = self.out


def accepted(proposals: Mapping[Path, Sequence[tuple[int, float]]], truth: Sequence[int], nodes: int, topk: int) -> int:
    """Drafted tokens that verification has to accept: how far ``truth`` goes along the best ``nodes`` - 1 candidates.

    ``proposals`` are `Drafts.proposals`: the tokens after each expanded path. A candidate's score is the product of
    its probabilities. With one branch there is nothing to choose.
    """
    if topk == 1:
        paths = {(*path, tokens[0][0]) for path, tokens in proposals.items()}
    else:
        import numpy

        scores: dict[Path, numpy.float32] = {}
        for path in sorted(proposals, key=len):
            for token, probability in proposals[path]:
                before = scores[path] if path else numpy.float32(1)
                scores[(*path, token)] = before * numpy.float32(probability)
        paths = set(sorted(scores, key=lambda path: -scores[path])[: nodes - 1])
    depth = 0
    while tuple(truth[: depth + 1]) in paths and depth < len(truth):
        depth += 1
    return depth


class Model:
    """All requests and the cache. ``reserve`` is what a decode round keeps free behind the committed tokens."""

    def __init__(self, page: int, slots: int, topk: int, steps: int, nodes: int) -> None:
        self.page, self.slots, self.topk, self.steps, self.nodes = page, slots // page * page, topk, steps, nodes
        branch = self.up(page - 1 + steps) if page > 1 and topk > 1 else steps  # a branch begins with a copied page
        self.reserve = 2 * max(topk * branch, nodes)  # a round, and one more that overlap may be ahead
        self.texts: dict[str, Text] = {}
        self.cached: dict[Entry, Entry | None] = {}  # to the entry of the token before
        self.tally: Counter[str] = Counter()
        self.histogram: Counter[int] = Counter()

    def up(self, length: int) -> int:
        """Rounded up to whole pages."""
        return -(-length // self.page) * self.page

    def down(self, length: int) -> int:
        """Rounded down to whole pages."""
        return length // self.page * self.page

    def ask(self, name: str, prompt: Sequence[int], limit: int, stops: bool) -> None:
        """A new request."""
        truth = [*prompt, *continuation(prompt, limit + 3 * self.steps + 4)]
        hidden = states(truth)
        rows = [(state, draft_row(state, after)) for state, after in zip(hidden, truth[1:], strict=False)]
        whole = self.down(len(rows))
        entries = [(rows[at], rows[self.down(at) + self.page - 1]) for at in range(whole)]
        self.texts[name] = Text(len(prompt), limit, stops, truth, rows=rows, entries=entries)
        self.tally["requests"] += 1

    def known_prefix(self, text: Text) -> int:
        """Tokens of a request that the cache holds; the last one is always computed, and a key needs its next token."""
        length, most = 0, self.down(max(text.prompt + text.out - 2, 0))
        while length < most and text.entries[length] in self.cached:
            length += 1
        return length

    def insert(self, text: Text, length: int) -> int:
        """``length`` tokens of a request go to the cache; returns how many it keeps: whole pages, without the last."""
        keep = self.down(max(length - 1, 0))
        for position in range(keep):
            before = text.entries[position - 1] if position else None
            self.cached.setdefault(text.entries[position], before)
        return keep

    def prefill(self, name: str, start: int, end: int) -> None:
        """Tokens [start, end) are computed."""
        text = self.texts[name]
        if not text.held:
            expect(f"{name}: cached prefix", start, self.known_prefix(text))
            text.protected, text.held, text.said = start, True, text.out
            self.tally["prefixes hit"] += start > 0
        expect(f"{name}: prefill begins", start, text.committed if text.committed else text.protected)
        text.committed = text.allocated = end
        text.middle = end < text.prompt + text.out
        text.said += not text.middle

    def stash(self, name: str) -> None:
        """A chunk has been computed, and goes to the cache before the next one."""
        text = self.texts[name]
        text.protected = self.insert(text, text.committed)

    def prefilled(self, name: str, middle: bool) -> None:
        """The scheduler uses the result of a prefill."""
        text = self.texts[name]
        if middle or text.done or not text.held:
            return
        text.out += 1
        if not self._finish(text, 1):
            text.protected = self.insert(text, text.committed)

    def draft(self, name: str, proposals: Mapping[Path, Sequence[tuple[int, float]]]) -> None:
        """A round of drafting and verification."""
        text = self.texts[name]
        text.allocated = max(text.allocated, self.up(text.committed + self.reserve))
        following = text.truth[text.prompt + text.said :][: self.steps]
        depth = accepted(proposals, following, self.nodes, self.topk)
        text.pending.append(depth + 1)
        text.said += depth + 1

    def verified(self, name: str) -> None:
        """The scheduler uses the result of a round."""
        text = self.texts[name]
        if text.done or not text.held:
            return
        count = text.pending.popleft()
        self.histogram[count - 1] += 1
        text.committed += count
        text.out += count
        self._finish(text, count)

    def _finish(self, text: Text, new: int) -> bool:
        """Whether a request ends with its last ``new`` tokens; if it does, what the client got goes to the cache."""
        fresh = text.truth[text.prompt + text.out - new : text.prompt + text.out]
        if text.aborted:
            length, why = text.out, "aborted"
        elif text.stops and STOP in fresh:
            length, why = min(text.out - new + fresh.index(STOP) + 1, text.limit), "stopped"
            self.tally["stopped inside a path"] += length < text.out
        elif text.out >= text.limit:
            length, why = text.limit, "reached their limit"
        else:
            return False
        self.tally[why] += 1
        self.insert(text, min(text.committed, text.prompt + length))
        text.done = True
        text.release()
        return True

    def retract(self, name: str) -> None:
        """A running request is sent back to the queue; nothing of it goes to the cache."""
        self.tally["retracted"] += 1
        self.texts[name].release()

    def drop(self, name: str, why: str) -> None:
        """A request ends without a result."""
        self.tally[why] += 1
        text = self.texts[name]
        text.done = True
        text.release()

    def evict(self, kept: set[Entry], free: int, wanted: int) -> None:
        """Follow the cache where it gave up entries: that needs a step that wanted more slots than were free."""
        lost = len(self.cached.keys() - kept)
        if lost and free >= wanted:
            raise Broken(f"the cache lost {lost} tokens where {free} slots were free and {wanted} wanted")
        self.tally["evicted tokens"] += lost
        self.cached = {entry: before for entry, before in self.cached.items() if entry in kept}

    def wanted(self) -> int:
        """Slots that the next round may want for the requests that hold KV."""
        grow = (max(0, self.up(text.committed + self.reserve) - text.allocated) for text in self.held().values())
        return sum(more + self.page for more in grow)

    def free(self) -> int:
        """Slots that nobody holds."""
        private = sum(self.up(text.allocated) - text.protected for text in self.held().values())
        return self.slots - len(self.cached) - private

    def held(self) -> dict[str, Text]:
        """Requests that hold KV."""
        return {name: text for name, text in self.texts.items() if text.held}

    def check_cache(self, entries: Iterable[Entry]) -> None:
        """The cache holds what it has to, each entry once and none without the one before it."""
        found = list(entries)
        kept = set(found)
        expect("entries that the cache holds twice", len(found) - len(kept), 0)
        strange = kept - self.cached.keys()
        if strange:
            raise Broken(f"the cache holds {len(strange)} tokens that no request committed: {sorted(strange)[:3]}")
        torn = [entry for entry in kept if (before := self.cached[entry]) is not None and before not in kept]
        expect("entries whose prefix is gone", torn, [])
        for name, text in self.held().items():
            missing = [position for position in range(text.protected) if text.entries[position] not in kept]
            expect(f"{name}: positions whose slots the cache gave up while in use", missing, [])
