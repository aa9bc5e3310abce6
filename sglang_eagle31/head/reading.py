"""What a dialect made of a checkpoint: the fields of the spec, open questions, and reasons to refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_eagle31.head.overrides import FREE, OVERRIDES
from sglang_eagle31.head.spec import DrafterSpec


@dataclass(frozen=True)
class Target:
    """Facts of the target model that a head is read against.

    Attributes:
        architecture: SGLang's class name.
        num_layers: blocks, or None when no target was given (`audit` without ``--target``).
        hidden_size, vocab_size: its widths.
        context_length: what the server will serve.
        dtype: of the draft, which shares the target's embedding.
        folder: local folder, if there is one, for the checks of embedding and tokenizer.
        last_boundary: whether SGLang's class can hand out boundary N, the last block's output.
    """

    architecture: str
    num_layers: int | None
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str = "auto"
    folder: Path | None = field(default=None, compare=False)
    last_boundary: bool = False

    @property
    def source(self) -> str:
        """Where its sizes are from."""
        return "target config" if self.num_layers is not None else "the head's files (no target given)"

    def triple(self) -> tuple[int, ...]:
        """EAGLE-3's default boundaries, ``2, N//2, N-3``; empty when the depth is not known."""
        return () if self.num_layers is None else (2, self.num_layers // 2, self.num_layers - 3)


@dataclass
class Reading:
    """A head as one dialect reads it.

    Attributes:
        producer: who wrote the head.
        evidence: how its producer was recognised.
        values: spec fields found so far.
        sources: where each value came from.
        names: original tensor name to canonical name.
        questions: facts that the files cannot decide, as override key to the message that names the override.
        refusals: reasons for which the head cannot be run as it was trained.
        notes: what the files cannot show and a user should know; they do not refuse.
        captured: how many states ``fc.weight`` is made for, by its width.
    """

    producer: str
    evidence: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    captured: int = 0

    def put(self, name: str, value: Any, source: str) -> None:
        """Set one spec field with its source."""
        self.values[name] = value
        self.sources[name] = source

    def ask(self, key: str, found: str, fix: str) -> None:
        """Leave a fact open: what was found, and the ``--eagle31-override`` that settles it."""
        self.questions[key] = f"{found}; fix: --eagle31-override {fix}"

    def override(self, pairs: Mapping[str, str]) -> None:
        """Apply ``--eagle31-override`` pairs; a bad key or value, or one against the tensors, becomes a refusal."""
        for key, text in pairs.items():
            if key in FREE:
                self.questions.pop(key, None)
                continue
            if key not in OVERRIDES:
                known = ", ".join((*OVERRIDES, *FREE))
                self.refusals.append(f"--eagle31-override {key}={text}: unknown key; known: {known}; fix: one of these")
                continue
            name, parse = OVERRIDES[key]
            try:
                value = parse(text)
            except ValueError as error:
                self.refusals.append(f"--eagle31-override {key}={text}: {error}; fix: correct it")
                continue
            self._settle(key, text, name, value)
            self.questions.pop(key, None)

    def _settle(self, key: str, text: str, name: str, value: Any) -> None:
        """Tensors decide what they can show; only an own embedding may be left aside."""
        source = f"--eagle31-override {key}={text}"
        against = self._against(key, value)
        if against:
            self.refusals.append(f"{source} contradicts the file: {against}; fix: drop the override")
            return
        unused = {"embed_tokens.weight"} if key == "own_embedding" and not value else set()
        if key == "pre_fc_norm" and key in self.questions:  # the file has both, and the other one is left aside
            unused = {new for new in self.names.values() if new.startswith(("fc_norm.", "input_norm."))}
            unused = {new for new in unused if not new.startswith(f"{value}.")}
        self.names = {old: new for old, new in self.names.items() if new not in unused}
        self.put(name, value, source)

    def _against(self, key: str, value: Any) -> str:
        names = set(self.names.values())
        normed = {"fc_norm": "fc_norm.0.weight", "input_norm": "input_norm.weight"}
        if key == "pre_fc_norm":
            need = {normed[value]} if value in normed else set()
            missing = need - names
            extra = set() if need and key in self.questions else (set(normed.values()) - need) & names
            return f"it has no {', '.join(missing)}" if missing else f"it has {', '.join(extra)}" if extra else ""
        norms = {"layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"}
        if key == "double_norm" and value and not norms <= names:
            return f"it has no {', '.join(sorted(norms - names))}"
        normed_state = (key == "feedback" and value == "post") or (key == "logits_norm" and value == "norm")
        if normed_state and not self.values["final_norm"]:
            return "it has no final norm"
        if key == "own_embedding" and value and "embed_tokens.weight" not in names:
            return "it has no embed_tokens.weight"
        if key == "aux_layers" and not self.values["use_aux_hidden_state"]:
            return "it reads the target's final state and captures no layers"
        if key == "aux_layers" and self.captured and len(value) != self.captured:
            return f"fc.weight is made for {self.captured} captured states, not {len(value)}"
        return ""

    def reasons(self) -> list[str]:
        """Every reason to refuse: refusals and open questions."""
        return self.refusals + list(self.questions.values())

    def spec(self) -> DrafterSpec:
        """The finished spec; call it only when `reasons` is empty."""
        return DrafterSpec(producer=self.producer, sources=dict(self.sources), **self.values)
