"""Random walks over SGLang's scheduler, allocator, prefix cache and EAGLE worker: after each turn all is as it must be.

What is compared after every turn: `rollback_check.check`. The longer form is ``rollback_soak.py``.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollback_shapes import mix_of, shape_of
from rollback_walk import Mix, Walk
from rollback_world import Shape, world

TURNS = 40


@given(data=st.data(), seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_any_walk_keeps_lengths_slots_free_list_and_cache(data: st.DataObject, seed: int) -> None:
    def choose(options: object) -> object:
        return data.draw(st.sampled_from(options))  # type: ignore[arg-type, call-overload]

    shape, mix = shape_of(choose), mix_of(choose)
    with world(shape, seed) as made:
        Walk(made, Random(seed), mix).run(TURNS)


TIGHT = (
    Shape(slots=140, rows=8, chunk=16),
    Shape(topk=2, steps=3, nodes=8, slots=170, rows=8, cache="radix", overlap=False),
    Shape(topk=4, steps=2, nodes=8, slots=1600, page=16, cache="unified-python"),
)
WAYS = {
    "prefixes hit",
    "evicted tokens",
    "retracted",
    "stopped inside a path",
    "reached their limit",
    "aborted",
    "aborted in the queue",
    "aborted between chunks",
}


def test_every_way_for_a_request_to_go_is_walked() -> None:
    tally = Counter[str]()
    for shape in TIGHT:
        with world(shape, 5) as made:
            walk = Walk(made, Random(5), Mix(arrive=1.0, abort=0.15))
            walk.run(100)
        tally.update(walk.model.tally)
        assert set(walk.model.histogram) == set(range(shape.steps + 1)), dict(walk.model.histogram)
    assert not [way for way in WAYS if not tally[way]], dict(tally)


def test_the_cache_follows_texts_that_go_on_from_each_other() -> None:
    """Each request goes on where the one before ended: the cache holds all but the last token of what it said."""
    with world(Shape(slots=400, overlap=False), 3) as made:
        walk = Walk(made, Random(3))
        prompt, hits = [5, 6, 7], Counter[int]()
        for number in range(6):
            name = f"r{number}"
            walk.ask(name, prompt, 12)
            while walk.turn():
                pass
            hits[number] = made.requests[name].cached_tokens
            prompt = walk.model.texts[name].truth[: len(prompt) + 12]
        # Of a text of n tokens the last was never computed and a key needs the next token, so n - 2 are cached.
        assert [hits[number] for number in range(6)] == [0, *(3 + 12 * number - 2 for number in range(1, 6))]
