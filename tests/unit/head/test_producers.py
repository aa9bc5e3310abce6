"""The writers of the producers' files: what is on disk is the canonical head under the producer's names."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from truth.producers import STRANGERS, VARIANTS, Shape, canonical, head, write
from truth.reference import Switches, tensor_shapes

SHAPE = Shape()
H, K = SHAPE.hidden, len(SHAPE.boundaries)
IDS = "eagle_aux_hidden_state_layer_ids"


drawn = functools.cache(head)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, str]]:
    config = json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", "pt") as file:
        return config, {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_survive_the_trip(name: str, tmp_path: Path) -> None:
    variant, weights = VARIANTS[name], drawn(name)
    config, tensors, metadata = read(write(tmp_path, name))
    back = variant.names(weights)
    assert set(tensors) - set(back) <= {"t2d"}
    assert {back[written] for written in tensors if written in back} == set(weights) - set(variant.omits)
    assert all(torch.equal(tensors[written], weights[known]) for written, known in back.items())
    assert metadata == dict(variant.metadata)
    assert config["architectures"]


@pytest.mark.parametrize("name", VARIANTS)
def test_truth_is_that_of_the_weights(name: str) -> None:
    facts, weights = VARIANTS[name].facts(SHAPE), drawn(name)
    first = "q_a_proj" if facts["attention"] == "mla" else "q_proj"
    assert weights[f"layers.0.self_attn.{first}.weight"].shape[1] == 2 * H
    assert f"layers.{facts['num_layers'] - 1}.mlp.up_proj.weight" in weights
    assert f"layers.{facts['num_layers']}.mlp.up_proj.weight" not in weights
    present = {
        "qk_norm": "layers.0.self_attn.q_norm.weight",
        "fc_bias": "fc.bias",
        "qkv_bias": "layers.0.self_attn.k_proj.bias",
        "o_bias": "layers.0.self_attn.o_proj.bias",
        "mlp_bias": "layers.0.mlp.up_proj.bias",
        "own_embedding": "embed_tokens.weight",
        "own_head": "lm_head.weight",
        "vocab_map": "d2t",
        "final_norm": "norm.weight",
        "use_aux_hidden_state": "fc.weight",
    }
    assert {field: tensor in weights for field, tensor in present.items()} == {field: facts[field] for field in present}
    norms = {"fc_norm": "fc_norm.2.weight", "input_norm": "input_norm.weight"}
    assert [kind for kind, tensor in norms.items() if tensor in weights] == [
        kind for kind in norms if kind == facts["pre_fc_norm"]
    ]
    assert facts["first_norms"] == tuple(
        norm for norm in ("input_layernorm", "hidden_norm") if f"layers.0.{norm}.weight" in weights
    )
    later = {"both": {"input_layernorm", "hidden_norm"}}.get(facts["later_norm"], {facts["later_norm"]})
    found = {norm for norm in ("input_layernorm", "hidden_norm") if f"layers.1.{norm}.weight" in weights}
    assert found == (later if facts["num_layers"] > 1 else set())


@pytest.mark.parametrize("name", VARIANTS)
def test_facts_ask_for_exactly_these_tensors(name: str) -> None:
    shapes = {tensor: tuple(value.shape) for tensor, value in drawn(name).items()}
    assert tensor_shapes(Switches(**VARIANTS[name].facts(SHAPE))) == shapes


PLAIN = {
    "fc.weight": (H, K * 64),
    "midlayer.hidden_norm.weight": (H,),
    "midlayer.input_layernorm.weight": (H,),
    "midlayer.post_attention_layernorm.weight": (H,),
    "midlayer.self_attn.q_proj.weight": (128, 2 * H),
    "midlayer.self_attn.k_proj.weight": (64, 2 * H),
    "midlayer.self_attn.v_proj.weight": (64, 2 * H),
    "midlayer.self_attn.o_proj.weight": (H, 128),
    "midlayer.mlp.gate_proj.weight": (96, H),
    "midlayer.mlp.up_proj.weight": (96, H),
    "midlayer.mlp.down_proj.weight": (H, 96),
    "norm.weight": (H,),
    "lm_head.weight": (384, H),
    "d2t": (384,),
}
T2D, EMBEDDING = {"t2d": (512,)}, {"embed_tokens.weight": (512, H)}
LAYERS = {name.replace("midlayer", "layers.0"): size for name, size in PLAIN.items()}
FC_NORM = {f"fc_norm.{k}.weight": (64,) for k in range(3)}
AUX_NORM = {f"aux_norm_{place}.weight": (64,) for place in ("low", "mid", "high")}
NEMO = {name if name in ("lm_head.weight", "d2t") else f"model.{name}": size for name, size in LAYERS.items()}
MLA = {name: size for name, size in PLAIN.items() if ".self_attn." not in name} | {
    "midlayer.self_attn.q_a_proj.weight": (32, 2 * H),
    "midlayer.self_attn.q_a_layernorm.weight": (32,),
    "midlayer.self_attn.q_b_proj.weight": (8 * 24, 32),
    "midlayer.self_attn.kv_a_proj_with_mqa.weight": (24, 2 * H),
    "midlayer.self_attn.kv_a_layernorm.weight": (16,),
    "midlayer.self_attn.kv_b_proj.weight": (8 * 32, 16),
    "midlayer.self_attn.o_proj.weight": (H, 128),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("safeailab", PLAIN | T2D),
        ("specforge31", PLAIN | T2D | FC_NORM),
        ("torchspec_vllm", LAYERS | T2D | EMBEDDING),
        ("torchspec_mla", MLA | T2D | EMBEDDING),
        ("speculators", LAYERS | T2D | EMBEDDING | {"input_norm.weight": (K * 64,)}),
        ("modelopt_hf", LAYERS),
        ("modelopt_megatron", {name: size for name, size in PLAIN.items() if name != "d2t"}),
        ("nvidia_v3", PLAIN | {"input_norm.weight": (K * 64,)}),
        ("nemo", NEMO | T2D | {"model.embed_tokens.weight": (512, H)}),
        ("specdrift_legacy", PLAIN | T2D | AUX_NORM),
    ],
)
def test_names_and_shapes(name: str, expected: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    _, tensors, _ = read(write(tmp_path, name))
    assert {key: tuple(value.shape) for key, value in tensors.items()} == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("modelopt_megatron_deep", {f"midlayer.{layer}.hidden_norm.weight": (H,) for layer in (0, 1)}),
        ("modelopt_megatron_deep", {"midlayer.1.self_attn.q_proj.weight": (128, H)}),
        ("nvidia_wide", {"midlayer.1.self_attn.q_proj.weight": (128, 2 * H)}),
        ("speculators_qwen3", {"layers.0.self_attn.q_norm.weight": (16,)}),
        ("speculators_two_layers", {"layers.1.input_layernorm.weight": (H,)}),
        ("nemo_bias", {"model.layers.0.self_attn.o_proj.bias": (H,)}),
    ],
)
def test_some_names(name: str, expected: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    _, tensors, _ = read(write(tmp_path, name))
    assert {key: tuple(tensors[key].shape) for key in expected} == expected


@pytest.mark.parametrize("name", VARIANTS)
def test_layer_ids_follow_the_convention(name: str) -> None:
    variant, shape = VARIANTS[name], replace(SHAPE, boundaries=(1, 3, 6))
    config, _, _ = variant.files(drawn(name), shape)
    written = config.get(IDS) or config.get("eagle_config", {}).get(IDS) or None
    aux = variant.facts(shape)["use_aux_hidden_state"]
    expected = {"output": [0, 2, 5], "boundary": [1, 3, 6], "absent": None}[variant.ids] if aux else None
    assert written == expected
    if aux and variant.ids == "absent":
        assert variant.answers(shape)["aux_layers"] == "1,3,6"


def test_configs_of_the_producers() -> None:
    configs = {name: variant.files(drawn(name), SHAPE)[0] for name, variant in VARIANTS.items()}
    nested = configs["speculators"]["transformer_layer_config"]
    assert "model_type" not in configs["speculators"]
    assert (nested["layer_types"], nested["sliding_window"]) == (["sliding_attention"], SHAPE.window)
    assert "hidden_act" not in nested, "equal to the class's default"
    assert configs["nemo"]["num_hidden_layers"] == SHAPE.target_layers
    assert configs["nvidia_no_head"]["draft_vocab_size"] is None
    assert configs["angelslim_tied"]["tie_word_embeddings"] is True
    assert "draft_vocab_size" not in configs["modelopt_mla"]
    assert configs["torchspec_mla"]["rope_scaling"]["type"] == "yarn"
    assert VARIANTS["torchspec_mla"].facts(SHAPE)["rope_scaling"]["rope_type"] == "yarn"
    assert "norm_before_residual" not in configs["speculators_unstated"]


def test_d2t_is_an_offset_and_agrees_with_t2d(tmp_path: Path) -> None:
    _, tensors, _ = read(write(tmp_path, "specforge"))
    used = tensors["d2t"] + torch.arange(SHAPE.draft_vocab)
    assert torch.equal(used, tensors["t2d"].nonzero().flatten())
    assert tensors["d2t"].dtype == torch.int64


def test_specforge_maps_a_full_vocabulary_too(tmp_path: Path) -> None:
    _, tensors, _ = read(write(tmp_path, "specforge", weights=head("specforge", reduced=False)))
    assert tensors["t2d"].all()
    assert tensors["d2t"].shape == (SHAPE.vocab,) and not tensors["d2t"].any()


def test_all_variants_are_one_head() -> None:
    known = canonical(SHAPE, 0)
    for name in VARIANTS:
        for tensor, value in drawn(name).items():
            if tensor in known and value.shape == known[tensor].shape:
                assert torch.equal(value, known[tensor]), (name, tensor)
    assert not torch.equal(canonical(SHAPE, 1)["norm.weight"], known["norm.weight"])


def test_an_embedding_can_be_given() -> None:
    embedding = torch.randn(512, H)
    assert torch.equal(head("nemo", own_embedding=embedding)["embed_tokens.weight"], embedding)


def test_mutations(tmp_path: Path) -> None:
    config, tensors, _ = read(
        write(
            tmp_path,
            "specforge",
            config={"rope_theta": ..., "model_type": "phi3"},
            change={"norm.weight": None, "extra": torch.ones(2)},
            dtype=torch.bfloat16,
        )
    )
    assert "rope_theta" not in config and config["model_type"] == "phi3"
    assert "norm.weight" not in tensors and tensors["extra"].dtype == torch.float32
    assert tensors["fc.weight"].dtype == torch.bfloat16 and config["torch_dtype"] == "bfloat16"
    assert tensors["d2t"].dtype == torch.int64


def test_overrides_settle_what_files_cannot_tell() -> None:
    assert VARIANTS["specforge31_raw"].answers(SHAPE) == {"feedback": "pre", "logits": "raw"}
    assert VARIANTS["speculators_converted"].answers(SHAPE) == {"aux_layers": "2,4,5"}
    assert VARIANTS["speculators"].answers(SHAPE) == {}
    assert VARIANTS["nvidia_v3"].answers(SHAPE) == {"aux_layers": "2,4,5"}
    assert VARIANTS["nvidia_v3"].answers(replace(SHAPE, boundaries=(4, 6, 8))) == {}
    for variant in VARIANTS.values():
        assert all(variant.truth[key] == value for key, value in variant.overrides.items()), variant.name


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("p_eagle_speculators", "mask_hidden"),
        ("p_eagle_specforge", "mask_hidden"),
        ("p_eagle_aws", "mask_hidden"),
        ("p_eagle_nemo", "model.mask_hidden"),
        ("medusa", "medusa_head.0.0.linear.weight"),
        ("eagle1", "fc.bias"),
        ("eagle2", "fc.weight"),
        ("baldeagle", "fc.bias"),
        ("mtp", "model.layers.8.eh_proj.weight"),
        ("modelopt_no_aux_narrow", "layers.0.self_attn.q_proj.weight"),
    ],
)
def test_strangers(name: str, mark: str, tmp_path: Path) -> None:
    config, tensors, _ = read(write(tmp_path, name))
    assert mark in tensors and config
    if name in ("eagle1", "eagle2", "baldeagle"):
        assert tensors["fc.weight"].shape == (H, 2 * H)
        assert not any("hidden_norm" in tensor or "input_layernorm" in tensor for tensor in tensors)


def test_every_stranger_is_tested() -> None:
    cases = next(mark for mark in test_strangers.pytestmark if mark.name == "parametrize").args[1]
    assert {case[0] for case in cases} == set(STRANGERS)
