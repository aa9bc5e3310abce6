"""A random walk: requests that share prefixes, of which some end early, are aborted or are sent back to the queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from rollback_check import check
from rollback_language import VOCAB
from rollback_model import Broken, Model, expect
from rollback_world import World

RETRACT_ROOM = 20
"""Tokens a running request for which SGLang makes room when it retracts (SGLANG_RETRACT_DECODE_STEPS)."""


@dataclass
class Mix:
    """What arrives, and how often: probabilities a turn."""

    arrive: float = 0.5
    abort: float = 0.03
    prompt: int = 60
    limit: int = 40
    queue: int = 4


@dataclass
class Walk:
    """The scheduler and the model side by side."""

    world: World
    random: Random
    mix: Mix = field(default_factory=Mix)

    def __post_init__(self) -> None:
        shape = self.world.shape
        self.model = Model(shape.page, shape.slots, shape.topk, shape.steps, shape.nodes)
        self.chunked: str | None = None
        self.turns = self.wanted = 0

    def ask(self, name: str, prompt: list[int], limit: int, stops: bool = False) -> None:
        """Queue a request in both."""
        self.model.ask(name, prompt, limit, stops)
        self.world.ask(name, prompt, limit, stops)

    def abort(self, name: str) -> None:
        """Abort a request in both."""
        text = self.model.texts[name]
        queued = any(request.rid == name for request in self.world.scheduler.waiting_queue)
        self.world.abort(name)
        text.aborted = True
        if queued:
            self.model.drop(name, "aborted in the queue")

    def turn(self) -> bool:
        """One turn of the scheduler, then the check of everything; False when there was nothing to do."""
        free, self.wanted = self.model.free(), self.model.wanted()
        busy = self.world.step(self)
        check(self.world, self.model, free, self.wanted)
        self.turns += 1
        return busy

    def scheduled(self, batch: Any) -> None:
        """A batch (None: nothing) is to run; its slots are allocated."""
        self._follow_releases()
        if self.chunked in self.model.held():
            self.model.stash(self.chunked)
        self.chunked = None
        if batch is None or not batch.forward_mode.is_extend():
            return
        for request, start in zip(batch.reqs, batch.prefix_lens, strict=True):
            self.wanted += request.extend_end - start + self.world.shape.page
            self.model.prefill(request.rid, start, request.extend_end)
            if self.model.texts[request.rid].middle:
                self.chunked = request.rid

    def ran(self, batch: Any) -> None:
        """It has run on the models."""
        if batch.forward_mode.is_decode():
            for request in batch.reqs:
                self.model.draft(request.rid, self.world.drafts.verified[request.rid])

    def using(self, batch: Any) -> None:
        """The scheduler is about to use the result of a batch."""
        for request in batch.reqs:
            if batch.forward_mode.is_extend():
                self.model.prefilled(request.rid, request.inflight_middle_chunks > 0)
            else:
                self.model.verified(request.rid)

    def _follow_releases(self) -> None:
        """Requests that lost their KV while the batch was chosen."""
        queue = {request.rid for request in self.world.scheduler.waiting_queue}
        for name, text in self.model.held().items():
            request = self.world.requests[name]
            if request.kv.holds_kv:
                continue
            if name in queue:
                self.model.retract(name)
                self.wanted += RETRACT_ROOM * self.world.shape.rows
            elif text.aborted and text.middle:
                self.model.drop(name, "aborted between chunks")
            elif request.is_retracted:
                self.model.drop(name, "ended for want of memory")
            else:
                raise Broken(f"{name} lost its KV, and is neither queued nor aborted")

    def run(self, turns: int) -> None:
        """Random arrivals and aborts for so many turns, then none until all are done, then an empty cache."""
        for _ in range(turns):
            self._arrive()
            running = [name for name, text in self.model.texts.items() if not text.done and not text.aborted]
            if running and self.random.random() < self.mix.abort:
                self.abort(self.random.choice(running))
            self.turn()
            self._forget()
        self.drain()

    def drain(self) -> None:
        """Turns until nothing is left to do; then only the cache holds slots, and gives all of them back."""
        while self.turn():
            pass
        expect("requests that are not done", [n for n, text in self.model.texts.items() if not text.done], [])
        expect("slots in use", len(self.model.cached), self.model.slots - self.world.allocator.available_size())
        self.world.empty_cache()
        expect("free slots at the end", self.world.allocator.available_size(), self.model.slots)

    def _arrive(self) -> None:
        random, mix = self.random, self.mix
        if len(self.world.scheduler.waiting_queue) >= mix.queue or random.random() > mix.arrive:
            return
        prompt: list[int] = []
        if self.model.texts and random.random() < 0.7:
            known = random.choice(list(self.model.texts.values())).truth
            prompt = known[: random.randint(0, min(len(known), mix.prompt - 1))]
        prompt += [random.randrange(3, VOCAB) for _ in range(random.choice((1, 2, random.randint(1, mix.prompt))))]
        name = f"r{self.model.tally['requests']:06}"  # of one width: SGLang aborts every request whose id begins so
        self.ask(name, prompt[: mix.prompt], random.choice((1, 2, random.randint(1, mix.limit))), random.random() < 0.5)

    def _forget(self) -> None:
        """Drop old requests that are done; arrivals share prefixes with those that stay."""
        loop = self.world.scheduler
        flying = {request.rid for batch, _ in loop.result_queue for request in batch.reqs}
        flying |= {request.rid for request in (loop.last_batch.reqs if loop.last_batch else ())}
        done = [name for name, text in self.model.texts.items() if text.done and name not in flying]
        for name in done[:-8]:
            del self.model.texts[name], self.world.requests[name]
