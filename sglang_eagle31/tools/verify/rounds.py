"""Speculative rounds on the functions that the CPU server calls, from start contexts to the first few committed tokens.

A round: draft from where each sequence is, the target's weights at every node after temperature and filters, the
verification op, commit. Names and arguments are those of SGLang's ``eagle_sample``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from sglang_eagle31.tools.verify.draft import Drafter, Proposal, Shape, draft_chain, draft_tree
from sglang_eagle31.tools.verify.exact import Sampling, adjusted
from sglang_eagle31.tools.verify.synthetic import CONTEXTS, STATISTIC_TOKENS, Table, child

Weights = Callable[[torch.Tensor, Sampling], torch.Tensor]
"""Weights ``[R, V]`` that the server verifies against, of the target's logits ``[R, V]``."""
Op = Callable[..., object]
"""A verification op with the arguments of ``sgl_kernel``."""


@dataclass(frozen=True)
class Rule:
    """A verification rule as served."""

    name: str
    op: Op
    weights: Weights
    sampled_draft: bool
    """Whether drafts are drawn from the drafter's distribution, which the op then needs."""


@dataclass(frozen=True)
class Outcome:
    """What many sequences committed."""

    context: torch.Tensor
    """``[n]``."""
    tokens: torch.Tensor
    """``[n, STATISTIC_TOKENS]`` the first committed tokens."""
    rounds: int
    """Speculative steps, over all sequences."""
    accepted: int
    """Drafts accepted in them."""


@dataclass(frozen=True)
class Verified:
    """What the op wrote for B trees."""

    tokens: torch.Tensor
    """``[B, S]`` the token after each node of the accepted path; -1 behind its end."""
    accepted: torch.Tensor
    """``[B]`` accepted drafts."""
    last: torch.Tensor
    """``[B]`` number of the path's last node in its tree."""


def verify(rule: Rule, proposal: Proposal, weights: torch.Tensor, shape: Shape, random: torch.Generator) -> Verified:
    """One call of the op as ``eagle_sample`` makes it; ``weights`` ``[B, N, V]``."""
    batch, nodes = proposal.candidates.shape
    predicts = torch.zeros(batch * nodes, dtype=torch.int32)
    accept_index = torch.full((batch, shape.steps + 1), -1, dtype=torch.int32)
    accepted = torch.empty(batch, dtype=torch.int32)
    rule.op(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=proposal.candidates,
        retrive_index=proposal.index,
        retrive_next_token=proposal.next_token,
        retrive_next_sibling=proposal.next_sibling,
        uniform_samples=torch.rand(batch, nodes, generator=random),
        uniform_samples_for_final_sampling=torch.rand(batch, generator=random),
        target_probs=weights,
        draft_probs=torch.zeros_like(weights) if proposal.draft_probs is None else proposal.draft_probs,
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    path = accept_index.long()
    tokens = torch.where(path >= 0, predicts.long()[path.clamp(min=0)], -1)
    last = path.gather(1, accepted.long()[:, None])[:, 0] % nodes
    return Verified(tokens, accepted.long(), last)


Wrong = Callable[[Verified, Proposal, torch.Tensor, torch.Generator], Verified]
"""Spoils what a round commits: of what the op wrote, the drafts, the weights ``[B, N, V]``."""


@dataclass(frozen=True)
class Experiment:
    """Everything that decides what is committed."""

    rule: Rule
    target: Table
    drafter: Drafter
    shape: Shape
    sampling: Sampling
    wrong: Wrong | None = None

    def propose(self, context: torch.Tensor, row: torch.Tensor, random: torch.Generator) -> Proposal:
        """Drafts of one round, ``context`` and ``row`` ``[B]``."""
        if self.rule.sampled_draft:
            return draft_chain(self.drafter, context, row, self.shape, self.sampling.temperature, random)
        return draft_tree(self.drafter, context, row, self.shape)

    def round(self, context: torch.Tensor, row: torch.Tensor, random: torch.Generator) -> Verified:
        """One speculative step of B sequences, ``context`` and ``row`` ``[B]``."""
        proposal = self.propose(context, row, random)
        logits = self.target.after(context[:, None], proposal.rows)
        weights = self.rule.weights(logits.flatten(0, 1), self.sampling).view(logits.shape)
        result = verify(self.rule, proposal, weights.clone(), self.shape, random)
        return self.wrong(result, proposal, weights, random) if self.wrong else result

    def run(self, sequences: int, random: torch.Generator) -> Outcome:
        """``sequences`` new sequences, as many of each context, until each has STATISTIC_TOKENS tokens."""
        context = torch.arange(sequences) % CONTEXTS
        row = torch.zeros(sequences, dtype=torch.long)
        tokens = torch.zeros(sequences, STATISTIC_TOKENS, dtype=torch.long)
        count = torch.zeros(sequences, dtype=torch.long)
        rounds = accepted = 0
        open_ = torch.arange(sequences)
        while len(open_):
            result = self.round(context[open_], row[open_], random)
            rounds += len(open_)
            accepted += int(result.accepted.sum())
            for column in range(result.tokens.shape[1]):
                fits = (column <= result.accepted) & (count[open_] < STATISTIC_TOKENS)
                where, token = open_[fits], result.tokens[fits, column]
                tokens[where, count[where]] = token
                row[where] = child(row[where], token)
                count[where] += 1
            open_ = open_[count[open_] < STATISTIC_TOKENS]
        return Outcome(context, tokens, rounds, accepted)


Draw = Callable[[torch.Tensor, Sampling, torch.Generator], torch.Tensor]
"""One token ``[R]`` after logits ``[R, V]``, without speculation."""


def exact_draw(logits: torch.Tensor, sampling: Sampling, random: torch.Generator) -> torch.Tensor:
    """From the exact probabilities."""
    return torch.multinomial(adjusted(logits, sampling), 1, generator=random)[:, 0]


def direct(target: Table, sampling: Sampling, sequences: int, random: torch.Generator, draw: Draw) -> Outcome:
    """STATISTIC_TOKENS tokens one by one, without speculation, as many sequences of each context."""
    context = torch.arange(sequences) % CONTEXTS
    row = torch.zeros(sequences, dtype=torch.long)
    columns = []
    for _ in range(STATISTIC_TOKENS):
        columns.append(draw(target.after(context, row), sampling, random).long())
        row = child(row, columns[-1])
    return Outcome(context, torch.stack(columns, dim=1), 0, 0)


Spoiled = Callable[[Proposal, torch.Tensor, Verified, torch.Generator], torch.Tensor]
"""A wrong last token ``[B]`` of a round."""


def sometimes(share: float, spoiled: Spoiled) -> Wrong:
    """Replace the last committed token of a ``share`` of the rounds by what ``spoiled`` gives ``[B]``."""

    def wrong(result: Verified, proposal: Proposal, weights: torch.Tensor, random: torch.Generator) -> Verified:
        token = spoiled(proposal, weights, result, random)
        hit = torch.rand(len(token), generator=random) < share
        tokens = result.tokens.clone()
        tokens[hit, result.accepted[hit]] = token[hit]
        return replace(result, tokens=tokens)

    return wrong


def likeliest(proposal: Proposal, weights: torch.Tensor, result: Verified, random: torch.Generator) -> torch.Tensor:
    """The target's most probable token after the accepted path ``[B]``."""
    return weights[torch.arange(len(weights)), result.last].argmax(-1)


def uncorrected(proposal: Proposal, weights: torch.Tensor, result: Verified, random: torch.Generator) -> torch.Tensor:
    """A token ``[B]`` from the target's weights after the path, where the rule has to leave out what was rejected."""
    return torch.multinomial(weights[torch.arange(len(weights)), result.last], 1, generator=random)[:, 0]
