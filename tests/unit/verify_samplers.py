"""Verification ops in another way than ours: a sample at every node and a greedy walk, and rejection by rows."""

from __future__ import annotations

import torch

from sglang_eagle31.server.cpu.tree import verify_tree_greedy_cpu
from sglang_eagle31.tools.verify.exact import adjusted
from sglang_eagle31.tools.verify.rounds import Rule


def sample_every_node(*, predicts, accept_index, accept_token_num, candidates, target_probs, **links):
    """Equal in law to target-only tree sampling: one sample of the target at every node, and the walk that follows."""
    batch, nodes, vocab = target_probs.shape
    drawn = torch.multinomial(target_probs.reshape(-1, vocab), 1).view(batch, nodes)
    verify_tree_greedy_cpu(
        *(predicts, accept_index, accept_token_num, candidates, links["retrive_index"]),
        *(links["retrive_next_token"], links["retrive_next_sibling"], drawn),
    )


def reject_by_rows(*, predicts, accept_index, accept_token_num, candidates, target_probs, draft_probs, **coins):
    """Leviathan and Chen, one step of all chains after the other."""
    batch, nodes, vocab = target_probs.shape
    target_probs = target_probs / target_probs.sum(-1, keepdim=True)
    rows, accepted = torch.arange(batch), torch.zeros(batch, dtype=torch.long)
    going = torch.ones(batch, dtype=torch.bool)
    accept_index[:, 0] = rows * nodes
    rest = target_probs[:, 0]
    for step in range(1, nodes):
        token, p, q = candidates[:, step], target_probs[:, step - 1], draft_probs[:, step - 1]
        ratio = (p / q).gather(1, token[:, None])[:, 0]
        taken = going & (coins["uniform_samples"][:, step - 1] < ratio)
        lost = going & ~taken
        rest = torch.where(lost[:, None], (p - q).clamp(min=0), rest)
        rest = torch.where(taken[:, None], target_probs[:, step], rest)
        predicts[rows[taken] * nodes + step - 1] = token[taken].int()
        accept_index[rows[taken], step] = (rows[taken] * nodes + step).int()
        accepted += taken
        going = taken
    predicts[rows * nodes + accepted] = torch.multinomial(rest, 1)[:, 0].int()
    accept_token_num.copy_(accepted)


def weights(logits, sampling):
    return adjusted(logits, sampling).float()


RULES = {
    "target-only": Rule("target-only", sample_every_node, weights, False),
    "rejection": Rule("rejection", reject_by_rows, weights, True),
}
