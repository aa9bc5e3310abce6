"""Start values in closed form: the head begins as the best linear predictor of the target's next final state.

On a small budget this replaces the first few hundred optimiser steps. Over supervised rows ``t`` it solves

    final[t+1] / gain  ~  A u_t + B e_t        u: what fc reads, e: normed embedding of token t+1

where ``gain`` is the weight of the target's final norm. ``A`` goes to ``fc``; the best approximation of ``B`` that fits
the width of the value heads goes to ``v_proj`` and ``o_proj``. ``q`` and ``k`` of the embedding half share one random
projection, so that attention starts on the row itself. The target's output rows, times ``gain``, become ``lm_head``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_eagle31.tools.train.data import Sample
from sglang_eagle31.tools.train.model import DraftHead

SELF_ATTENTION = 6.0
"""Start value of a row's attention score on itself (in a softmax over the context)."""


@torch.no_grad()
def closed_form(
    head: DraftHead,
    samples: list[Sample],
    embedding: Tensor,
    target_rows: Tensor,
    gain: Tensor,
    seed: int,
    limit: int = 1000,
) -> float:
    """Fill ``head`` in place from at most ``limit`` samples; returns the explained share of the variance.

    embedding ``[V, H]``, target_rows ``[V_d, H_t]``, gain ``[H_t]``. Needs H == H_t.
    """
    _small_random(head, torch.Generator().manual_seed(seed))
    samples = samples[:limit]
    _scale_norms(head, samples, embedding)
    inputs, wanted = _rows(head, samples, embedding, gain)
    solution, explained = _ridge(inputs, wanted)
    width = head.fc.in_features
    head.fc.weight.copy_(solution[:width].T)
    _embed_path(head, solution[width:], inputs[:, width:])
    head.norm.weight.fill_(1.0)
    head.lm_head.weight.copy_(target_rows * gain)
    return explained


def _small_random(head: DraftHead, generator: torch.Generator) -> None:
    for module in head.modules():
        if isinstance(module, torch.nn.Linear):
            scale = 0.02 if module is not head.midlayer.mlp.down_proj else 0.002
            module.weight.copy_(scale * torch.randn(module.weight.shape, generator=generator))
        elif isinstance(module, torch.nn.RMSNorm):
            module.weight.fill_(1.0)


def _scale_norms(head: DraftHead, samples: list[Sample], embedding: Tensor) -> None:
    """Give every channel that ``fc`` and the embedding half read unit variance: Adam's steps then fit all of them."""
    if head.config.fc_norm:
        states = torch.cat([s.states for s in samples[:100]]).float()
        for norm, chunk in zip(head.fc_norm, states.chunk(len(head.fc_norm), dim=-1), strict=True):
            assert isinstance(norm, torch.nn.RMSNorm)
            norm.weight.copy_(1.0 / norm(chunk).std(dim=0).clamp_min(0.05))
    ids = torch.cat([s.ids for s in samples[:100]]).long()
    embeds = head.midlayer.input_layernorm
    embeds.weight.copy_(1.0 / embeds(F.embedding(ids, embedding)).std(dim=0).clamp_min(0.05))


def _rows(head: DraftHead, samples: list[Sample], embedding: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    inputs, wanted = [], []
    for s in samples:
        rows = s.mask[2:].nonzero()[:, 0]
        e = head.midlayer.input_layernorm(F.embedding(s.ids.long()[rows + 1], embedding))
        inputs.append(torch.cat([head.normed_states(s.states[rows].float()), e], dim=-1))
        wanted.append(s.final[rows + 1].float() / gain)
    return torch.cat(inputs), torch.cat(wanted)


def _ridge(inputs: Tensor, wanted: Tensor, strength: float = 1e-2) -> tuple[Tensor, float]:
    """``solution [D, H]`` without an intercept, and the explained share of the squared target."""
    gram = (inputs.T @ inputs).double() / len(inputs)
    gram.diagonal().mul_(1.0 + strength)  # relative to each channel: captured states differ in scale by orders
    solution = torch.linalg.solve(gram, (inputs.T @ wanted).double() / len(inputs)).float()
    error = (wanted - inputs @ solution).square().sum() / wanted.square().sum()
    return solution, 1.0 - float(error)


def _embed_path(head: DraftHead, solution: Tensor, embeds: Tensor) -> None:
    """Put ``solution [H, H]`` (rows: embedding channels) into v and o, cut to the rank that the value heads carry."""
    c, attention = head.config, head.midlayer.self_attn
    group, rank = c.num_attention_heads // c.num_key_value_heads, c.num_key_value_heads * c.head_dim
    _, _, directions = torch.linalg.svd(embeds[:20000] @ solution, full_matrices=False)
    basis = directions[:rank].T  # [H, rank], orthonormal directions of the output
    half = c.hidden_size
    values = torch.zeros(rank, half)
    values[: basis.shape[1]] = (solution @ basis).T
    attention.v_proj.weight[:, :half] = values
    out = torch.zeros(half, rank)
    out[:, : basis.shape[1]] = basis / group
    per_head = out.view(half, c.num_key_value_heads, 1, c.head_dim).expand(-1, -1, group, -1)
    attention.o_proj.weight.copy_(per_head.reshape(half, -1))
    keys = attention.k_proj.weight[:, :half]
    size = (embeds[:2000] @ keys.T).view(-1, c.num_key_value_heads, c.head_dim).square().sum(-1).mean()
    keys.mul_((SELF_ATTENTION * c.head_dim**0.5 / size).sqrt())
    shared = keys.view(c.num_key_value_heads, 1, c.head_dim, half).expand(-1, group, -1, -1)
    attention.q_proj.weight[:, :half] = shared.reshape(-1, half)
