"""The file of a benchmark: its layout, going on from it, and the table, picture and page that are made of it."""

from __future__ import annotations

import io
import json

import pytest
from bench_fakes import CONDITIONS, load, raw
from rich.console import Console

from sglang_eagle31.tools.bench import document, picture, report
from sglang_eagle31.tools.bench.plan import Ask, Cell
from sglang_eagle31.tools.bench.results import Results

RATES = {("none", 1): (10, 11), ("guard", 1): (20, 22), ("none", 4): (30, 30), ("guard", 4): (24, 27)}
SAME = {
    **{"prompts": 4, "same": 2, "tie": 1, "different": 1, "tokens": 90, "tokens_compared": 70, "first_differences": []},
    **{"tokens_checked": 90, "tokens_tied": 3, "tokens_differing": 1, "wrong_tokens": []},
}


def results(path, **conditions):
    return Results(path, "none", {**CONDITIONS, **conditions})


@pytest.fixture
def full(tmp_path):
    """Two rounds of two arms at two concurrencies, guard first, so that the order has to be made."""
    found = results(tmp_path / "bench.json")
    for (arm, concurrency), rates in reversed(RATES.items()):
        for turn, rate in enumerate(rates, 1):
            more = {} if arm == "none" else {"plain_rounds": 1, "drafted_rounds": 4}
            found.add(Cell(arm, "chat", concurrency, turn), {**load(rate).to_json(), **more})
    found.compared("chat", "guard", SAME)
    return found


def test_the_layout(full):
    record = json.loads(full.path.read_text())
    assert set(record) == {"sweep", "break_even", "identity", "conditions"}
    assert [(entry["arm"], entry["concurrency"]) for entry in record["sweep"]] == list(RATES)
    entry = record["sweep"][1]
    wanted = "arm prompts concurrency output_tok_s ratio accept_length accept_by_depth fallback_ratio ttft_ms tpot_ms"
    assert {*wanted.split(), "itl_ms_p50", "itl_ms_p99", "rounds", "user_tok_s", "user_ratio"} == set(entry)
    assert (entry["prompts"], entry["output_tok_s"], entry["ratio"]) == ("chat", 21, 2)
    assert [one["round"] for one in entry["rounds"]] == [1, 2]
    assert record["identity"] == {"chat": {"guard": SAME}}
    assert 1 < record["break_even"]["chat"]["guard"]["concurrency"] < 4
    assert [path.name for path in full.path.parent.iterdir()] == ["bench.json"]


def test_going_on_keeps_cells_and_answers(full):
    again = results(full.path, argv=["other"], rounds=5, started="later")
    again.resume()
    assert again.to_json()["sweep"] == full.to_json()["sweep"]
    cells = {Cell(arm, "chat", n, turn) for arm, n in RATES for turn in (1, 2)}
    assert again.done() == cells | {Ask("none", "chat"), Ask("guard", "chat")}


def test_answers_are_done_only_when_all_arms_were_compared(tmp_path):
    found = results(tmp_path / "bench.json", arms={"none": [], "eagle31": [], "guard": []})
    found.compared("chat", "guard", SAME)
    assert found.done() == set()
    found.compared("chat", "eagle31", SAME)
    assert found.done() == {Ask(arm, "chat") for arm in ("none", "eagle31", "guard")}


@pytest.mark.parametrize("name", sorted(set(CONDITIONS) - {"argv", "rounds", "left_out", "started"}))
def test_other_conditions_are_refused_by_name(full, name):
    with pytest.raises(ValueError, match=f"other conditions .*{name}"):
        results(full.path, **{name: "another"}).resume()


def test_a_condition_that_is_new_is_another(full):
    with pytest.raises(ValueError, match="turbo"):
        results(full.path, turbo=True).resume()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"conditions": 3, "sweep": [], "identity": {}}'])
def test_a_foreign_file_is_refused(tmp_path, text):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="no result of bench"):
        results(path).resume()


def test_there_may_be_nothing_to_go_on_from(tmp_path):
    found = results(tmp_path / "none.json")
    found.resume()
    assert found.rounds == {} and found.done() == set()


def test_folders_of_the_machine_stay_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.chdir(tmp_path)
    arms = {"none": [], "guard": [str(tmp_path / "heads/one"), "/home/somebody/two"]}
    assert results(tmp_path / "b.json", arms=arms).conditions["arms"]["guard"] == ["heads/one", "~/two"]


def shown(record):
    console = Console(file=io.StringIO(), width=200)
    console.print(report.render(record))
    return console.file.getvalue()


def test_the_table(full):
    text = shown(full.to_json())
    assert "chat: medians of 2 rounds" in text
    (line,) = [line for line in text.splitlines() if "guard" in line and " 21.0 " in line]
    assert [part.strip() for part in line.split("│")[1:6]] == ["1", "guard", "21.0", "2.00", "10.5"] and "20%" in line
    assert "guard: pays up to concurrency 3" in text
    assert "guard: 2 of 4 greedy answers are the same, 1 part at a tie of two tokens, 1 differ; 90 of 90 tokens" in text
    assert "checked by the logits without speculation: 3 ties, 1 differ" in text


def test_the_table_says_what_is_left_out(full):
    full.conditions["left_out"] = {"eagle3": "it has an extra norm"}
    assert "left out: eagle3 (it has an extra norm)" in shown(full.to_json())


def test_break_even_in_words():
    say = report.say_break_even
    assert "does not pay at the lowest" in say({"concurrency": None, "beyond": False})
    assert "highest concurrency measured, 64" in say({"concurrency": 64.0, "beyond": True})


def test_the_picture(full, tmp_path):
    assert picture.draw(full.to_json(), tmp_path / "a.png") is True
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_no_picture_of_recorded_times(tmp_path):
    found = results(tmp_path / "bench.json")
    found.add(Cell("none", "chat", 0, 1), load(10).to_json())
    assert found.to_json()["sweep"][0]["concurrency"] is None
    assert picture.draw(found.to_json(), tmp_path / "a.png") is False and not (tmp_path / "a.png").exists()
    assert "recorded" in shown(found.to_json())


PAGE = f"# Speed\n\nBefore.\n\n<!-- bench -->\nold\n{document.END}\n\nAfter.\n"


def test_the_page(full, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    text = document.fill(page, full.path)
    page.write_text(text)
    assert document.fill(page, full.path) == text
    assert text.startswith("# Speed\n\nBefore.\n") and text.endswith("\n\nAfter.\n") and "old" not in text
    assert "A CPU, 2 cores, device cpu, bfloat16; python 3.11, sglang 0.5.23; commit `abc`" in text.replace("\n", " ")
    assert (
        "python -m sglang_eagle31 bench --arms none,guard" in text and "8 prompts of 5 to 30 (median 9) tokens" in text
    )
    assert "| 1 | guard | 21.0 | 2.00 | 10.5 |" in text and "- `guard` pays up to concurrency 3." in text
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))
    assert "![" not in text
    full.path.with_suffix(".png").write_bytes(b"")
    assert f"({tmp_path.name}/bench.png)" in document.fill(page, full.path)


def test_a_page_of_two_results_keeps_the_other_ones_part(full, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"{PAGE}<!-- bench-long -->\nkept\n{document.END}\n")
    text = document.fill(page, full.path)
    assert text.endswith(f"<!-- bench-long -->\nkept\n{document.END}\n") and "old" not in text
    page.write_text(text)
    longer = tmp_path / "bench-long.json"
    longer.write_text(full.path.read_text())
    assert document.fill(page, longer).count("### ") == 2 * text.count("### ")


def test_a_page_without_a_result_says_so(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert document.MISSING in document.fill(page, tmp_path / "bench.json")


def test_a_page_without_markers_and_a_wrong_result_are_refused(tmp_path, full):
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="no <!-- bench -->"):
        document.fill(page, full.path)
    page.write_text(PAGE)
    full.path.write_text('{"sweep": []}')
    with pytest.raises(ValueError, match="no result of bench"):
        document.fill(page, full.path)


def test_a_raw_record_is_what_it_was(full):
    assert full.to_json()["sweep"][0]["rounds"] == [raw(1, 10), raw(2, 11)]


def test_answers_whose_tokens_were_not_checked_are_told_as_before():
    found = {name: value for name, value in SAME.items() if not name.startswith("tokens_")}
    text = report.say_identity(found)
    assert text == "2 of 4 greedy answers are the same, 1 part at a tie of two tokens, 1 differ"
