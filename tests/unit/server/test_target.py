"""What the target captures: read back, set, or refused; and SGLang's class found without importing its neighbours."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from sglang_eagle31.server.capture import align_capture, capturing_modules, model_class


class Layer(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states * self.scale


class ByList(nn.Module):
    """Reads the list, as SGLang's Llama does."""

    def __init__(self, depth: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(2.0) for _ in range(depth))
        self.layers_to_capture: list[int] = []

    def capture(self, boundaries: list[int]) -> None:
        self.layers_to_capture = boundaries

    def forward(self, states: torch.Tensor) -> list[float]:
        seen = []
        for index, layer in enumerate(self.layers):
            if self.wants(index):
                seen.append(float(states))
            states = layer(states)
        return seen

    def wants(self, index: int) -> bool:
        return index in self.layers_to_capture


class ByMark(ByList):
    """Marks the captured layers and reads only the marks, as SGLang's Qwen MoE does."""

    def capture(self, boundaries: list[int]) -> None:
        super().capture(boundaries)
        for index in boundaries:
            self.layers[index]._is_layer_to_capture = True  # type: ignore[assignment]

    def wants(self, index: int) -> bool:
        return getattr(self.layers[index], "_is_layer_to_capture", False)


class Model(nn.Module):
    def __init__(self, inner: ByList) -> None:
        super().__init__()
        self.model = inner


@pytest.mark.parametrize("kind", [ByList, ByMark])
@pytest.mark.parametrize("had", [[2, 4, 5], [3, 5, 6], [1], [2, 5]])
@pytest.mark.parametrize("wanted", [[2, 4, 5], [0, 1, 7], [1, 3, 5, 6]])
def test_the_target_captures_what_the_head_was_trained_on(
    kind: type[ByList], had: list[int], wanted: list[int]
) -> None:
    model = Model(kind())
    model.model.capture(had)
    assert align_capture(model, wanted) == had
    assert model.model(torch.tensor(1.0)) == [2.0**boundary for boundary in wanted]
    assert align_capture(model, wanted) == wanted


def test_what_fits_is_left_alone() -> None:
    model = Model(ByList())
    ids = [2, 4, 5]
    model.model.capture(ids)
    align_capture(model, [2, 4, 5])
    assert model.model.layers_to_capture is ids


def test_only_modules_with_a_list_count() -> None:
    model = Model(ByList())
    assert list(capturing_modules(model)) == []
    model.model.capture([1])
    assert list(capturing_modules(model)) == [model.model]


def test_a_target_that_cannot_be_read_back_is_refused() -> None:
    with pytest.raises(ValueError) as error:
        align_capture(Model(ByList()), [2, 4, 5])
    message = str(error.value)
    assert "Model does not show which layers it captures" in message and "[2, 4, 5]" in message and "fix: " in message


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in the place of SGLang's, whose second module must not be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "sglang" / "srt" / "models"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "llama.py").write_text(
        "class LlamaForCausalLM:\n    pass\n\nclass Phi3ForCausalLM(LlamaForCausalLM): ...\n"
    )
    (folder / "broken.py").write_text("class MambaForCausalLM:\n    pass\n\nraise ImportError('needs a kernel')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Phi3ForCausalLM"])
def test_a_class_is_found_without_its_neighbours(models: Path, name: str) -> None:
    found = model_class(name)
    assert found is not None and found.__name__ == name and found.__module__ == "sglang.srt.models.llama"
    assert "sglang.srt.models.broken" not in sys.modules


@pytest.mark.parametrize("name", ["Llama", "LlamaForCausal", "XForCausalLM", "Llama.*LM"])
def test_a_class_that_is_not_there(models: Path, name: str) -> None:
    assert model_class(name) is None
