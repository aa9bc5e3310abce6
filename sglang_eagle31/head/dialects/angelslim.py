"""AngelSlim: ``Eagle3LlamaForCausalLM`` with ``midlayer.*``; default layers; its own ``lm_head`` even where tied."""

from __future__ import annotations

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.dialects.layout import Rules
from sglang_eagle31.head.dialects.rope import ask_base
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target

NAME = "AngelSlim"
CLASSES = {"Eagle3LlamaForCausalLM", "CosyVoice3Eagle3LlamaForCausalLM"}


def recognise(head: Checkpoint) -> str | None:
    """By its class name together with its layer name (vLLM has the class, with ``layers.N.*``)."""
    named = set(head.architectures) & CLASSES
    layered = any(name.startswith("midlayer.") for name in head.tensors)
    return f"architectures {', '.join(sorted(named))} with midlayer.*" if named and layered else None


def rules(head: Checkpoint) -> Rules:
    """No ids: the default layers."""
    return Rules(NAME, ids_at=(), pre_fc=("none",))


def settle(head: Checkpoint, target: Target, reading: Reading, keys: Keys) -> None:
    """EAGLE-3 as its trainer has it; its RoPE base is doubtful."""
    ask_base(reading)
