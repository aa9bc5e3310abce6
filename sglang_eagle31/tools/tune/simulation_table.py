"""The answer of ``tune --simulate`` as people read it: the grid as a table, and what to do in words."""

from __future__ import annotations

from rich.table import Table

from sglang_eagle31.tools.tune.simulate import Answer, Simulation

CLOSE = 1.05
"""Predicted gain below which no advice is given without a warning: costs and acceptance are rarely known to 5 %."""


def verdict(answer: Answer) -> str:
    """The answer for one batch size in words."""
    best, rival = answer.best, answer.runner_up
    if not answer.speculate:
        said = (
            f"do not speculate: even {rival.shape} is predicted at {rival.speedup:.2f}x ({rival.expected:.2f} tokens "
            f"in the time of {rival.expected / rival.speedup:.2f} plain steps)"
        )
        if answer.acceptance is not None:
            said += f"; it would break even at acceptance {answer.acceptance:.2f}"
    else:
        said = f"{best.shape} is predicted at {best.speedup:.2f}x ({best.expected:.2f} tokens a round)"
        if answer.acceptance is not None:
            said += f"; it breaks even at acceptance {answer.acceptance:.2f}"
        if answer.batch is not None:
            said += f"{' and' if answer.acceptance is not None else '; it'} pays up to concurrency {answer.batch}"
        said += f"\n  {best.shape.flags()}"
    if answer.speculate and best.speedup < CLOSE:
        said += "\n  That is too close to call from calculated numbers."
    if answer.speculate and answer.at_edge:
        said += "\n  It is the deepest that was looked at; a larger --max-steps may find a better one."
    return f"concurrency {best.batch}: {said}"


def render(result: Simulation) -> Table:
    """Predicted speed-up of every shape, by batch size; the fastest of each is marked."""
    batches = result.given.concurrency
    table = Table(title="predicted speed-up against no speculation, by concurrency")
    for name in ("steps", "topk", "draft tokens", "tokens a round", *(f"{batch}" for batch in batches)):
        table.add_column(name, justify="right")
    count = len(result.predictions) // len(batches)
    fastest = {(one.best.shape, one.best.batch) for one in result.answers}
    for row in range(count):
        cells = result.predictions[row::count]
        shape = cells[0].shape
        marked = [f"{one.speedup:.2f}{'*' if (shape, one.batch) in fastest else ' '}" for one in cells]
        table.add_row(
            *(str(number) for number in (shape.steps, shape.topk, shape.draft_tokens)),
            f"{cells[0].expected:.2f}",
            *marked,
        )
    return table
