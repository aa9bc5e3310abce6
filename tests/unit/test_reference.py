"""The reference against layers that others wrote (transformers), against itself step by step, and switch by switch.

In float64, where rounding is 1e-15 of a result and the switch that changes least is 0.08 of it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config, LlamaConfig, Qwen3Config
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding
from truth.reference import Head, Session, Switches, tensor_shapes
from truth.reference_rope import frequencies, rotate
from truth.rounding import EXACT, FAULT, apart, assert_exact, in_float64

H, HEADS, KV, D, V, VD, T = 32, 4, 2, 8, 48, 24, 9
BASE = Switches(
    **{"hidden_size": H, "target_hidden_size": 20, "intermediate_size": 40, "num_heads": HEADS, "num_kv_heads": KV},
    **{"head_dim": D, "vocab_size": V, "draft_vocab_size": VD, "boundaries": (2, 4, 5), "own_embedding": True},
    max_position_embeddings=256,
)
MLA = replace(
    BASE,
    **{"attention": "mla", "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    v_head_dim=6,
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with in_float64():
        yield


def head(s: Switches, seed: int = 0) -> Head:
    """A random head: gains around one, d2t every second token."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in tensor_shapes(s).items():
        noise = torch.randn(shape, generator=generator)
        weights[name] = noise * 0.3 + (1.0 if "norm" in name and len(shape) == 1 else 0.0)
    if s.vocab_map:
        weights["d2t"] = torch.arange(s.draft_vocab_size)
    shared = torch.randn(2, s.vocab_size, s.hidden_size, generator=generator)
    return Head(s, weights, shared[0], shared[1, : s.draft_vocab_size] if not s.own_head else None)


def inputs(s: Switches, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    width = s.target_hidden_size * (len(s.boundaries) if s.use_aux_hidden_state else 1)
    return torch.randn(T, width, generator=generator), torch.randint(s.vocab_size, (T,), generator=generator)


def silence_first_layer(h: Head) -> None:
    """Layer 0 adds nothing, so that what follows it sees g itself."""
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        h.weights[f"layers.0.{name}.weight"].zero_()


def mask(window: int | None = None) -> Tensor:
    """Additive [1, 1, T, T], from the rules of transformers."""
    allowed = sliding_window_causal_mask_function(window) if window else causal_mask_function
    rows = [
        [0.0 if allowed(0, 0, torch.tensor(q), torch.tensor(k)) else -torch.inf for k in range(T)] for q in range(T)
    ]
    return torch.tensor(rows)[None, None]


def host_config(kind: type, **extra: Any) -> Any:
    sizes = {"hidden_size": H, "intermediate_size": 40, "num_attention_heads": HEADS, "num_key_value_heads": KV}
    others = {"head_dim": D, "vocab_size": V, "num_hidden_layers": 1, "max_position_embeddings": 256}
    config = kind(**{**sizes, **others, "rms_norm_eps": 1e-6, **extra})
    config._attn_implementation = "eager"
    return config


LAYERS: dict[str, tuple[type, type, type, dict[str, Any], dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding, {}, {}),
    "biases": (
        *(LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding, {"attention_bias": True, "mlp_bias": True}),
        {"qkv_bias": True, "o_bias": True, "mlp_bias": True},
    ),
    "gelu": (
        *(LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding, {"hidden_act": "gelu_pytorch_tanh"}),
        {"hidden_act": "gelu_pytorch_tanh"},
    ),
    "yarn": (LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding, {"rope_parameters": YARN}, {"rope_scaling": YARN}),
    "qwen3": (Qwen3Config, Qwen3DecoderLayer, Qwen3RotaryEmbedding, {}, {"qk_norm": True}),
    "window": (LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding, {}, {"sliding_window": 3}),
}


@pytest.mark.parametrize("later", ["input_layernorm", "hidden_norm"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_later_layer_is_the_layer_of_transformers(name: str, later: str) -> None:
    config_class, layer_class, rotary, host, ours = LAYERS[name]
    config = host_config(config_class, **host)
    s = replace(BASE, num_layers=2, later_norm=later, **ours)
    h = head(s)
    silence_first_layer(h)
    if s.o_bias:
        h.weights["layers.0.self_attn.o_proj.bias"].zero_()
        h.weights["layers.0.mlp.down_proj.bias"].zero_()
    layer = layer_class(config, layer_idx=0)
    prefix = "layers.1."
    state = {n.removeprefix(prefix): w for n, w in h.weights.items() if n.startswith(prefix)}
    layer.load_state_dict({n.replace("hidden_norm", "input_layernorm"): w for n, w in state.items()})
    aux, ids = inputs(s)
    g, positions = h.fuse(aux), torch.arange(5, 5 + T)
    with torch.no_grad():
        cos_sin = rotary(config)(g[None], positions[None])
        out = layer(g[None], attention_mask=mask(s.sliding_window), position_embeddings=cos_sin)
    expected = (out[0] if isinstance(out, tuple) else out).view(T, H)
    _, feedback = Session(h).prefill(aux, ids, positions)
    assert_exact(feedback, expected)


def test_the_first_layer_is_a_wide_llama_layer() -> None:
    """Its attention is that of a layer twice as wide, on [LN(x); LN(g)], without the other half of o_proj."""
    h, config = head(BASE), host_config(LlamaConfig)
    layer = LlamaDecoderLayer(host_config(LlamaConfig, hidden_size=2 * H), layer_idx=0).self_attn
    w = {n.removeprefix("layers.0.self_attn."): x for n, x in h.weights.items() if "self_attn" in n}
    w["o_proj.weight"] = torch.cat([w["o_proj.weight"], torch.zeros(H, HEADS * D)])
    layer.load_state_dict(w)
    aux, ids = inputs(BASE)
    g, x = h.fuse(aux), h.weights["embed_tokens.weight"][ids]
    layer_norm = torch.nn.functional.rms_norm
    normed = [
        layer_norm(value, (H,), h.weights[f"layers.0.{name}.weight"], 1e-6)
        for name, value in (("input_layernorm", x), ("hidden_norm", g))
    ]
    with torch.no_grad():
        cos_sin = LlamaRotaryEmbedding(config)(g[None], torch.arange(T)[None])
        attended = layer(torch.cat(normed, -1)[None], position_embeddings=cos_sin, attention_mask=mask())[0][0, :, :H]
    h.weights["layers.0.mlp.down_proj.weight"].zero_()
    _, feedback = Session(h).prefill(aux, ids)
    assert_exact(feedback, g + attended)


MLA_ROPE = {
    "default": None,
    "yarn": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, two weights": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
}


@pytest.mark.parametrize("rank", [12, None])
@pytest.mark.parametrize("scaling", MLA_ROPE)
def test_mla_is_the_attention_of_deepseek(rank: int | None, scaling: str) -> None:
    s = replace(MLA, q_lora_rank=rank, rope_scaling=MLA_ROPE[scaling])
    h = head(s)
    sizes = {key: getattr(s, key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    rope = {"rope_parameters": MLA_ROPE[scaling]} if MLA_ROPE[scaling] else {}
    config = DeepseekV3Config(
        **{"hidden_size": 2 * H, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "q_lora_rank": rank},
        **{"max_position_embeddings": 256, **sizes, **rope},
    )
    config._attn_implementation = "eager"
    attention = DeepseekV3Attention(config, layer_idx=0)
    w = {n.removeprefix("layers.0.self_attn."): x for n, x in h.weights.items() if "self_attn" in n}
    w["o_proj.weight"] = torch.cat([w["o_proj.weight"], torch.zeros(H, HEADS * s.v_head_dim)])
    attention.load_state_dict(w)
    h.weights["layers.0.mlp.down_proj.weight"].zero_()
    aux, ids = inputs(s)
    g, x, positions = h.fuse(aux), h.weights["embed_tokens.weight"][ids], torch.arange(7, 7 + T)
    a = torch.cat([h.norm("layers.0.input_layernorm", x), h.norm("layers.0.hidden_norm", g)], -1)
    with torch.no_grad():
        cos_sin = DeepseekV3RotaryEmbedding(config)(a[None], positions[None])
        attended = attention(a[None], position_embeddings=cos_sin, attention_mask=mask())[0][0, :, :H]
    _, feedback = Session(h).prefill(aux, ids, positions)
    assert_exact(feedback, g + attended)


ROPES: list[dict[str, Any]] = [
    *({}, {"rope_type": "linear", "factor": 3.0}, {"rope_type": "dynamic", "factor": 3.0}, LLAMA3, YARN),
    {**YARN, "attention_factor": 0.8, "beta_fast": 16.0, "beta_slow": 2.0},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
]


@pytest.mark.parametrize("partial", [1.0, 0.5])
@pytest.mark.parametrize("scaling", ROPES, ids=lambda r: "-".join(map(str, r)) or "default")
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any], partial: float) -> None:
    s = replace(BASE, rope_theta=5e4, rope_scaling=scaling or None, head_dim=64, partial_rotary_factor=partial)
    rotated = int(64 * partial)
    config = host_config(LlamaConfig, rope_parameters={**scaling, "rope_theta": 5e4}, head_dim=rotated)
    theirs = LlamaRotaryEmbedding(config)
    inv_freq, factor = frequencies(rotated, torch.arange(T), s)
    torch.testing.assert_close(inv_freq, theirs.inv_freq, rtol=EXACT, atol=0)
    assert factor == pytest.approx(theirs.attention_scaling, rel=EXACT)


def test_part_of_a_head_turns() -> None:
    """With a factor of 0.5 the second half of each head is the same wherever it stands."""
    x = torch.randn(T, KV, D, generator=torch.Generator().manual_seed(2))
    turned = rotate(x, torch.arange(T), replace(BASE, partial_rotary_factor=0.5))
    assert torch.equal(turned[..., D // 2 :], x[..., D // 2 :])
    assert torch.equal(turned[..., : D // 2], rotate(x[..., : D // 2], torch.arange(T), replace(BASE, head_dim=D // 2)))


VARIANTS: dict[str, dict[str, Any]] = {
    "fc_norm": {"pre_fc_norm": "fc_norm"},
    "input_norm": {"pre_fc_norm": "input_norm"},
    "residual": {"residual": "post"},
    "feedback": {"feedback": "post"},
    "logits": {"logits": "raw"},
    "no hidden_norm": {"first_norms": ("input_layernorm",)},
    "no input_layernorm": {"first_norms": ("hidden_norm",)},
    "no final norm": {"final_norm": False},
    "act": {"hidden_act": "gelu_pytorch_tanh"},
    "eps": {"rms_norm_eps": 0.1},
    "fc_bias": {"fc_bias": True},
    "qkv_bias": {"qkv_bias": True},
    "o_bias": {"o_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "qk_norm": {"qk_norm": True},
    "window": {"sliding_window": 3},
    "theta": {"rope_theta": 100.0},
    "scaling": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "partial": {"partial_rotary_factor": 0.5},
    "own_embedding": {"own_embedding": False},
    "own_head": {"own_head": False},
    "later input": {"num_layers": 2},
    "later both": {"num_layers": 2, "later_norm": "both"},
    "no aux": {"use_aux_hidden_state": False, "boundaries": (), "target_hidden_size": H},
}


def common(s: Switches) -> Head:
    """A head whose tensors equal those of every other such head under the same names, so that switches alone differ."""
    made = head(s)
    for name, w in made.weights.items():
        gain = 1.0 if "norm" in name and w.dim() == 1 else 0.0
        generator = torch.Generator().manual_seed(sum(name.encode()))
        w.copy_(torch.randn(w.shape, generator=generator) * 0.3 + gain)
    return made


def run(h: Head, chain: bool = True) -> tuple[Tensor, Tensor]:
    """A prefill of 6 tokens and 3 steps: the logits and feedback of each position, [9, Vd] and [9, H]."""
    aux, ids = inputs(h.switches)
    session = Session(h)
    rows = [session.prefill(aux[:6], ids[:6])]
    for i in range(6, T):
        state = rows[-1][1].view(-1, H)[-1] if chain else h.fuse(aux)[i]
        rows.append(session.step(int(ids[i]), state, i))
    return torch.cat([r[0].view(-1, VD) for r in rows]), torch.cat([r[1].view(-1, H) for r in rows])


@pytest.mark.parametrize("name", VARIANTS)
def test_every_switch_changes_the_output(name: str) -> None:
    plain, changed = run(common(BASE)), run(common(replace(BASE, **VARIANTS[name])))
    assert max(apart(b, a) for a, b in zip(plain, changed, strict=True)) > FAULT


def test_two_layer_norms_differ() -> None:
    two = {later: run(common(replace(BASE, num_layers=2, later_norm=later)))[1] for later in ("hidden_norm", "both")}
    assert apart(two["both"], two["hidden_norm"]) > FAULT


@pytest.mark.parametrize("name", [*VARIANTS, "mla"])
def test_steps_are_one_prefill(name: str) -> None:
    """Steps that are fed the fused state of their position are the prefill of the whole."""
    h = head(MLA if name == "mla" else replace(BASE, **VARIANTS[name]))
    aux, ids = inputs(h.switches)
    for stepped, whole in zip(run(h, chain=False), Session(h).prefill(aux, ids), strict=True):
        assert_exact(stepped, whole)


def test_feedback_and_logits_of_each_kind() -> None:
    """`post` feeds the normed state on, `raw` takes logits before the norm, and neither touches the other."""
    base = head(BASE)
    logits, state = Session(base).prefill(*inputs(BASE))
    for change in ({"feedback": "post"}, {"logits": "raw"}):
        other_logits, other_state = Session(head(replace(BASE, **change))).prefill(*inputs(BASE))
        normed = torch.nn.functional.rms_norm(state, (H,), base.weights["norm.weight"], 1e-6)
        assert_exact(other_state, normed if "feedback" in change else state)
        assert_exact(other_logits, (state @ base.lm_head.T) if "logits" in change else logits)


def test_truncation_forgets_the_draft() -> None:
    h, (aux, ids) = head(BASE), inputs(BASE)
    session = Session(h)
    _, states = session.prefill(aux[:6], ids[:6])
    session.step(3, states[-1], 6)
    session.truncate(6)
    again, whole = session.prefill(aux[6:], ids[6:], torch.arange(6, T))[0], Session(h).prefill(aux, ids)[0][6:]
    assert_exact(again, whole)


def test_hot_ids_and_surplus_tensors() -> None:
    h = head(BASE)
    assert h.hot.tolist() == list(range(0, 2 * VD, 2))
    weights = {**h.weights, "d2t": torch.arange(VD)}
    with pytest.raises(ValueError, match="extra"):
        Head(BASE, {**weights, "extra.weight": torch.ones(1)})
    with pytest.raises(ValueError, match="norm.weight"):
        Head(BASE, {n: w for n, w in weights.items() if n != "norm.weight"})
