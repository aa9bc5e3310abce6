"""A target that always says one token, and heads that say it only if everything in them was loaded and wired right.

Every block of the target writes something of its own into the residual stream, so each captured boundary is another
state. A head has random weights (`truth.producers.canonical`), and its ``lm_head`` is solved for: the independent
reference computes the states of the one right computation over a whole request, the row of the token says 1 for each
of them, and pairs of decoy rows look along every direction that these states do not span. Whatever moves a state out of
that span by half a percent, be it another layer, norm, bias, position or vocabulary, makes the head say a decoy.

With 3 steps, topk 1 and 4 draft tokens the accept length is 4.0 for a head that runs as trained, 1.0 if its first
drafted token is wrong, and 2.0 if only the state that is fed back is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from truth import producers
from truth.reference import Head, Session, Switches, tensor_shapes

TOKEN = 77
SHAPE = producers.Shape(hidden=128, target_hidden=128)
PROMPT = tuple(range(100, 120))
TREE = (3, 1, 4)
STEPS, ROUNDS = 3, 6
NEW_TOKENS = 1 + ROUNDS * (STEPS + 1)
SHARPNESS = 200.0
"""Of the decoy rows, against 1 for the token: a state of which 0.5 % is foreign is lost, rounding is not."""


@dataclass(frozen=True)
class Stream:
    """What the target computes for the request: embeddings ``[V, H]`` and states ``[tokens, H]`` of each boundary."""

    model: LlamaForCausalLM
    boundaries: tuple[Tensor, ...]
    final: Tensor

    @property
    def embed(self) -> Tensor:
        """``[V, H]``."""
        return self.model.model.embed_tokens.weight.detach()

    def captured(self, switches: Switches) -> Tensor:
        """What a head is fed for each token, ``[tokens, k * H]``; without captured states the final one."""
        if not switches.use_aux_hidden_state:
            return self.final
        return torch.cat([self.boundaries[b] for b in switches.boundaries], dim=-1)


@cache
def stream() -> Stream:
    """The target and its states over the prompt and the answer. ``lm_head`` does not matter to them."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=SHAPE.vocab,
        hidden_size=SHAPE.target_hidden,
        intermediate_size=160,
        num_hidden_layers=SHAPE.target_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=SHAPE.max_positions,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).float().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.data.normal_(0, 1.0 if "embed" in name else 0.12)
    model.model.norm.weight.data.uniform_(0.5, 1.5)
    ids = torch.tensor([[*PROMPT, *[TOKEN] * NEW_TOKENS]])
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    return Stream(model, tuple(state[0] for state in states[:-1]), states[-1][0])


def simulate(head: Head) -> Tensor:
    """What ``lm_head`` is fed for every drafted token of the request, ``[rounds, steps, H]``."""
    known = stream()
    captured = known.captured(head.switches)
    whole, head.lm_head = head.lm_head, torch.eye(head.switches.hidden_size)
    session, start, rows = Session(head), 0, []
    for index in range(ROUNDS):
        end = len(PROMPT) + index * (STEPS + 1)
        ids = torch.tensor([*PROMPT, *[TOKEN] * NEW_TOKENS])[start + 1 : end + 1]
        states, fed_back = session.prefill(captured[start:end], ids, torch.arange(start, end))
        drafted, state = [states[-1]], fed_back[-1]
        for step in range(1, STEPS):
            out, state = session.step(TOKEN, state, end + step - 1)
            drafted.append(out)
        session.truncate(end)
        rows.append(torch.stack(drafted))
        start = end
    head.lm_head = whole
    return torch.stack(rows)


def accept_length(head: Head) -> float:
    """Of the request, by the reference, as if every draft before were right."""
    best = (simulate(head) @ head.lm_head.T).argmax(-1)
    right = head.hot[best] == TOKEN
    return 1.0 + float(right.cumprod(dim=1).sum(dim=1).float().mean())


def switches_of(variant: str, shape: producers.Shape = SHAPE, trained: Mapping[str, Any] | None = None) -> Switches:
    """The computation that a producer's variant was trained with, ``trained`` on top."""
    return Switches(**{**producers.VARIANTS[variant].facts(shape), **(trained or {})})


def solve(states: Tensor, others: Tensor, rows: int, hot: int) -> Tensor:
    """Output rows ``[rows, H]``: row ``hot`` is 1 on ``states`` and 0 on ``others``, decoys see what neither spans."""
    both = torch.cat([states, others]).double()
    _, values, directions = torch.linalg.svd(both, full_matrices=True)
    rank = int((values > 1e-5 * values[0]).sum())
    wanted = torch.cat([torch.ones(len(states)), torch.zeros(len(others))]).double()
    decoys = directions[rank:] * SHARPNESS / both.norm(dim=1).mean() * directions.shape[1] ** 0.5
    assert 2 * len(decoys) < rows, f"{rows} rows cannot hold {len(decoys)} pairs of decoys"
    out = torch.zeros(rows, states.shape[1], dtype=torch.float64)
    free = [row for row in range(rows) if row not in (hot, TOKEN)]
    out[free[: 2 * len(decoys)]] = torch.cat([decoys, -decoys])
    out[hot] = torch.linalg.lstsq(both, wanted, driver="gelsd").solution
    return out.float()


@cache
def target_rows() -> Tensor:
    """The target's ``lm_head``: the token for its own states and for those of the one head that shares it."""
    weights = producers.head("nvidia_no_head", SHAPE)
    head = Head(switches_of("nvidia_no_head"), weights, stream().embed, torch.zeros(SHAPE.vocab, SHAPE.hidden))
    own = stream().final[len(PROMPT) - 1 :]
    return solve(torch.cat([own, simulate(head).flatten(0, 1)]), own[:0], SHAPE.vocab, TOKEN)


def write_target(folder: Path) -> Path:
    """The target on disk."""
    model = stream().model
    model.lm_head.weight.data.copy_(target_rows())
    model.save_pretrained(folder)
    return folder


def weights_of(
    variant: str, shape: producers.Shape = SHAPE, trained: Mapping[str, Any] | None = None, **knobs: Any
) -> dict[str, Tensor]:
    """A producer's head under canonical names with ``lm_head`` solved; a shipped embedding is the target's.

    ``trained`` are switches that differ from the variant's. ``knobs`` are those of `producers.canonical`;
    ``own_embedding=True`` draws another embedding.
    """
    if producers.VARIANTS[variant].weights.get("own_embedding"):
        knobs = {"own_embedding": stream().embed, **knobs}
    weights = producers.head(variant, shape, **knobs)
    if "lm_head.weight" not in weights:
        return weights
    head = reference(weights, fitted(switches_of(variant, shape, trained), weights))
    states = simulate(head).flatten(0, 1)
    hot = int((head.hot == TOKEN).nonzero())
    weights["lm_head.weight"] = solve(states, states[:0], len(head.hot), hot)
    return weights


def fitted(switches: Switches, weights: Mapping[str, Tensor]) -> Switches:
    """``switches`` with everything that the tensors themselves show."""
    rows = len(weights["lm_head.weight"]) if "lm_head.weight" in weights else switches.vocab_size
    first = "layers.0.self_attn"
    return replace(
        switches,
        qk_norm=f"{first}.q_norm.weight" in weights,
        qkv_bias=f"{first}.q_proj.bias" in weights,
        o_bias=f"{first}.o_proj.bias" in weights,
        mlp_bias="layers.0.mlp.up_proj.bias" in weights,
        fc_bias="fc.bias" in weights,
        pre_fc_norm="fc_norm"
        if "fc_norm.0.weight" in weights
        else "input_norm"
        if "input_norm.weight" in weights
        else "none",
        draft_vocab_size=rows,
        vocab_map="d2t" in weights,
        own_embedding="embed_tokens.weight" in weights,
        own_head="lm_head.weight" in weights,
    )


def reference(weights: Mapping[str, Tensor], switches: Switches) -> Head:
    """The independent reference on a head's weights, leaning on the target where the head has nothing of its own."""
    return Head(switches, dict(weights), stream().embed, target_rows() if not switches.own_head else None)


def misread(weights: Mapping[str, Tensor], switches: Switches, **wrong: Any) -> float:
    """Accept length if some switches are taken wrongly; absent norms have a gain of one, other absent tensors are 0."""
    other = replace(switches, **wrong)
    tensors = {
        name: weights[name]
        if name in weights
        else torch.ones(shape)
        if name.endswith("norm.weight") or "fc_norm" in name
        else torch.zeros(shape)
        for name, shape in tensor_shapes(other).items()
    }
    return accept_length(reference(tensors, other))


def wrong_readings(switches: Switches) -> list[dict[str, Any]]:
    """Every switch on its own, set to what it could be mistaken for."""
    found: list[dict[str, Any]] = [{"rope_theta": 10000.0 if switches.rope_theta != 10000.0 else 500000.0}]
    if len(switches.first_norms) == 2:
        found.append({"residual": "pre" if switches.residual == "post" else "post"})
        found.append({"double_norm": not switches.double_norm})
    if switches.final_norm:
        found.append({"feedback": "pre" if switches.feedback == "post" else "post"})
        found.append({"logits": "raw" if switches.logits == "norm" else "norm"})
    if switches.use_aux_hidden_state:
        first, *middle, last = switches.boundaries
        found += [{"boundaries": (first - 1, *middle, last)}, {"boundaries": (first, *middle, last + 1)}]
        found.append({"boundaries": tuple(b - 1 for b in switches.boundaries)})
        found.append({"pre_fc_norm": "none" if switches.pre_fc_norm != "none" else "fc_norm"})
    if len(switches.first_norms) == 1:
        found.append({"first_norms": ("input_layernorm", "hidden_norm")})
    found += [
        {name: False} for name in ("fc_bias", "qkv_bias", "o_bias", "mlp_bias", "qk_norm") if getattr(switches, name)
    ]
    if switches.sliding_window is not None:
        found += [{"sliding_window": None}, {"sliding_window": switches.sliding_window - 1}]
    if switches.num_layers > 1:
        found.append({"num_layers": 1})
        if switches.later_norm != "both":
            other = "hidden_norm" if switches.later_norm == "input_layernorm" else "input_layernorm"
            found.append({"later_norm": other})
    return found
