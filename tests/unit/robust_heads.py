"""Made-up heads: facts of a server, and answers whose drafts are right with known probabilities."""

from dataclasses import replace

import numpy as np

from sglang_eagle31.tools.robust.ask import Reply
from sglang_eagle31.tools.robust.measurement import HeadResult, measure
from sglang_eagle31.tools.shared.prompts import Case
from sglang_eagle31.tools.shared.served_head import head_of

INFO = {
    "model_path": "/models/target",
    "version": "0.5.23",
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "/models/head",
    "speculative_num_steps": 4,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 5,
    "max_req_input_len": 9000,
}


def head(**changes):
    """Facts of a chain server whose head has 32768 positions and no window."""
    known = {"positions": 32768, "window": None, "config_known": True}
    return replace(head_of("head", "http://x", INFO), **{**known, **changes})


def answers(condition, accept, prompts=20, rounds=60, seed=0):
    """Replies of as many rounds each; draft k is right with probability ``accept[k]``."""
    random = np.random.default_rng(seed)
    found = []
    for prompt in range(prompts):
        right = random.random((rounds, len(accept))) < np.array(accept)
        histogram = np.bincount(right.cumprod(1).sum(1), minlength=len(accept) + 1)
        ids = tuple(range(rounds + int(histogram @ np.arange(len(histogram)))))
        found.append(Reply(Case(condition, prompt, (1,) * 8), ids, tuple(map(int, histogram)), rounds, "length"))
    return found


def result(conditions, of=None, **kwargs):
    """A `HeadResult` from acceptance by depth of each condition."""
    depth = len(next(iter(conditions.values())))
    measured = {
        name: measure(name, answers(name, accept, seed=seed, **kwargs), depth, 0)
        for seed, (name, accept) in enumerate(conditions.items())
    }
    return HeadResult(of or head(), measured)
