"""One head under EAGLE3 and EAGLE31, stock EAGLE, every switch of the drafter, the draft window, and the Engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Answers, Models, Plain, ask_everything, speculate

TREE = (4, 2, 8)


@pytest.fixture(scope="module")
def stock(start: Any, tiny: Models) -> Answers:
    """SGLang's own EAGLE3 with the EAGLE 3.1 head, on our CPU backend."""
    with start("stock-eagle3", *speculate("EAGLE3", tiny.eagle31, *TREE)) as server:
        return ask_everything(server)


def test_eagle3_serves_on_this_cpu(stock: Answers, plain: Plain) -> None:
    assert stock.ids == plain.answers.ids
    assert stock.accept_length() > 1.5


def test_eagle31_accepts_exactly_what_eagle3_accepts(start: Any, tiny: Models, stock: Answers) -> None:
    with start("eagle3.1", *speculate("eagle3.1", tiny.eagle31, *TREE)) as server:
        ours = ask_everything(server)
    assert ours.ids == stock.ids
    pairs = [
        [answers.meta[i]["spec_correct_drafts_histogram"] for answers in (ours, stock)] for i in range(len(ours.meta))
    ]
    assert all(same_but_for_the_end(one, other) for one, other in pairs), pairs
    assert sum(one == other for one, other in pairs) >= len(pairs) / 3


def same_but_for_the_end(ours: list[int], stock: list[int]) -> bool:
    """The same rounds by accepted drafts; stock counts what its last round accepted past the end of the answer."""
    longer = max(len(ours), len(stock))
    moved = [b - a for a, b in zip(ours + [0] * (longer - len(ours)), stock + [0] * (longer - len(stock)), strict=True)]
    return [one for one in moved if one] in ([], [-1, 1])


def test_stock_eagle_with_an_eagle1_head(start: Any, tiny: Models, plain: Plain) -> None:
    with start("eagle1", *speculate("EAGLE", tiny.eagle1, *TREE)) as server:
        answers = ask_everything(server)
    assert answers.ids == plain.answers.ids
    assert answers.accept_length() > 1.5


def test_every_other_switch_of_the_drafter(start: Any, tiny: Models, plain: Plain) -> None:
    with start("wide", *speculate("EAGLE31", tiny.wide, 4, 4, 12)) as server:
        answers = ask_everything(server)
    assert answers.ids == plain.answers.ids
    assert answers.accept_length() > 1.5


def test_draft_window(start: Any, tiny: Models, plain: Plain) -> None:
    flags = [*speculate("EAGLE31", tiny.eagle3, 3, 1, 4), "--speculative-draft-window-size", "32"]
    with start("window", *flags) as server:
        answers = ask_everything(server)
    assert answers.ids == plain.answers.ids
    assert answers.accept_length() > 1.5


ENGINE = """
import json, sys
import sglang

if __name__ == "__main__":
    target, head, prompt = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    engine = sglang.Engine(
        model_path=target, device="cpu", dtype="float32", skip_tokenizer_init=True, max_total_tokens=4000,
        speculative_algorithm="EAGLE31", speculative_draft_model_path=head, speculative_num_steps=3,
        speculative_eagle_topk=1, speculative_num_draft_tokens=4,
    )
    sampling = {"temperature": 0, "max_new_tokens": 48, "ignore_eos": True}
    answer = engine.generate(input_ids=prompt, sampling_params=sampling)
    print("ANSWER" + json.dumps([answer["output_ids"], answer["meta_info"]["spec_accept_length"]]))
    engine.shutdown()
"""


@pytest.mark.full
def test_engine(tiny: Models, plain: Plain, tmp_path: Path) -> None:
    from conftest import prompt

    script = tmp_path / "engine.py"  # child processes import the main module, so it must be a file
    script.write_text(ENGINE)
    command = [sys.executable, str(script), str(tiny.target), str(tiny.eagle31), json.dumps(prompt(17, 1))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    assert lines, done.stderr[-3000:]
    ids, accept_length = json.loads(lines[0].removeprefix("ANSWER"))
    assert ids == plain.answers.ids[0]
    assert accept_length > 1.5
