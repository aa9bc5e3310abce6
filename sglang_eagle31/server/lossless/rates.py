"""What of a round counts for a request's acceptance rate: the drafted positions that could become output.

A tree of any width proposes one token a depth on the path that is walked, so a round offers as many as the tree is
deep. A round whose tokens are cut off by a stop or by ``max_new_tokens`` is looked at as far as it was used: its
tokens up to the end are all accepted drafts, for the bonus token is the last.
"""

from __future__ import annotations


def counted(accepted: int, depth: int, emitted: int) -> tuple[int, int]:
    """Accepted and offered drafts of one round.

    Args:
        accepted: drafts that verification accepted; one bonus token follows them.
        depth: draft steps of the round.
        emitted: tokens of the round in the output, at most ``accepted + 1``.

    Returns:
        (accepted, offered) among the positions that were used.
    """
    if emitted > accepted:
        return accepted, depth
    used = max(emitted, 0)
    return used, used


def emitted(run: int, outputs: int, finished_len: int | None) -> int:
    """Tokens of a run in the output; negative when a stop string ended it before the run.

    Args:
        run: tokens that the round appended.
        outputs: length of the output with them.
        finished_len: where the output ends, None while it goes on.
    """
    return run if finished_len is None else run - max(0, outputs - finished_len)
