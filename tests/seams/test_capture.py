"""What SGLang's target classes capture for given ids: our table against their own code, and our correction of it.

Each class's ``set_eagle3_layers_to_capture`` is taken from the installed source and run on a stand-in of the model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_static import INSTALLED

from sglang_eagle31.head.sglang_targets import SGLANG_TARGETS, Capture
from sglang_eagle31.server.capture import align_capture
from sglang_eagle31.tools.audit.engines import Stops, sglang_capture

MODELS = INSTALLED / "sglang" / "srt" / "models"
METHOD = "set_eagle3_layers_to_capture"
BY_FILE = {rule.file: (architecture, rule) for architecture, rule in SGLANG_TARGETS.items()}
MARK = "_is_layer_to_capture"


class Model:
    """As much of a target as the method touches; it captures by its list, or by marks on its layers."""

    def __init__(self, rule: Capture, depth: int) -> None:
        self.rule, self.depth = rule, depth
        self.layers = [SimpleNamespace() for _ in range(depth)]
        self.layers_to_capture: list[int] = []

    def modules(self) -> Iterator[Any]:
        """As of a torch module."""
        yield self

    def mark(self, ids: list[int]) -> None:
        """The inner model's own method, in the classes that mark their layers."""
        self.layers_to_capture = ids
        for index in ids:
            setattr(self.layers[index], MARK, True)

    def captured(self) -> tuple[int, ...]:
        """The boundaries that its forward would hand out."""
        if self.rule.indexes:
            return tuple(index for index, layer in enumerate(self.layers) if getattr(layer, MARK, False))
        return tuple(index for index in range(self.depth + self.rule.last) if index in self.layers_to_capture)


def method_of(file: Path) -> Any:
    """The method of the outer class, which takes ``layer_ids``."""
    rank = SimpleNamespace(is_last_rank=True)
    space: dict[str, Any] = {"get_parallel": lambda: SimpleNamespace(pp_group=rank)}
    tree = ast.parse(file.read_text())
    found = [
        item
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name == METHOD and "layer_ids" in ast.unparse(item.args)
    ]
    for argument in found[0].args.args:
        argument.annotation = None
    exec(compile(ast.Module([found[0]], []), str(file), "exec"), space)
    return space[METHOD]


def set_ids(rule: Capture, depth: int, ids: list[int] | None) -> Model:
    model = Model(rule, depth)
    if rule.indexes:
        model.set_eagle3_layers_to_capture = model.mark  # type: ignore[attr-defined]
    config = SimpleNamespace(num_hidden_layers=depth, text_config=SimpleNamespace(num_hidden_layers=depth))
    rank = SimpleNamespace(is_last_rank=True)
    outer = SimpleNamespace(pp_group=rank, config=config, model=model, language_model=model)
    file = "llama.py" if rule.file == "mllama4.py" else rule.file.split(", ")[-1]  # wrappers hand the ids on
    method_of(MODELS / file)(outer, ids)
    return model


@pytest.mark.parametrize("file", BY_FILE)
@pytest.mark.parametrize("depth", [6, 12, 36])
def test_our_table_says_what_sglang_captures(file: str, depth: int) -> None:
    architecture, rule = BY_FILE[file]
    for ids in (None, [1, 5, 8], [2, 5, 8], [3, 6, depth], [1, 4, depth - 1], [-1, 2], [8, 5, 1], [depth]):
        expected = sglang_capture(architecture, ids, depth)
        try:
            assert set_ids(rule, depth, ids).captured() == expected, ids
        except IndexError:
            assert isinstance(expected, Stops), ids


@pytest.mark.parametrize("file", BY_FILE)
@pytest.mark.parametrize("wanted", [[2, 6, 9], [0, 1, 11], [1, 4, 8], [2, 5, 9]])
def test_whatever_sglang_made_of_the_ids_the_target_captures_the_head_s_layers(file: str, wanted: list[int]) -> None:
    model = set_ids(BY_FILE[file][1], 12, [boundary - 1 for boundary in wanted])
    align_capture(model, wanted)
    assert list(model.captured()) == wanted


def test_the_last_boundary() -> None:
    rule = SGLANG_TARGETS["GptOssForCausalLM"]
    model = set_ids(rule, 36, [23, 29, 35])
    align_capture(model, [24, 30, 36])
    assert model.captured() == (24, 30, 36)


def test_no_target_class_is_missing_from_the_table() -> None:
    outer = f"def {METHOD}(self, layer_ids"
    have = {file.name for file in MODELS.glob("*.py") if outer in "".join(file.read_text().split("\n        "))}
    have -= {"mindspore.py"}  # hands the ids on to a model that is not in SGLang
    assert have <= {name for rule in SGLANG_TARGETS.values() for name in rule.file.split(", ")}
    assert len(have) > 20
