"""The guard in SGLang's worker: before each decode round it chooses the shape, after it it learns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sglang_eagle31.maths.shape import Shape
from sglang_eagle31.server.guard import backlog, nodes
from sglang_eagle31.server.guard.asks import Asks
from sglang_eagle31.server.guard.evidence import Outcome
from sglang_eagle31.server.guard.ledger import Ledger
from sglang_eagle31.server.guard.policy import Policy
from sglang_eagle31.server.guard.prepared import may_pin


class Round:
    """One decode round, from its start to the next one's."""

    def __init__(self, shape: Shape, asks: Asks, started: float) -> None:
        self.shape, self.asks, self.started = shape, asks, started
        self.seconds: float | None = None
        self.outcome: Outcome | None = None
        self.read = False


class Guard:
    """Of one worker, in one scheduler process.

    On a CPU a round's results are read as soon as it is over. On other devices only the lengths are, when SGLang has
    them on the host, so as not to wait for the device.
    """

    def __init__(self, worker: Any, switch: Any, policy: Policy, mode: str, agree: Callable[[Shape], Shape]) -> None:
        """``agree`` gives every tensor-parallel rank the shape of the first."""
        self.worker, self.switch, self.policy, self.mode, self.agree = worker, switch, policy, mode, agree
        self.configured: Shape = policy.shapes[0]
        self.ledger = Ledger(policy, mode, switch.everywhere)
        self.backlog: backlog.Backlog | None = None
        self.asks = Asks(())
        self.last: Round | None = None
        self.waiting: deque[Round] = deque()
        self.tree: tuple[Any, Any] | None = None
        """SGLang's verify input of this round, and which candidates of the draft its nodes are."""

    def around(self, forward: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
        """SGLang's round of a batch, in the shape that is chosen for it."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            self.last = None  # a round's time does not count when a prefill came after it
            return forward(batch, *args, **kwargs)
        now = time.perf_counter()
        before, self.last = self.last, None
        if before is not None:
            before.seconds = now - before.started
        self._settle()
        self.asks = Asks.of([req.sampling_params.custom_params for req in batch.reqs])
        shape = self.agree(self._choose(len(batch.reqs)))
        self.switch.run(shape)
        if shape.steps and self.backlog is not None:
            unread = self.backlog.take([req.rid for req in batch.reqs], batch.seq_lens_cpu.tolist())
            if unread:
                backlog.read(self.worker, batch, unread)
        if shape.steps:
            self.switch.begin(batch.spec_info)
        self.last = Round(shape, self.asks, now)
        self.waiting.append(self.last)
        result = forward(batch, *args, **kwargs)
        if self.switch.everywhere:
            self.last.outcome, self.last.read = self._read(shape, result), True
        return result

    def processed(self, accepted: list[int]) -> None:
        """SGLang has the accepted drafts of the oldest round on the host."""
        pending = next((one for one in self.waiting if not one.read), None)
        if pending is not None:
            pending.outcome, pending.read = _of_lengths(pending.shape, accepted, pending.asks), True
            self._settle()

    def drafted(self, verify_input: Any, chosen: Any) -> Any:
        """The tree of this round, with the drafts taken off that a request does not want."""
        self.switch.end()
        caps = self.asks.capped(self.switch.running)
        if caps:
            depth = verify_input.positions.view(verify_input.retrieve_next_token.shape)
            nodes.cut(verify_input.retrieve_next_token, depth - depth[:, :1], caps)
        self.tree = (verify_input, chosen) if self.switch.everywhere else None  # elsewhere only lengths are read
        return verify_input

    def skipped(self, batch: Any, result: Any) -> None:
        """A plain round, after which the draft reads nothing."""
        assert self.backlog is not None
        self.backlog.add(
            [req.rid for req in batch.reqs],
            (result.new_seq_lens - 1).tolist(),
            result.next_token_ids,
            result.logits_output.hidden_states,
        )

    def to_json(self) -> dict[str, Any]:
        """What ``/server_info`` shows."""
        return self.ledger.to_json()

    def _choose(self, batch: int) -> Shape:
        wanted = self._wanted(batch)
        return wanted if wanted.steps or self.switch.plain else self.configured

    def _wanted(self, batch: int) -> Shape:
        pin = self.asks.pin
        if pin is not None and may_pin(pin, self.configured, tuple(self.policy.shapes), self.switch.everywhere):
            return pin
        wanted = self.policy.choose(batch) if self.mode == "on" else self.configured
        return self.asks.fit(wanted, self.policy.shapes)

    def _read(self, shape: Shape, result: Any) -> Outcome | None:
        capped = self.asks.capped(shape)
        free = [row for row in range(len(self.asks.caps)) if row not in capped]
        if not shape.steps or not free:
            return None if shape.steps else Outcome.plain(len(self.asks.caps))
        lengths = result.accept_lens.numpy()
        if shape.topk == 1:
            return Outcome.chain(lengths[free] - 1, shape.steps)
        assert self.tree is not None, "a draft was verified that the seam did not see"
        tree, chosen = self.tree
        links = tree.retrieve_next_token.numpy(), tree.retrieve_next_sibling.numpy()
        return nodes.outcome(shape, free, lengths, result.accept_index.numpy(), chosen.numpy(), *links)

    def _settle(self) -> None:
        """Tell the policy of rounds that are over and read, in order."""
        while self.waiting and self.waiting[0].read and self.waiting[0] is not self.last:
            over = self.waiting.popleft()
            self.ledger.count(over.shape, over.outcome)
            if self.mode != "off" and over.outcome is not None and over.seconds is not None:
                # What a client pins shows what shapes take and give, and not whether the choice was right.
                tell = self.policy.learn if over.shape == over.asks.pin else self.policy.observe
                tell(len(over.asks.caps), over.shape, over.outcome, over.seconds)


def _of_lengths(shape: Shape, accepted: list[int], asks: Asks) -> Outcome | None:
    if not shape.steps:
        return Outcome.plain(len(accepted))
    capped = asks.capped(shape)
    free = [length for row, length in enumerate(accepted) if row not in capped]
    return Outcome.chain(free, shape.steps) if free else None
