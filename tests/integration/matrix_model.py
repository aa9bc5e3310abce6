"""What the servers of the feature matrix serve: the tiny target with a tokenizer, other weights for it, and a LoRA."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import by_hand
import models
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

BOS, EOS = 1, 2
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens 3 to 6, each one token and part of the text."""
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools | length }}\n{% endif %}assistant: "
)
OTHER_NOISE = 0.3


@dataclass(frozen=True)
class Folders:
    """Where the models are, and what the target says after `text`."""

    target: Path
    other: Path
    head: Path
    lora: Path
    prompt: list[int]
    said: list[int]
    text: str


def write(folder: Path) -> Folders:
    """Everything, once."""
    target = models.write_target(folder / "target")
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(target)
    prompt = tokenizer.encode("The first of the works is the second in the list of contributions, and")
    said = by_hand.greedy(target, prompt, {"max_new_tokens": 64})
    return Folders(
        target=target,
        other=models.write_target(folder / "other", noise=OTHER_NOISE),
        head=models.write_head(folder / "head"),
        lora=_write_lora(folder / "lora"),
        prompt=prompt,
        said=said,
        text=tokenizer.decode(said),
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of the target's vocabulary, trained on a licence and on JSON."""
    inner = Tokenizer(tokenizer_models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=models.VOCAB,
        special_tokens=[*special, *(AddedToken(tag, special=False, normalized=False) for tag in TAGS)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(_texts(), trainer)
    inner.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    assert inner.get_vocab_size() == models.VOCAB, inner.get_vocab_size()
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = TEMPLATE
    return fast


def _texts() -> Iterator[str]:
    yield (Path(__file__).resolve().parents[2] / "LICENSE").read_text()
    for index in range(60):
        yield json.dumps({"name": f"call {index}", "arguments": {"city": "Rome", "days": index, "dry": True}})


def _write_lora(folder: Path) -> Path:
    """An adapter of rank 4 for queries, values and the MLP, strong enough to change what the target says."""
    generator = torch.Generator().manual_seed(5)
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.v_proj": (32, 64), "mlp.down_proj": (64, 128)}
    tensors = {}
    for layer in range(models.LAYERS):
        for name, (rows, columns) in shapes.items():
            key = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{key}.lora_A.weight"] = 0.2 * torch.randn(4, columns, generator=generator)
            tensors[f"{key}.lora_B.weight"] = 0.2 * torch.randn(rows, 4, generator=generator)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = sorted({name.rpartition(".")[2] for name in shapes})
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": modules, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "task_type": "CAUSAL_LM"}))
    return folder
