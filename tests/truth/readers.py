"""What each producer trained, read from its files by its own published rules, and not by what an engine would run.

`read` names the producer; it does not recognise one. What files cannot say is given as `facts`, with the names and
values of overrides: boundaries, feedback, residual, logits, pre_fc_norm, rope_theta, max_position_embeddings,
sliding_window, own_embedding. Anything that is neither stated nor given nor a published default raises.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from truth.readers_config import Config, Unreadable, flag, integer, neutral, number, only, require, section
from truth.readers_rules import RULES, Rules, boundaries, feedback, layer_config, pre_fc_norm, residual, rope_of, window
from truth.reference import Head, Switches

FACTS = {
    *("boundaries", "feedback", "residual", "logits", "pre_fc_norm", "rope_theta", "max_position_embeddings"),
    *("sliding_window", "own_embedding", "double_norm"),
}
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # anything narrower would need scales
INTEGERS = (torch.int32, torch.int64)
PARALLEL = ("parallel_drafting", "mask_token_id", "ptd_token_id", "pard_token")


@dataclass(frozen=True)
class TargetFacts:
    """What a reader may know of the target."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    architecture: str = ""
    embed: Tensor | None = None  # [V, Ht]
    lm_head: Tensor | None = None  # [V, Ht]


def read(folder: Path, producer: str, *, target: TargetFacts, facts: Config | None = None) -> Head:
    """The head that `producer` trained and wrote to `folder` (config.json and *.safetensors).

    Raises an exception (mostly ValueError) when the files and facts do not make a head, also for a tensor left over.
    """
    facts, rules = dict(facts or {}), RULES[producer]
    require(set(facts) <= FACTS, f"unknown facts {sorted(set(facts) - FACTS)}")
    for key, values in {"feedback": ("pre", "post"), "residual": ("pre", "post"), "logits": ("norm", "raw")}.items():
        require(facts.get(key, values[0]) in values, f"the fact {key}={facts.get(key)!r}")
    config = json.loads((folder / "config.json").read_text())
    tensors, numbered = load(folder, rules)
    t2d = tensors.pop("t2d", None)
    refuse_unknown_computation(config, rules)
    s = switches(config, producer, tensors, target, facts, numbered)
    weights = {n: w for n, w in tensors.items() if (n != "d2t" or s.vocab_map)}
    if not s.own_embedding:
        weights.pop("embed_tokens.weight", None)
    for name, weight in weights.items():
        require(weight.dtype in (INTEGERS if name == "d2t" else FLOATS), f"{name} is {weight.dtype}")
    head = Head(s, weights, target.embed, target.lm_head)
    hot = head.hot.tolist()
    require(len(set(hot)) == len(hot) and min(hot) >= 0 and max(hot) < s.vocab_size, "d2t leaves the vocabulary")
    if t2d is not None:
        require(sorted(hot) == t2d.nonzero().flatten().tolist() and len(t2d) == s.vocab_size, "t2d contradicts d2t")
    return head


def load(folder: Path, rules: Rules) -> tuple[dict[str, Tensor], bool]:
    """All tensors under canonical names, and whether the files say `layers.N.` rather than `midlayer.`.

    Drops rotary_emb.inv_freq and verifier_*; raises on duplicates.
    """
    tensors: dict[str, Tensor] = {}
    numbered = False
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if name.endswith("rotary_emb.inv_freq") or name.startswith("verifier_"):
                continue
            new = canonical(name, rules)
            require(new not in tensors, f"{name}: two tensors are {new}")
            tensors[new] = tensor
            numbered |= name.startswith("layers.")
    require(tensors, f"no tensors in {folder}")
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = {canonical(name, rules) for name in json.loads(index.read_text())["weight_map"]}
        require(set(tensors) <= listed, "a tensor that the index does not list")
    return tensors, numbered


def canonical(name: str, rules: Rules) -> str:
    """The name of a producer's tensor in our vocabulary. Raises for a layer under a prefix that it does not write."""
    bare = name.removeprefix("model.")
    if name != bare:
        require(rules.model_prefix != "never", f"{name}: unexpected prefix")
    elif rules.model_prefix == "always" and name not in ("lm_head.weight", "d2t", "t2d"):
        raise Unreadable(f"{name}: expected the prefix model.")
    if rules.aux_norm_names:
        for j, level in enumerate(("low", "mid", "high")):
            bare = re.sub(rf"^aux_norm_{level}\.", f"fc_norm.{j}.", bare)
    layer = re.match(r"(midlayer\.\d+|midlayer|layers\.\d+)\.", bare)
    if layer is None:
        return bare
    kind = re.sub(r"\d+", "N", layer[1])
    require(kind in rules.layer_prefixes, f"{name}: expected layers under {rules.layer_prefixes}")
    index = re.search(r"\d+", layer[1])
    return f"layers.{int(index[0]) if index else 0}.{bare[layer.end() :]}"


def refuse_unknown_computation(config: Config, rules: Rules) -> None:
    """Raises for keys that say that something else than the generic equations, or than this producer's, was trained."""
    eagle = section(config, "eagle_config")
    if rules.nested:
        require(not eagle, "eagle_config in a nested format")
    neutral(config, (*PARALLEL, "quantization_config", "mla_use_nope", "eh_proj_before_attn"))
    neutral(config, ("logit_scale",), (None, 1))
    neutral(eagle, ("eh_proj_before_attn", "use_mtp_layernorm"))
    neutral(eagle, ("parallel_draft_step",), (None, 1))
    if not rules.norm_flags:
        for key in ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"):
            require(flag(eagle, key, True), f"{key}=false")
    if rules.later != "tensors":
        require(flag(eagle, "next_layer_regular", True), "next_layer_regular=false")
    if rules.feedback != "nvidia":
        neutral(eagle, ("return_hidden_post_norm",))
    neutral(eagle, ("fc_norm", "norm_output", "use_aux_norm", "norm_before_residual"))


def switches(
    config: Config, producer: str, tensors: dict[str, Tensor], target: TargetFacts, facts: Config, numbered: bool
) -> Switches:
    """The computation. Sizes come from tensors where a tensor has them; `Head` then compares every name and shape."""
    rules, eagle = RULES[producer], section(config, "eagle_config")
    layer = layer_config(config, rules)
    num_layers = 1 + max((int(n.split(".")[1]) for n in tensors if n.startswith("layers.")), default=-1)
    require(num_layers >= 1, "no layer")
    require(num_layers == 1 or rules.later is not None, f"{num_layers} layers, expected one")
    hidden, heads = integer(layer, "hidden_size"), integer(layer, "num_attention_heads")
    aux = flag(eagle, "use_aux_hidden_state", True)
    target_hidden = integer(config, "target_hidden_size", hidden)
    require(target_hidden == target.hidden_size, f"target_hidden_size {target_hidden}, target {target.hidden_size}")
    states = 0
    if aux:
        require("fc.weight" in tensors, "no fc.weight")
        states, rest = divmod(tensors["fc.weight"].shape[1], target_hidden)
        require(rest == 0, "fc.weight is no whole number of target states wide")
        for place in (config, eagle):
            require(place.get("num_aux_hidden_states") in (None, states), f"num_aux_hidden_states, fc takes {states}")
    require(aux or target_hidden == hidden, "the target's last state is not as wide as the draft's")
    own_head, own_embedding = "lm_head.weight" in tensors, "embed_tokens.weight" in tensors
    own_embedding = own_embedding and facts.get("own_embedding") is not False
    require(own_embedding or not facts.get("own_embedding"), "own_embedding without embed_tokens.weight")
    require(own_embedding or not flag(config, "embed_requires_grad"), "a trained embedding without embed_tokens.weight")
    if not own_head:
        shared = rules.shares_head == "full" or (rules.shares_head == "null" and config.get("draft_vocab_size") is None)
        require(shared, "no lm_head.weight, which this producer writes")
        require(not (own_embedding and flag(config, "tie_word_embeddings")), "a head tied to an own embedding")
    rows = tensors["lm_head.weight"].shape[0] if own_head else target.vocab_size
    draft_vocab = integer(config, "draft_vocab_size", rows)
    require(draft_vocab == rows, f"draft_vocab_size {draft_vocab}, lm_head has {rows} rows")
    vocab_map = "d2t" in tensors and not (rules.ignores_full_d2t and draft_vocab == target.vocab_size)
    require(vocab_map or draft_vocab == target.vocab_size, "a reduced vocabulary without d2t")
    act = only((layer.get("hidden_act"), layer.get("hidden_activation")), "hidden_act") or "silu"
    require(act in ("silu", "gelu_pytorch_tanh"), f"hidden_act={act!r}")
    first, positions = "layers.0.", rope_of(layer, rules, facts)
    return Switches(
        producer=producer,
        hidden_size=hidden,
        target_hidden_size=target_hidden,
        intermediate_size=tensors[f"{first}mlp.gate_proj.weight"].shape[0],
        num_layers=num_layers,
        num_heads=heads,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab,
        boundaries=boundaries(config, rules, target.num_layers, states, facts, numbered) if aux else (),
        rms_norm_eps=number(layer, "rms_norm_eps", 1e-6),
        hidden_act=act,
        use_aux_hidden_state=bool(aux),
        pre_fc_norm=pre_fc_norm(config, rules, tensors, facts),
        residual=residual(config, rules, facts),
        feedback=feedback(config, rules, facts),
        logits=facts.get("logits", "norm"),
        first_norms=first_norms(eagle, tensors, bool(aux)),
        double_norm=bool(facts.get("double_norm", False)),
        final_norm=bool(flag(eagle, "use_last_layernorm", True)),
        later_norm=later_norm(eagle, rules, tensors, num_layers, hidden),
        fc_bias=fc_bias(config, rules, tensors),
        **biases(layer, rules, tensors),
        qk_norm=f"{first}self_attn.q_norm.weight" in tensors,
        vocab_map=vocab_map,
        own_embedding=own_embedding,
        own_head=own_head,
        **positions,
        sliding_window=window(layer, rules, num_layers, facts),
        **attention(layer, rules, tensors, heads, positions["partial_rotary_factor"]),
    )


def first_norms(eagle: Config, tensors: dict[str, Tensor], aux: bool) -> tuple[str, ...]:
    """ModelOpt leaves out hidden_norm when told to, or (HF) without captured states; input_layernorm never."""
    wanted = flag(eagle, "use_input_layernorm_in_first_layer", True)
    present = "layers.0.hidden_norm.weight" in tensors
    require(present == wanted or (not present and not aux), "hidden_norm contradicts eagle_config")
    return ("input_layernorm", "hidden_norm") if present else ("input_layernorm",)


def later_norm(eagle: Config, rules: Rules, tensors: dict[str, Tensor], num_layers: int, hidden: int) -> str:
    """What layers after the first norm: fixed by the producer, or read off the tensors of the second layer."""
    if rules.later != "tensors":
        return rules.later or "input_layernorm"
    if num_layers == 1:
        return "hidden_norm"
    wide = tensors["layers.1.self_attn.q_proj.weight"].shape[1] == 2 * hidden
    require(wide != flag(eagle, "next_layer_regular", True), "next_layer_regular contradicts the width of layer 1")
    if wide:
        return "both"
    return "hidden_norm" if "layers.1.hidden_norm.weight" in tensors else "input_layernorm"


def fc_bias(config: Config, rules: Rules, tensors: dict[str, Tensor]) -> bool:
    """Tensors decide; NVIDIA's key `bias` must agree."""
    present = "fc.bias" in tensors
    require(present or rules.feedback != "nvidia" or not flag(config, "bias"), "bias=true without fc.bias")
    return present


def biases(layer: Config, rules: Rules, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Tensors decide; where the producer's own layer class builds biases by a key, it must agree."""
    first = "layers.0.self_attn"
    qkv = f"{first}.q_proj.bias" in tensors
    found = {"qkv_bias": qkv, "o_bias": f"{first}.o_proj.bias" in tensors}
    found["mlp_bias"] = "layers.0.mlp.gate_proj.bias" in tensors
    if rules.bias_keys:
        keys = {"qkv_bias": "attention_bias", "o_bias": "attention_bias", "mlp_bias": "mlp_bias"}
        wrong = [name for name, key in keys.items() if found[name] != flag(layer, key)]
        require(not wrong, f"{wrong} contradict the tensors")
    return found


def attention(layer: Config, rules: Rules, tensors: dict[str, Tensor], heads: int, rotary: float) -> dict[str, Any]:
    """Head sizes. Omitted ones are LlamaConfig's or DeepseekV3Config's, which the producers' classes derive from."""
    mla = "layers.0.self_attn.kv_a_proj_with_mqa.weight" in tensors
    require(rules.attention in (None, "mla" if mla else "gqa"), f"attention is {'mla' if mla else 'gqa'}")
    if not mla:
        head_dim = integer(layer, "head_dim", integer(layer, "hidden_size") // heads)
        kv_heads = integer(layer, "num_key_value_heads", heads)
        require(heads % kv_heads == 0, "num_attention_heads is no multiple of num_key_value_heads")
        rotated = head_dim * rotary
        require(rotated <= head_dim and int(rotated) % 2 == 0, f"{rotated} of {head_dim} rotated")
        return {"attention": "gqa", "head_dim": head_dim, "num_kv_heads": kv_heads}
    require(flag(layer, "rope_interleave", True), "rope_interleave=false")
    require(rotary == 1.0, "partial rotary in MLA")
    sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    found: dict[str, Any] = {key: integer(layer, key, default) for key, default in sizes.items()}
    rank = layer.get("q_lora_rank", 1536)
    found["q_lora_rank"] = None if rank is None else integer(layer, "q_lora_rank", 1536)
    head_dim = found["qk_nope_head_dim"] + found["qk_rope_head_dim"]
    return {"attention": "mla", "head_dim": head_dim, "num_kv_heads": heads, **found}
