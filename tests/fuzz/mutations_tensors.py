"""Mutations of tensors: names, shapes, dtypes, values, and the two maps of the draft vocabulary."""

from __future__ import annotations

import random

import torch
from mutations import Head, a_tensor, kind, seeded, typo

PREFIXES = ("draft_model.", "model.", "eagle_module.", "module.", "base_model.model.", "midlayer.", "layers.0.", "_")
DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES += (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64)
EXTRAS = (
    *("fc.bias", "fc.weight_scale", "enorm.weight", "hnorm.weight", "eh_proj.weight", "norm.bias", "lm_head.bias"),
    *("input_norm.weight", "fc_norm.0.weight", "fc_norm.3.weight", "embed_tokens.weight", "mask_hidden", "t2d"),
    *("verifier_lm_head.weight", "verifier_norm.weight", "verifier_other.weight", "rotary_emb.inv_freq"),
    *("layers.1.input_layernorm.weight", "layers.9999.hidden_norm.weight", "medusa_head.0.weight", "model.d2t"),
    *("aux_norm_low.weight", "self_attn.q_norm.weight", "unrelated", "", "base_model.model.fc.lora_A.weight"),
)
LAYER_EXTRAS = (
    *("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.o_proj.bias", "self_attn.q_norm.weight"),
    *("self_attn.q_proj.weight_scale", "self_attn.rotary_emb.inv_freq", "self_attn.g_proj.weight", "self_attn.sinks"),
    *("mlp.gate_proj.bias", "mlp.down_proj.bias", "mlp.gate_up_proj.weight", "self_attn.qkv_proj.weight"),
    *("input_layernorm.bias", "pre_feedforward_layernorm.weight", "mlp.experts.0.up_proj.weight", "hidden_norm.weight"),
    *("self_attn.q_proj.lora_A.weight", "self_attn.kv_a_proj_with_mqa.weight", "self_attn.q_a_proj.weight"),
)


def layer_prefix(head: Head) -> str:
    """What names of the first layer start with."""
    return next((n.partition("post_att")[0] for n in sorted(head.tensors) if "post_attention" in n), "layers.0.")


@kind
def tensor_drop(head: Head, rng: random.Random) -> str:
    name = a_tensor(head, rng)
    del head.tensors[name]
    return name


@kind
def tensor_rename(head: Head, rng: random.Random) -> str:
    name = a_tensor(head, rng)
    other = rng.choice((typo(name, rng), rng.choice(PREFIXES) + name, name.partition(".")[2] or "x", name.upper()))
    head.tensors[other] = head.tensors.pop(name)
    return f"{name} -> {other!r}"


@kind
def tensor_prefix_all(head: Head, rng: random.Random) -> str:
    old, new = rng.choice((("", rng.choice(PREFIXES)), ("midlayer.", "layers.0."), ("layers.0.", "midlayer.")))
    old, new = rng.choice(((old, new), ("model.", ""), ("layers.0.", "layers.1."), ("layers.", "midlayer.")))
    named = {(new + n.removeprefix(old) if n.startswith(old) else n): value for n, value in head.tensors.items()}
    if list(named) == list(head.tensors):
        return ""
    head.tensors = named
    if head.variant.startswith("angelslim"):  # its class name with layers.N is vLLM's layout
        head.other = "vllm"
    return f"{old!r} -> {new!r}"


@kind
def tensor_reshape(head: Head, rng: random.Random) -> str:
    name = a_tensor(head, rng)
    value = head.tensors[name]
    half = value.shape[0] // 2
    shapes = [value.flatten(), value.unsqueeze(0), value.reshape(half, -1), value.reshape(-1, half), value[:half]]
    shapes += [value[:0], torch.cat([value, value]), value[..., : value.shape[-1] // 2], value.flatten()[0]]
    shapes += [torch.cat([value, value[..., -1:]], dim=-1), value[:-1]]
    head.tensors[name] = rng.choice(shapes)
    return f"{name} {list(value.shape)} -> {list(head.tensors[name].shape)}"


@kind
def tensor_transpose(head: Head, rng: random.Random) -> str:
    name = a_tensor(head, rng, 2)
    head.tensors[name] = head.tensors[name].T
    return name


@kind
def tensor_retype(head: Head, rng: random.Random) -> str:
    name, dtype = a_tensor(head, rng), rng.choice(DTYPES)
    head.tensors[name] = head.tensors[name].to(dtype)
    return f"{name} -> {dtype}"


@kind
def tensor_retype_all(head: Head, rng: random.Random) -> str:
    dtype = rng.choice(DTYPES[:5])
    head.tensors = {n: v.to(dtype) if v.is_floating_point() else v for n, v in head.tensors.items()}
    return str(dtype)


@kind
def tensor_values(head: Head, rng: random.Random) -> str:
    """Numbers that no file format can object to: both sides have to compute the same with them."""
    name = a_tensor(head, rng)
    value = head.tensors[name].clone()
    what = rng.choice(("one nan", "all nan", "inf", "zeros", "permuted", "negated", "noise"))
    if value.is_floating_point():
        at = rng.randrange(value.numel())
        if what in ("one nan", "inf"):
            value.view(-1)[at] = float(what.removeprefix("one "))
        elif what == "all nan":
            value.fill_(float("nan"))
        elif what == "noise":
            value = torch.randn(value.shape, generator=seeded(rng))
    if what == "zeros":
        value = torch.zeros_like(value)
    if what == "permuted":
        value = value[torch.randperm(len(value), generator=seeded(rng))]
    if what == "negated" and value.dtype != torch.bool:
        value = -value
    head.tensors[name] = value
    return f"{name} {what}"


@kind
def tensor_swap(head: Head, rng: random.Random) -> str:
    name = a_tensor(head, rng)
    shape = head.tensors[name].shape
    alike = sorted(n for n, value in head.tensors.items() if n != name and value.shape == shape)
    other = rng.choice(alike) if alike and rng.random() < 0.7 else a_tensor(head, rng)
    head.tensors[name], head.tensors[other] = head.tensors[other], head.tensors[name]
    return f"{name} <-> {other}" if name != other else ""


@kind
def tensor_duplicate(head: Head, rng: random.Random) -> str:
    """The same tensor, or another one of its shape, under a second name."""
    name = a_tensor(head, rng)
    bare = name.removeprefix("model.")
    pairs = [("midlayer.", "layers.0."), ("layers.0.", "midlayer."), ("midlayer.0.", "layers.0."), ("fc_norm", "aux_n")]
    pairs += [("", "model."), ("layers.0.", "model.layers.0."), ("", rng.choice(PREFIXES)), ("layers.0.", "layers.00.")]
    names = sorted({new + bare.removeprefix(old) for old, new in pairs if bare.startswith(old)} - set(head.tensors))
    if not names:
        return ""
    other = rng.choice(names)
    value = head.tensors[name]
    head.tensors[other] = value.clone() if rng.random() < 0.5 else torch.zeros_like(value)
    return f"{name} = {other}"


@kind
def tensor_extra(head: Head, rng: random.Random) -> str:
    shape, prefix = head.shape, layer_prefix(head)
    name = rng.choice((rng.choice(EXTRAS), prefix + rng.choice(LAYER_EXTRAS)))
    if name in head.tensors:
        return ""
    wide = {"embed_tokens.weight": (shape.vocab, shape.hidden), "input_norm.weight": (3 * shape.target_hidden,)}
    rows = {"q_proj.bias": shape.heads, "k_proj.bias": shape.kv_heads, "q_norm.weight": 1}
    size = next((count * shape.head_dim for end, count in rows.items() if name.endswith(end)), shape.hidden)
    head.tensors[name] = torch.randn(wide.get(name, (size,)), generator=seeded(rng))
    return name


@kind
def tensor_second_layer(head: Head, rng: random.Random) -> str:
    """The first layer once more, as the second or as a later one."""
    prefix, number = layer_prefix(head), rng.choice((1, 1, 2, 40))
    later = prefix.replace("layers.0.", f"layers.{number}.").replace("midlayer.", f"midlayer.{number}.", 1)
    later = later.replace(f"midlayer.{number}.0.", f"midlayer.{number}.")
    norm = rng.choice(("input_layernorm", "hidden_norm", "none"))
    narrow = rng.random() < 0.7
    for name in [n for n in head.tensors if n.startswith(prefix) and norm not in n]:
        value = head.tensors[name]
        halved = narrow and name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
        head.tensors[later + name.removeprefix(prefix)] = value[:, : head.shape.hidden] if halved else value.clone()
    return f"{later} without {norm}, narrow={narrow}"


@kind
def vocabulary_shrunk(head: Head, rng: random.Random) -> str:
    """Fewer draft tokens, with and without everything else that says so."""
    maps = {"lm_head.weight", "d2t", "draft_vocab_size", "t2d"}
    left_out = set(rng.sample(sorted(maps), rng.choice((0, 0, 1, 2))))
    count = rng.choice((1, 2, 100, head.shape.draft_vocab - 1))
    if "d2t" not in head.tensors or "lm_head.weight" not in head.tensors:
        return ""
    for name in sorted({"lm_head.weight", "d2t"} - left_out):
        head.tensors[name] = head.tensors[name][:count]
    if "draft_vocab_size" not in left_out and "draft_vocab_size" in head.config:
        head.config["draft_vocab_size"] = count
    if "t2d" in head.tensors and "t2d" not in left_out:
        used = head.tensors["d2t"] + torch.arange(len(head.tensors["d2t"]))
        head.tensors["t2d"] = torch.zeros(head.shape.vocab, dtype=torch.bool).index_fill_(0, used, True)
    return f"{count} tokens, but not in {sorted(left_out)}"


@kind
def d2t_broken(head: Head, rng: random.Random) -> str:
    if "d2t" not in head.tensors:
        return ""
    d2t = head.tensors["d2t"]
    ids, at = torch.arange(len(d2t)), rng.randrange(1, len(d2t))
    one = torch.zeros_like(d2t).index_fill_(0, torch.tensor([at]), 1)
    what, value = rng.choice(
        (
            ("absolute", d2t + ids),
            ("one too far", d2t + one * head.shape.vocab),
            ("one far too far", d2t + one * 2**62),
            ("negative", d2t - 1000),
            ("one negative", d2t - one * 2**40),
            ("unsorted", d2t.flip(0)),
            ("permuted", d2t[torch.randperm(len(d2t), generator=seeded(rng))]),
            ("swapped targets", (d2t + ids)[[at, *range(1, at), 0, *range(at + 1, len(d2t))]] - ids),
            ("repeated", torch.where(ids == at, d2t[at - 1] - 1, d2t)),
            ("short", d2t[:-1]),
            ("long", torch.cat([d2t, d2t[-1:]])),
            ("empty", d2t[:0]),
            ("matrix", d2t[None]),
            ("float", d2t.float()),
            ("int32", d2t.int()),
            ("uint8", d2t.to(torch.uint8)),
            ("zero", torch.zeros_like(d2t)),
            ("one more", d2t + one),
            ("shifted", d2t + 1),
        )
    )
    head.tensors["d2t"] = value
    if rng.random() < 0.3:
        head.tensors.pop("t2d", None)
        what += ", no t2d"
    return what


@kind
def t2d_broken(head: Head, rng: random.Random) -> str:
    if "t2d" not in head.tensors:
        return ""
    t2d = head.tensors["t2d"]
    what, value = rng.choice(
        (
            ("missing", None),
            ("inverted", ~t2d),
            ("rolled", t2d.roll(1)),
            ("short", t2d[:-1]),
            ("long", torch.cat([t2d, t2d[:1]])),
            ("ones", torch.ones_like(t2d)),
            ("zeros", torch.zeros_like(t2d)),
            ("int64", t2d.long()),
            ("float", t2d.float()),
            ("float8", t2d.float().to(torch.float8_e4m3fn)),
            ("matrix", t2d[None]),
            ("empty", t2d[:0]),
            ("numbered", t2d.long().cumsum(0)),
        )
    )
    if value is None:
        del head.tensors["t2d"]
    else:
        head.tensors["t2d"] = value
    return what
