"""The probe in a live server: SGLang's draft model is watched, nothing of what it computes is changed.

The draft model's ``forward`` is wrapped and its attention layers get a hook. In a sampled round the hook computes the
attention weights again, in torch, from the query that the layer was given and the keys in SGLang's KV pool. The
attention backend, and so every token, is the same with the probe on or off. Without a rate nothing is attached.

A round is recorded when its first drafted row runs: then the row before it, depth 0, is added too, so that both
describe the same rounds. Each tensor-parallel rank holds some of the heads; the first rank records its own.
"""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.layers.radix_attention import RadixAttention
from torch import Tensor

from sglang_eagle31.server.probe import attention, keys, states
from sglang_eagle31.server.probe.export import Exporter
from sglang_eagle31.server.probe.record import Record
from sglang_eagle31.server.probe.scene import Rows, Scene, open_scene

logger = logging.getLogger("sglang_eagle31")
REQUESTS = 4096
"""Requests whose sink is remembered; the oldest is forgotten."""


@dataclass
class Request:
    """What is known of a request.

    Attributes:
        sink: the located sink's column.
        prompt: the prompt's length.
        begun: whether a round of it was recorded.
        whole: whether the current round was seen from its start.
        waiting: depth 0 of the round that is about to draft, and its committed length.
    """

    sink: int
    prompt: int
    begun: bool = False
    whole: bool = False
    waiting: tuple[int, dict[str, list[float]]] | None = None


class Probe:
    """Watches one draft model in one scheduler process."""

    def __init__(
        self,
        runner: Any,
        rate: float,
        boundaries: tuple[int, ...] = (),
        exporter: Exporter | None = None,
        ranks: int = 1,
    ) -> None:
        """``runner`` is SGLang's ModelRunner of the draft; ``boundaries`` name the captured states, if known."""
        self.runner, self.rate, self.boundaries, self.exporter, self.ranks = runner, rate, boundaries, exporter, ranks
        self.record, self.rounds, self.unseen = Record(), 0, 0
        self.requests: OrderedDict[str, Request] = OrderedDict()
        self.sampled = False
        self.random = random.Random(0)
        self.scene: Scene | None = None
        self.path: list[Tensor] = []
        """Cache slots of the drafted rows of this round, one tensor a step."""

    def attach(self) -> None:
        """Wrap the draft model's forward, and hook its attention layers and its ``fc``."""
        model = self.runner.model
        model.forward = self._around(model.forward)
        for name, module in model.named_modules():
            if isinstance(module, RadixAttention):
                module.register_forward_hook(self._attended, with_kwargs=True)
            elif name.rpartition(".")[2] == "fc":
                module.register_forward_hook(self._fused)

    def to_json(self) -> dict[str, Any]:
        """What ``/server_info`` shows."""
        return {
            "rate": self.rate,
            "rounds": self.rounds,
            "layers_not_seen": self.unseen,
            "heads": "all" if self.ranks == 1 else f"those of rank 0 of {self.ranks}",
            "record": self.record.to_json(),
        }

    def _around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
            mode = forward_batch.forward_mode
            if mode.is_extend() or mode.is_draft_extend_v2():  # a round begins
                self.sampled = self.random.random() < self.rate
            self.scene = open_scene(positions, forward_batch, self.sampled)
            if self.scene is None:
                return forward(input_ids, positions, forward_batch, *args, **kwargs)
            if self.scene.kind == "draft":
                self._extend_path(self.scene, forward_batch.out_cache_loc)
            try:
                out = forward(input_ids, positions, forward_batch, *args, **kwargs)
                self._close(self.scene, out)
            finally:
                self.scene = None
            return out

        return watched

    def _extend_path(self, scene: Scene, slots: Tensor) -> None:
        if scene.depth == 1:
            self.path = []
        self.path.append(slots.clone())
        scene.whole = len(self.path) == scene.depth

    def _fused(self, module: Any, args: Any, out: Any) -> None:
        if self.scene is not None and self.scene.depth == 0:
            self.scene.fused = out[0] if isinstance(out, tuple) else out

    @torch.inference_mode()
    def _attended(self, layer: Any, args: Any, kwargs: Any, out: Any) -> None:
        scene = self.scene
        if scene is None:
            return
        query = keys.query_of(layer, args[0], kwargs)
        for rows in scene.requests:
            if scene.depth == 0:
                asked = rows.located + ([rows.last] if scene.sampled else [])
                at = torch.tensor(asked, device=query.device)
                places = rows.length - 1 - (rows.last - at)  # [rows]
                found = keys.committed(self.runner, layer, rows, args[1], scene.fresh(rows))
                own, columns = places, torch.arange(rows.length, device=query.device)
                visible = columns <= places.unsqueeze(1)
            else:
                if not scene.whole or rows.rid not in self.requests:
                    continue
                at = torch.arange(rows.first, rows.last + 1, device=query.device)
                found = keys.drafted(self.runner, layer, rows, [slots[at] for slots in self.path])
                columns, visible, own = keys.branches(rows.length, len(at), scene.depth, query.device)
                places = columns[own]
            if found is None or not len(at):
                self.unseen += found is None
                continue
            window = layer.sliding_window_size
            if window is not None and window >= 0:  # SGLang's window counts the keys before the query
                visible = visible & (columns >= places.unsqueeze(1) - window)
            sinks = kwargs.get("sinks")
            weight = attention.weights(query[at], found, visible, layer.scaling, float(layer.logit_cap or 0.0), sinks)
            rows.keep(weight, visible, columns, own, len(rows.located) if scene.depth == 0 else 0)

    def _close(self, scene: Scene, out: Any) -> None:
        if scene.kind == "prefill":
            for rows, sink in zip(scene.requests, scene.sinks(), strict=True):
                if sink is not None:
                    self._locate(rows, sink)
        if not scene.sampled:
            return
        handed = getattr(out, "hidden_states", None)
        for index, rows in enumerate(scene.requests):
            request = self.requests.get(rows.rid)
            if request is None or not rows.views:
                continue
            values = self._attention(scene.depth, rows, request)
            if handed is not None and scene.fed is not None:
                values |= self._states(scene, rows, index, handed)
            self._keep(scene.depth, rows.length, request, values)

    def _keep(self, depth: int, length: int, request: Request, values: dict[str, list[float]]) -> None:
        """Depth 0 waits for the round's first drafted row; a round that was not seen from its start is left out."""
        if depth == 0:
            request.waiting = length, values
            return
        if depth == 1:
            waiting, request.waiting = request.waiting, None
            request.whole = waiting is not None and waiting[0] == length
            if waiting is not None and request.whole:
                self._add(0, waiting[1])
                self.rounds += 1
                if not request.begun:
                    self.record.located(request.sink)
                request.begun = True
        if request.whole:
            self._add(depth, values)

    def _locate(self, rows: Rows, sink: int) -> None:
        if rows.rid.startswith(HEALTH_CHECK_RID_PREFIX):  # SGLang's own requests of one token
            return
        known = self.requests.pop(rows.rid, None)
        # A prompt comes in chunks; what is prefilled after a round was drafted is a request that was retracted.
        begun = known is not None and known.begun
        prompt = known.prompt if known is not None and begun else rows.length
        self.requests[rows.rid] = Request(sink, prompt, begun)
        if len(self.requests) > REQUESTS:
            self.requests.popitem(last=False)

    def _attention(self, depth: int, rows: Rows, request: Request) -> dict[str, list[float]]:
        values: dict[str, list[float]] = {}
        for weight, visible, columns, own in rows.views:
            kind = attention.kinds(columns, request.sink, request.prompt, rows.length)
            measured = attention.measure(weight, visible, kind, own)
            if depth == 0:
                measured |= attention.near(weight, own)
            for name, row in zip(measured, torch.stack(list(measured.values())).tolist(), strict=True):
                values.setdefault(name, []).extend(row)
        return values

    def _states(self, scene: Scene, rows: Rows, index: int, handed: Tensor) -> dict[str, list[float]]:
        assert scene.fed is not None
        one = slice(rows.last, rows.last + 1) if scene.depth == 0 else slice(rows.first, rows.last + 1)
        # After a prefill SGLang hands out one state a request, after any other forward one a row.
        last = slice(index, index + 1) if scene.kind == "prefill" and len(handed) == len(scene.requests) else one
        captured, out = scene.fed[one], handed[last]
        fed = captured if scene.fused is None else scene.fused[one]
        values: dict[str, list[float]] = {"rms_handed": states.rms(out).tolist()}
        if fed.shape == out.shape:
            values |= {"rms_fed": states.rms(fed).tolist(), "cosine": states.cosine(fed, out).tolist()}
        if scene.depth == 0 and captured.shape[-1] % max(1, len(self.boundaries)) == 0:
            names: tuple[Any, ...] = self.boundaries or ("all",)
            parts = states.rms(captured[0].view(len(names), -1)).tolist()
            values |= {f"rms_captured_{name}": [size] for name, size in zip(names, parts, strict=True)}
        return values

    def _add(self, depth: int, values: dict[str, list[float]]) -> None:
        self.record.add(depth, values)
        if self.exporter is not None:
            self.exporter.add(depth, values)
