"""The rows of the feature matrix that fit the time: EAGLE31's chain and tree answer as no speculation does.

`make features` runs all of them (``matrix_report.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matrix_document
import matrix_model
import pytest
from conftest import ENV
from forked import ForkParent
from matrix_case import Case, difference
from matrix_run import CASES, NO_COMPILER, Row, Said, compare, rows

GROUPS = ("default", "pressure")
SHORT = [case for case in CASES if case.flags in GROUPS and not case.long]


def title(case: Case) -> str:
    return f"{case.feature}: {case.name}"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, log_dir: Path) -> Iterator[dict[str, Row]]:
    """Every short row, on six servers that start one after the other."""
    folders = matrix_model.write(tmp_path_factory.mktemp("matrix"))
    parent = ForkParent(log_dir / "matrix-parent.log", {**ENV, **NO_COMPILER})
    try:
        table = [row for group in GROUPS for row in rows(group, folders, log_dir, parent.launch, lambda c: not c.long)]
    finally:
        parent.close()
    yield {f"{row['feature']}: {row['name']}": row for row in table}


@pytest.mark.parametrize("mode", ["chain", "tree"])
@pytest.mark.parametrize("case", SHORT, ids=title)
def test_as_without_speculation(found: dict[str, Row], case: Case, mode: str) -> None:
    row = found[title(case)]
    wanted = "refused" if mode in case.refused else {"same": "identical", "law": "same law"}[case.compare]
    assert row[mode]["outcome"] == wanted, row[mode]


def test_drafts_are_accepted(found: dict[str, Row]) -> None:
    for mode in ("chain", "tree"):
        lengths = [row[mode]["accept_length"] for row in found.values() if "accept_length" in row[mode]]
        assert len(lengths) > 20 and sum(lengths) / len(lengths) > 1.5


@pytest.mark.parametrize(
    ("wanted", "other", "where"),
    [
        ([{"ids": [1, 2]}], [{"ids": [1, 3]}], "[0].ids[1]"),
        ([{"ids": [1, 2]}], [{"ids": [1]}], "[0].ids"),
        ({"text": "a"}, {"text": "b"}, ".text"),
        ([[-0.5, 7]], [[-0.5003, 7]], "[0][0]"),
        ({"calls": []}, {}, ""),
    ],
)
def test_a_difference_is_found(wanted: object, other: object, where: str) -> None:
    assert difference(wanted, copy.deepcopy(wanted)) == ""
    assert difference(wanted, other).startswith(f"{where}:")


def test_a_difference_is_a_finding() -> None:
    """So are a feature that did nothing, and a refusal where none or another is expected."""
    case = Case("a", "b", "default", lambda _: [])
    same, other = Said({0: [{"ids": [1]}]}), Said({0: [{"ids": [2]}]})
    refused = Said({0: [{"refused": 400, "message": "no, too long"}]})
    assert compare(case, "chain", 0, same, same)["outcome"] == "identical"
    assert compare(case, "chain", 0, same, other)["outcome"] == "differs"
    assert compare(case, "chain", 0, same, Said(errors={0: "AssertionError: "}))["outcome"] == "fails"
    assert compare(case, "chain", 0, same, refused)["outcome"] == "fails"
    for text, found, outcome in (("too long", refused, "refused"), ("too wide", refused, "fails"), ("", same, "fails")):
        row = compare(replace(case, refused={"tree": text}), "tree", 0, same, found)
        assert (row["outcome"], row["without"]) == (outcome, "answered")


def test_the_document_keeps_what_is_written_by_hand() -> None:
    results = {
        "header": {"trees": {"chain": [3, 1, 4], "tree": [4, 2, 8]}, "versions": {"sglang": "0", "torch": "0"}},
        "rows": [],
    }
    text = f"before\n{matrix_document.BEGIN}\nold\n{matrix_document.END}\nafter\n"
    once = matrix_document.placed(text, results)
    assert once.startswith("before\n") and once.endswith("after\n") and "old" not in once
    assert matrix_document.placed(once, results) == once
    with pytest.raises(ValueError, match="needs the lines"):
        matrix_document.placed("nothing", results)
