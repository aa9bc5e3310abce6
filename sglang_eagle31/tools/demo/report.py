"""The demo's result as a record for JSON and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sglang_eagle31.tools.shared.acceptance import accept_by_depth, accept_length, loops
from sglang_eagle31.tools.shared.client import Answer, Run
from sglang_eagle31.tools.shared.same_answers import tokens
from sglang_eagle31.tools.shared.same_answers.compare import Outcome, Verdict

BAR_WIDTH = 30


@dataclass(frozen=True)
class Tree:
    """The draft tree, as SGLang's three flags give it."""

    steps: int
    topk: int
    draft_tokens: int

    def flags(self) -> list[str]:
        """The server arguments."""
        return [
            *("--speculative-num-steps", str(self.steps)),
            *("--speculative-eagle-topk", str(self.topk)),
            *("--speculative-num-draft-tokens", str(self.draft_tokens)),
        ]


def summarise(plain: Run, speculative: Run, verdicts: Sequence[Verdict], tree: Tree) -> dict[str, Any]:
    """Everything measured, ready for JSON. Answers and verdicts are in the order of the prompts.

    Acceptance leaves out answers that loop, unless all of them do; ``accept_length_with_loops`` does not.
    """
    looping = [loops(answer.token_ids) for answer in speculative.answers]
    kept = [answer for answer, loop in zip(speculative.answers, looping, strict=True) if not loop]
    outcomes = [verdict.outcome for verdict in verdicts]
    return {
        "identical": not any(verdict.differs for verdict in verdicts),
        "ties": outcomes.count(Outcome.TIE),
        "differing": outcomes.count(Outcome.DIFFERENT),
        "accept_length": _accept_length(kept or speculative.answers),
        "accept_length_with_loops": _accept_length(speculative.answers),
        "accept_by_depth": accept_by_depth([a.accepted_histogram for a in kept or speculative.answers], tree.steps),
        "plain_tok_s": plain.tokens_per_second,
        "spec_tok_s": speculative.tokens_per_second,
        "ratio": speculative.tokens_per_second / plain.tokens_per_second,
        "plain_tok_s_median": statistics.median(a.tokens_per_second for a in plain.answers),
        "spec_tok_s_median": statistics.median(a.tokens_per_second for a in speculative.answers),
        "prompts": len(verdicts),
        "tokens": sum(len(answer.token_ids) for answer in speculative.answers),
        "tokens_compared": sum(verdict.compared for verdict in verdicts),
        **tokens.counts(verdict.tokens for verdict in verdicts if verdict.tokens),
        "loops_excluded": sum(looping) if kept else 0,
        "tree": asdict(tree),
        "per_prompt": [
            _per_prompt(*row) for row in zip(plain.answers, speculative.answers, verdicts, looping, strict=True)
        ],
    }


def render(result: Mapping[str, Any]) -> Group:
    """The table: throughput, acceptance by depth as bars, and whether the answers are the same."""
    tree = result["tree"]
    table = Table(title=f"{result['prompts']} prompts, {result['tokens']} tokens, {result['dtype']}", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("no speculation", _rate(result, "plain"))
    table.add_row("EAGLE31", _rate(result, "spec"))
    table.add_row("ratio", f"{result['ratio']:.2f}x")
    table.add_row("tree", f"steps {tree['steps']}, topk {tree['topk']}, draft tokens {tree['draft_tokens']}")
    table.add_row("accept length", _acceptance(result))
    for depth, share in enumerate(result["accept_by_depth"], start=1):
        bar = "█" * round(share * BAR_WIDTH)
        table.add_row(f"  depth {depth}", Text(f"{bar:<{BAR_WIDTH}} {share:6.1%}"))
    if result.get("fallback_ratio") is not None:
        text = f"{result['fallback_ratio']:.0%} of the rounds without a draft, which the guard chose (docs/guard.md)"
        table.add_row("fallback ratio", text)
    table.add_row("identical", Text("yes", "bold green") if result["identical"] else Text("NO", "bold red"))
    table.add_row("every token", tokens.say(result))
    table.add_row("ties", _ties(result))
    lines = [line for entry in result["per_prompt"] for line in _difference_lines(entry)]
    return Group(table, *lines)


def _rate(result: Mapping[str, Any], which: str) -> str:
    overall, median = result[f"{which}_tok_s"], result[f"{which}_tok_s_median"]
    return f"{overall:.1f} tok/s (median of the prompts {median:.1f})"


def _acceptance(result: Mapping[str, Any]) -> str:
    text = f"{result['accept_length']:.2f} tokens per target step"
    if result["loops_excluded"]:
        text += f" ({result['loops_excluded']} looping answers left out; {result['accept_length_with_loops']:.2f} with)"
    return text


def _ties(result: Mapping[str, Any]) -> str:
    bound = result["tie_bound"]
    allowed = f"logit gap allowed {bound:g}, more where logits are large" if bound else "none is allowed"
    compared = f"{result['tokens_compared']} of {result['tokens']} tokens compared"
    return f"{result['ties']} of {result['prompts']} answers part at one, {allowed}; {compared}"


def _difference_lines(entry: Mapping[str, Any]) -> Iterator[Text]:
    prompt = f"{entry['prompt'][:60]!r}"
    if entry["outcome"] == Outcome.DIFFERENT.value:
        gap = "not looked up" if entry["gap"] is None else f"{entry['gap']:.3f}"
        where = f"token {entry['index']}: {entry['plain_token']} without speculation, {entry['spec_token']} with"
        yield Text(f"differs: {prompt} at {where}; logit gap {gap}", "red")
    wrong = [one for one in entry["unlikely"] if one["outcome"] == Outcome.DIFFERENT.value]
    for one in wrong[:1]:
        what = f"token {one['index']}, {one['token']}, is {one['gap']:.3f} below the best logit without speculation"
        more = f"; {len(wrong)} wrong tokens in all" if len(wrong) > 1 else ""
        yield Text(f"wrong: {prompt}: {what}{more}", "red")


def _accept_length(answers: Sequence[Answer]) -> float:
    return accept_length([len(a.token_ids) for a in answers], [a.verify_steps for a in answers])


def _per_prompt(plain: Answer, speculative: Answer, verdict: Verdict, looping: bool) -> dict[str, Any]:
    difference = verdict.difference
    return {
        "prompt": plain.prompt,
        "outcome": verdict.outcome.value,
        "compared": verdict.compared,
        "index": difference.index if difference else None,
        "plain_token": difference.plain if difference else None,
        "spec_token": difference.speculative if difference else None,
        "gap": verdict.gap,
        "unlikely": [one.to_json() for one in verdict.tokens.unlikely] if verdict.tokens else [],
        "loops": looping,
        "plain_tok_s": plain.tokens_per_second,
        "spec_tok_s": speculative.tokens_per_second,
        "tokens": len(speculative.token_ids),
        "verify_steps": speculative.verify_steps,
        "accepted_histogram": list(speculative.accepted_histogram),
        "text": speculative.text,
    }
