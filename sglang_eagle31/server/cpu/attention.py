"""SGLang's attention backend for EAGLE on a CPU: prefill, decode, tree verification, draft decoding, draft extend."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.layers.attention import attention_registry
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.runtime_context import attention_backends, get_spec

from sglang_eagle31.server.cpu import attend, masks, packed
from sglang_eagle31.server.options import shared

NAME = "torch_native"
ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")


@dataclass
class Plan:
    """What all layers of one forward share.

    Attributes:
        slots: cache slot of each key column: ``[B, L]``, or a slice when one request's slots follow each other.
        rows: query rows a request, or 0 for prefill, where they differ.
        visible: ``[B, n, L]``, or None when every key is visible.
        query, key: positions of rows ``[B, n]`` and columns ``[B, L]``; only windows need them.
        lengths: prefill only: (new tokens, all tokens) of each request.
        biases: mask in the form that attention adds, by window, groups and dtype.
    """

    slots: torch.Tensor | slice
    rows: int
    visible: torch.Tensor | None = None
    query: torch.Tensor | None = None
    key: torch.Tensor | None = None
    lengths: list[tuple[int, int]] = field(default_factory=list)
    biases: dict[tuple[int, int, torch.dtype], torch.Tensor] = field(default_factory=dict)
    swa_slots: torch.Tensor | None = None

    def bias(self, window: int, groups: int, dtype: torch.dtype) -> torch.Tensor | None:
        """The mask of one layer; made once a forward for all layers of the same kind."""
        if window < 0 and self.visible is None:
            return None
        made = (window, groups, dtype)
        if made not in self.biases:
            visible = self.visible
            if visible is None:
                assert self.query is not None and self.key is not None
                visible = torch.ones(*self.query.shape, self.key.shape[1], dtype=torch.bool)
            if window >= 0:
                assert self.query is not None and self.key is not None
                visible = masks.within(visible, self.query, self.key, window)
            self.biases[made] = masks.bias(visible, groups, dtype)
        return self.biases[made]


class TreeAttentionBackend(AttentionBackend):
    """Attention over SGLang's KV pools in torch; the plan of a forward is made once and read by every layer."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.max_context_len = model_runner.model_config.context_len
        self.swa = isinstance(self.token_to_kv_pool, SWAKVPool) and self.token_to_kv_pool.swa_layer_nums > 0
        self.swa_out_cache_loc: torch.Tensor | None = None
        self.plan: Plan | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Make the plan of one forward from SGLang's batch."""
        self._translate_writes(forward_batch)
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self.plan = None
        elif mode.is_target_verify():
            self.plan = self._verify_plan(forward_batch)
        elif mode.is_decode():
            self.plan = self._chain_plan(forward_batch, forward_batch.seq_lens - 1, 1)
        elif mode.is_draft_extend_v2():
            rows = forward_batch.input_ids.shape[0] // forward_batch.batch_size
            self.plan = self._chain_plan(forward_batch, forward_batch.seq_lens - rows, rows)
        else:
            totals = forward_batch.seq_lens.tolist()
            news = forward_batch.extend_seq_lens.tolist()
            slots = self._slots(forward_batch.req_pool_indices, max(totals))
            self.plan = Plan(slots, 0, lengths=list(zip(news, totals, strict=True)))

    def forward_decode(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """See `forward_extend`; the plan knows the difference."""
        return self.forward_extend(q, k, v, layer, forward_batch, *args, **kwargs)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the new keys and values and attend: ``[tokens, heads * D]`` to ``[tokens, heads * Dv]``.

        Raises:
            ValueError: cross attention or encoder attention, which no EAGLE target uses.
        """
        if layer.is_cross_attention or layer.attn_type != AttentionType.DECODER:
            raise ValueError(f"EAGLE on a CPU serves decoder attention only, not {layer.attn_type}")
        if save_kv_cache and k is not None and v is not None:
            where = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, where, k, v)
        assert self.plan is not None, "init_forward_metadata comes first"
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        slots = self._layer_slots(layer.layer_id)
        query = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        window = -1 if layer.sliding_window_size is None else layer.sliding_window_size
        cap = float(layer.logit_cap or 0.0)
        if self.plan.rows == 0:
            return self._prefill(query, keys, values, slots, (layer.scaling, window, cap, sinks))
        key, value = _take(keys, slots), _take(values, slots)
        query = query.view(-1, self.plan.rows, layer.tp_q_head_num, layer.qk_head_dim)
        bias = self.plan.bias(window, layer.tp_q_head_num // key.shape[2], q.dtype)
        return attend.rows(query, key, value, bias, layer.scaling, cap, sinks).flatten(0, 1)

    def support_triton(self) -> bool:
        """Triton has no CPU kernels."""
        return False

    def _prefill(self, query: Any, keys: Any, values: Any, slots: Any, how: tuple[Any, ...]) -> torch.Tensor:
        assert self.plan is not None
        scale, window, cap, sinks = how
        out, start = [], 0
        for index, (new, total) in enumerate(self.plan.lengths):
            if isinstance(slots, slice):
                key, value = keys[slots], values[slots]
            else:
                key, value = keys[slots[index, :total]], values[slots[index, :total]]
            out.append(attend.prefill(query[start : start + new], key, value, scale, window, cap, sinks))
            start += new
        return out[0] if len(out) == 1 else torch.cat(out)

    def _chain_plan(self, forward_batch: Any, base: torch.Tensor, rows: int) -> Plan:
        length = int(base.max()) + rows
        everything = rows == 1 and base.shape[0] == 1
        return Plan(
            self._slots(forward_batch.req_pool_indices, length),
            rows,
            None if everything else masks.chain(base, rows, length),
            base.view(-1, 1) + torch.arange(rows),
            torch.arange(length).expand(base.shape[0], -1),
        )

    def _verify_plan(self, forward_batch: Any) -> Plan:
        spec, base = forward_batch.spec_info, forward_batch.seq_lens
        rows = spec.draft_token_num
        if spec.tree_topk == 1:
            return self._chain_plan(forward_batch, base, rows)
        batch, length = base.shape[0], int(base.max()) + rows
        ancestors = spec.custom_mask[: batch * rows * rows].view(batch, rows, rows)
        position = spec.positions.view(batch, rows)
        offset = torch.arange(length) - base.view(-1, 1)
        drafted = position.gather(1, offset.clamp(0, rows - 1))
        return Plan(
            self._slots(forward_batch.req_pool_indices, length),
            rows,
            masks.tree(base, ancestors, length),
            position,
            torch.where(offset < 0, torch.arange(length), drafted),
        )

    def _slots(self, requests: torch.Tensor, length: int) -> torch.Tensor | slice:
        table: torch.Tensor = self.req_to_token
        if requests.shape[0] > 1:
            return table[requests, :length].long()
        row = table[int(requests[0]), :length]
        first = int(row[0])
        # Slots of one request mostly follow each other: then the keys are a view of the pool, not a copy.
        if int(row[-1]) - first == length - 1 and bool((row.diff() == 1).all()):
            return slice(first, first + length)
        return row.long().unsqueeze(0)

    def _layer_slots(self, layer_id: int) -> torch.Tensor | slice:
        """The slots of one layer: those of a sliding-window layer lie in a pool of their own."""
        assert self.plan is not None
        slots = self.plan.slots
        if not self.swa or not self.token_to_kv_pool.layers_mapping[layer_id][1]:
            return slots
        if self.plan.swa_slots is None:
            full = torch.arange(slots.start, slots.stop).unsqueeze(0) if isinstance(slots, slice) else slots
            self.plan.swa_slots = self.token_to_kv_pool.translate_loc_from_full_to_swa(full).long()
        return self.plan.swa_slots

    def _translate_writes(self, forward_batch: Any) -> None:
        self.swa_out_cache_loc = None
        if self.swa and forward_batch.out_cache_loc is not None:
            self.swa_out_cache_loc = self.token_to_kv_pool.translate_loc_from_full_to_swa(forward_batch.out_cache_loc)


class MultiStepDraftBackend:
    """One backend a draft step; slots and masks of all steps are made once a round."""

    def __init__(self, model_runner: Any, topk: int, num_steps: int) -> None:
        self.topk = topk
        self.num_steps = num_steps
        self.attn_backends = [TreeAttentionBackend(model_runner) for _ in range(num_steps - 1)]

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Make the plan of every step from SGLang's draft batch; its ``seq_lens`` are the committed tokens."""
        first, base = self.attn_backends[0], forward_batch.seq_lens
        length = int(base.max()) + self.topk * self.num_steps
        slots = first._slots(forward_batch.req_pool_indices, length)
        column = torch.arange(length)
        offset = column - base.view(-1, 1)
        key = torch.where(offset < 0, column, base.view(-1, 1) + offset.remainder(self.num_steps))
        for step, backend in enumerate(self.attn_backends):
            backend._translate_writes(forward_batch)
            query = (base.view(-1, 1) + step).expand(-1, self.topk)
            visible = masks.branches(base, self.topk, self.num_steps, step, length)
            backend.plan = Plan(slots, self.topk, visible, query, key)


def _take(pool: torch.Tensor, slots: torch.Tensor | slice) -> torch.Tensor:
    """``[slots, heads, D]`` to ``[B, L, heads, D]``; a view where the slots follow each other."""
    if isinstance(slots, slice):
        return pool[slots].unsqueeze(0)
    return pool.index_select(0, slots.reshape(-1)).view(*slots.shape, *pool.shape[1:])


def register_backend() -> None:
    """Put our backend in the place of torch_native for EAGLE; other servers keep SGLang's."""
    stock = attention_registry.ATTENTION_BACKENDS[NAME]

    def create(runner: Any) -> Any:
        if get_spec().speculative_algorithm not in ALGORITHMS:
            return stock(runner)
        if shared(runner.server_args).pack_weights == "on":
            packed.pack_runner(runner)
        return TreeAttentionBackend(runner)

    attention_registry.register_attention_backend(NAME)(create)
    register_latent()


def register_latent() -> None:
    """Have SGLang's MLA layers absorb their prompts too.

    For a backend that it does not know, SGLang writes a prompt's latents to the cache and gives the backend whole keys
    and values beside it; this one, as stock torch_native, attends to the cache alone.
    """
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    stock = AttentionBackendRegistry.get_handler(NAME)

    def choose(layer: Any, forward_batch: Any) -> Any:
        method = stock(layer, forward_batch)
        ours = get_spec().speculative_algorithm in ALGORITHMS
        return AttnForwardMethod.MLA if ours and method == AttnForwardMethod.MHA else method

    AttentionBackendRegistry.register(NAME, choose)


def draft_decode_backend(factory: Any) -> Any:
    """The draft decode backend of a DraftBackendFactory whose decode backend is torch_native, else None."""
    if not _is_ours(factory, attention_backends()[1]):
        return None
    return multi_step_backend(factory.draft_model_runner, factory.topk, factory.speculative_num_steps)


def multi_step_backend(runner: Any, topk: int, num_steps: int) -> MultiStepDraftBackend | None:
    """The draft decode backend of one shape; None where the draft's layer runs only after verification."""
    if num_steps <= 1:
        return None
    backend = MultiStepDraftBackend(runner, topk, num_steps)
    for each in (backend, *backend.attn_backends):
        each.prefill_attention_backend_str = each.decode_attention_backend_str = NAME  # type: ignore[attr-defined]
    return backend


def draft_extend_backend(factory: Any) -> Any:
    """The draft extend backend of a DraftBackendFactory whose prefill backend is torch_native, else None."""
    if not _is_ours(factory, attention_backends()[0]):
        return None
    backend = TreeAttentionBackend(factory.draft_model_runner)
    backend.prefill_attention_backend_str = backend.decode_attention_backend_str = NAME
    return backend


def _is_ours(factory: Any, configured: str | None) -> bool:
    return (factory.draft_attn_backend or configured) == NAME
