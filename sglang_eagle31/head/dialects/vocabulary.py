"""The draft vocabulary: own or shared ``lm_head`` and embedding, and the map ``d2t`` to the target's tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sglang_eagle31.head.checkpoint import Checkpoint
from sglang_eagle31.head.keys import Keys
from sglang_eagle31.head.reading import Reading, Target


def read_vocabulary(head: Checkpoint, target: Target, reading: Reading, keys: Keys, shares: str) -> None:
    """Put the vocabulary's fields; a shipped head or embedding is the one that is used, tied or not.

    ``shares`` says where the producer leaves ``lm_head`` to the target: ``never``, ``null``, ``full``.
    """
    tensors = {new: head.tensors[old] for old, new in reading.names.items()}
    stated, tied = keys.count("draft_vocab_size", ""), keys.flag("tie_word_embeddings")
    rows = next(iter(tensors["lm_head.weight"].shape), 0) if "lm_head.weight" in tensors else 0
    own_head, own_embedding = rows > 0, "embed_tokens.weight" in tensors
    size = rows or (int(stated.value) if stated else target.vocab_size)
    keys.count("vocab_size")
    reading.put("vocab_size", target.vocab_size, target.source)
    reading.put("draft_vocab_size", size, "tensor lm_head.weight" if own_head else "config draft_vocab_size")
    reading.put("own_head", own_head, f"tensor lm_head.weight {'present' if own_head else 'absent'}")
    reading.put("own_embedding", own_embedding, f"tensor embed_tokens.weight {_is(own_embedding)}")
    reading.put("vocab_map", size < target.vocab_size, f"draft vocabulary {size} of {target.vocab_size}")
    if stated and stated.value != size:
        reading.refusals.append(
            f"config.json has {stated.where}={stated.value}, lm_head.weight has {size} rows; fix: correct the key"
        )
    if tied and tied.value and own_embedding and not own_head:
        reading.refusals.append(
            "config.json ties lm_head to an embedding of the head's own; fix: export lm_head.weight as well"
        )
    if size > target.vocab_size:
        reading.refusals.append(
            f"lm_head.weight: the head has {size} tokens, the target only {target.vocab_size}; "
            "fix: use the head of this target"
        )
    elif not own_head and stated is not None:
        reading.refusals.append(
            f"config.json has {stated.where}={stated.value}, so lm_head.weight should be there and is not; fix: export "
            "the head, or set draft_vocab_size to null if it shares the target's"
        )
    elif not own_head and not (shares == "full" or (shares == "null" and stated is None)):
        has = f"tensor lm_head.weight is missing, which {reading.producer} writes"
        reading.refusals.append(f"{has}; fix: export the head again")
    _map(head, target, reading, size)


def _map(head: Checkpoint, target: Target, reading: Reading, size: int) -> None:
    if size == target.vocab_size:
        reading.refusals += check_used(head, np.arange(size), size)
    original = {new: old for old, new in reading.names.items()}.get("d2t")
    if original is None:
        if size < target.vocab_size:
            reading.refusals.append(
                f"lm_head.weight has {size} of the target's {target.vocab_size} tokens and there is no d2t that says "
                "which; fix: export the head with d2t (target id minus draft id, for each draft id)"
            )
        return
    tensor = head.tensors[original]
    if tensor.dtype not in ("I64", "I32") or tensor.shape != (size,):
        return  # the loader says what is wrong with it
    if size == target.vocab_size:
        reading.names.pop(original)
        if head.numbers(original).any():
            reading.refusals.append(
                "d2t maps to other tokens although the draft vocabulary is the target's; fix: export the head again"
            )
        return
    reading.refusals += check_vocabulary_map(head, original, target.vocab_size)


def check_vocabulary_map(head: Checkpoint, name: str, vocab_size: int) -> list[str]:
    """Reasons for which ``d2t`` is not ``target_id = draft_id + d2t[draft_id]``, checked with ``t2d`` if shipped."""
    d2t = head.numbers(name).astype(np.int64)
    ids = d2t + np.arange(d2t.size)
    if (ids[1:] <= ids[:-1]).any() or ids.min() < 0 or ids.max() >= vocab_size:
        absolute = (d2t[1:] > d2t[:-1]).all() and d2t.min() >= 0 and d2t.max() < vocab_size
        hint = " (it looks like absolute ids)" if absolute else ""
        return [f"d2t is not in offset form over {vocab_size} target tokens{hint}; fix: store used[i] - i"]
    if any(item.rpartition(".")[2] == "t2d" for item in head.tensors):
        return check_used(head, ids, vocab_size)
    if ids.size < vocab_size and not d2t.any():
        return ["d2t is all zero, as when it was never filled, and no t2d tells; fix: store t2d beside it"]
    if ids.size > 1 and (d2t[1:] > d2t[:-1]).all():
        return ["d2t may be offsets or absolute ids, and no t2d tells which; fix: store t2d beside it"]
    return []


def check_used(head: Checkpoint, ids: NDArray[np.int64], vocab_size: int) -> list[str]:
    """Reasons for which ``t2d``, if there is one, does not name the target tokens ``ids`` and no others."""
    t2d = next((item for item in head.tensors if item.rpartition(".")[2] == "t2d"), None)
    if t2d is None:
        return []
    tensor = head.tensors[t2d]
    if tensor.shape != (vocab_size,):
        has = f"t2d has shape {list(tensor.shape)}, the target {vocab_size} tokens"
        return [f"{has}; fix: use the head of this target"]
    if tensor.dtype not in ("BOOL", "U8", "I8", "I32", "I64"):
        return [f"t2d is {tensor.dtype}, expected BOOL; fix: export the head again"]
    used = head.numbers(t2d).astype(bool)
    if used.sum() != ids.size or not used[ids].all():
        return ["d2t and t2d name different tokens; fix: export the head again"]
    return []


def _is(present: bool) -> str:
    return "present" if present else "absent"
