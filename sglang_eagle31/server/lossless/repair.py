"""The repairs on SGLang's objects: around its verification, and before a prefill of requests that have output.

Dimensions: B requests; N nodes of a tree; V vocabulary; D nodes of the longest path.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from sglang_eagle31.server.lossless import filters, paths, penalties, processors
from sglang_eagle31.server.lossless.asks import ALL_TOKENS, Asks, padded, stop_tokens
from sglang_eagle31.server.lossless.copies import on
from sglang_eagle31.server.lossless.ledger import Ledgers

LEDGERS = Ledgers()
"""Of the requests in this process, which has one scheduler."""


def verify(
    sample: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """SGLang's ``eagle_sample`` with logits that are those of its sampler without speculation, at every node.

    ``logits_output.next_token_logits`` [B*N, V] is changed in place as ``eagle_sample`` does, so that log
    probabilities are taken from what was sampled from; top-k, top-p and min-p do not show in it.
    """
    info = batch.sampling_info
    if batch.forward_mode.is_idle() or (asks := Asks.of(batch.reqs, info)).none(info):
        return sample(verify_input, batch, logits_output, grammar_mask, *args, **kwargs)
    tree = Tree(verify_input, batch)
    logits, shown = logits_output.next_token_logits, logits_output
    changes: dict[str, Any] = {"acc_additive_penalties": None, "acc_scaling_penalties": None}
    tree.penalise(logits, asks)
    if asks.processed or asks.filtered:
        # They come after bias and grammar, which SGLang would apply inside.
        if info.logit_bias is not None:
            logits.view(len(batch.reqs), tree.nodes, -1).add_(info.logit_bias.unsqueeze(1))
        if grammar_mask is not None:
            grammar_mask.apply(logits)
        changes["logit_bias"], grammar_mask = None, None
    if asks.processed:
        tree.process(logits, asks)
    if asks.filtered and not info.is_all_greedy:
        shown = copy.copy(logits_output)
        min_p = any(batch.reqs[row].sampling_params.min_p > 0 for row in asks.filtered)
        shown.next_token_logits, more = filtered(logits, tree.nodes, info, asks.filtered, min_p)
        changes |= more
    batch.sampling_info = dataclasses.replace(info, **changes)
    try:
        result = sample(verify_input, batch, shown, grammar_mask, *args, **kwargs)
    finally:
        batch.sampling_info = info
    rows = asks.remembered()
    if rows:
        LEDGERS.commit([batch.reqs[row] for row in rows], rows, paths.accepted_tokens(tree.tokens, result[2]))
    return result


class Tree:
    """The trees of one verification."""

    def __init__(self, verify_input: Any, batch: Any) -> None:
        self.batch = batch
        self.nodes: int = verify_input.draft_token_num
        self.tokens = verify_input.draft_token.view(-1, self.nodes).long()
        parent = paths.parents(verify_input.retrieve_next_token.long(), verify_input.retrieve_next_sibling.long())
        self.paths = paths.path_tokens(self.tokens, parent, verify_input.max_tree_depth)

    def penalise(self, logits: torch.Tensor, asks: Asks) -> None:
        """Penalties and ``min_new_tokens`` on logits [B*N, V], in place."""
        reqs, size, device = self.batch.reqs, logits.shape[-1], logits.device
        if asks.counted:
            chosen = [reqs[row] for row in asks.counted]
            with Rows(logits, self.nodes, asks.counted) as part:
                counts = LEDGERS.counts(chosen, size, device)
                penalties.penalise(part.logits, penalties_of(chosen, device), counts, self.paths[part.index])
        if asks.short:
            chosen = [reqs[row] for row in asks.short]
            with Rows(logits, self.nodes, asks.short) as part:
                # What is in the KV cache before the tree is the prompt and the output without the root.
                known = output_lengths(self.batch, part.index, chosen).unsqueeze(1)
                lengths = known + (self.paths[part.index] >= 0).sum(2)
                penalties.forbid_stops(part.logits, *stops_of(chosen, size, device), lengths)

    def process(self, logits: torch.Tensor, asks: Asks) -> None:
        """Custom logit processors on logits [B*N, V], in place."""
        reqs, info = self.batch.reqs, self.batch.sampling_info
        index = on(logits.device, asks.processed)
        at_nodes = dict(zip(asks.processed, self.paths[index].tolist(), strict=True))
        params = {
            row: processors.params_at_nodes(
                info.custom_params[row],
                reqs[row],
                LEDGERS.find(reqs[row]).read(),
                [processors.root_first(path) for path in nodes],
            )
            for row, nodes in at_nodes.items()
        }
        for entry in info.custom_logit_processor.values():
            rows = entry.indices.to(logits.device)
            processors.run(logits, self.nodes, entry.processor, rows, [params[row] for row in entry.rows])


class Rows:
    """Some requests' logits [R, N, V] to change in place; a copy that is written back unless all are wanted."""

    def __init__(self, logits: torch.Tensor, nodes: int, rows: list[int]) -> None:
        self._all = logits.unflatten(0, (-1, nodes))
        self.index = on(logits.device, rows)
        self._whole = len(rows) == len(self._all)
        self.logits = self._all if self._whole else self._all[self.index]

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._whole:
            self._all[self.index] = self.logits


def filtered(
    logits: torch.Tensor, nodes: int, info: Any, rows: list[int], min_p: bool
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits [B*N, V] with top-k, top-p and min-p of some requests in them, and the limits without these requests'.

    ``min_p`` says whether one of them asks for it, as the host knows.
    """
    from sglang.srt.runtime_context import get_exec

    top_k, top_p = filter_functions(logits)
    in_turn = min_p and get_exec().kernel.sampling_backend in ("flashinfer", "intel_xpu")
    out = logits.clone()
    index = on(logits.device, rows)
    limits = [limit[index].repeat_interleave(nodes) for limit in (info.top_ks, info.top_ps, info.min_ps)]
    temperatures = info.temperatures[index].repeat_interleave(nodes, dim=0)
    with Rows(out, nodes, rows) as part:
        flat = part.logits.flatten(0, 1)
        kept = filters.keep(flat, limits, temperatures, top_k, top_p, joint=True)
        if in_turn:
            turned = filters.keep(flat, limits, temperatures, top_k, top_p, joint=False)
            kept = torch.where(limits[2].unsqueeze(1) > 0, turned, kept)
        part.logits.copy_(kept.view_as(part.logits))
    return out, {
        "top_ks": info.top_ks.index_fill(0, index, ALL_TOKENS),
        "top_ps": info.top_ps.index_fill(0, index, 1.0),
    }


def filter_functions(logits: torch.Tensor) -> tuple[filters.Filter, filters.Filter]:
    """Top-k and top-p for the device of ``logits``."""
    if logits.is_cuda:
        from sgl_kernel import top_k_renorm_prob, top_p_renorm_prob

        return top_k_renorm_prob, top_p_renorm_prob
    from sglang_eagle31.server.cpu.filters import keep_top_k, keep_top_p

    return keep_top_k, keep_top_p


def penalties_of(reqs: list[Any], device: torch.device) -> penalties.Penalties:
    """The penalties that requests ask for."""
    params = [req.sampling_params for req in reqs]
    return penalties.Penalties.of(
        [(p.frequency_penalty, p.presence_penalty, p.repetition_penalty) for p in params], device
    )


def stops_of(reqs: list[Any], vocab_size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Stop tokens int64 [R, S] and ``min_new_tokens`` [R] of requests."""
    stops = padded([stop_tokens(req, vocab_size) for req in reqs])
    minimum = [req.sampling_params.min_new_tokens for req in reqs]
    shaped = on(device, stops, torch.long).reshape(len(reqs), -1)
    return shaped, on(device, minimum)


def output_lengths(batch: Any, index: torch.Tensor, reqs: list[Any]) -> torch.Tensor:
    """Output tokens [R] that a batch's ``seq_lens`` count, on its device."""
    prompts = on(index.device, [len(req.origin_input_ids) for req in reqs])
    lengths: torch.Tensor = batch.seq_lens[index]
    return lengths - prompts
