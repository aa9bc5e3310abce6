"""The shape of a draft: how deep, how wide, how many tokens are verified."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Shape:
    """One setting of SGLang's three flags; ``Shape()`` is no speculation.

    With topk K, the first draft step proposes K candidates and each later one K for each of the K branches that are
    kept, so there are K + K * K * (steps - 1) to choose from.

    Attributes:
        steps: draft steps of a round, the deepest node; 0 drafts nothing.
        topk: branches that each step keeps; 1 drafts a chain.
        draft_tokens: tokens of a request that the target computes at once, the root included.

    Raises:
        ValueError: numbers that SGLang cannot run or would change.
    """

    steps: int = 0
    topk: int = 1
    draft_tokens: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.steps < 0 or self.topk < 1:
            raise ValueError(f"shape {self}: expected steps >= 0 and topk >= 1; fix: for example 3,1,4")
        if self.topk == 1 and self.draft_tokens != self.steps + 1:
            raise ValueError(
                f"shape {self}: a chain (topk 1) of {self.steps} steps has {self.steps + 1} tokens; "
                f"fix: {self.steps},1,{self.steps + 1}"
            )
        if self.topk > 1 and self.steps == 0:
            raise ValueError(f"shape {self}: no steps, so nothing can branch; fix: 0,1,1")
        if self.topk > 1 and not 2 <= self.draft_tokens <= self.candidates + 1:
            raise ValueError(
                f"shape {self}: expected 2 to {self.candidates + 1} draft tokens, as {self.steps} steps of topk "
                f"{self.topk} propose {self.candidates} candidates besides the root; fix: fewer draft tokens"
            )

    @classmethod
    def chain(cls, steps: int) -> Shape:
        """A chain of so many steps; 0 is no speculation."""
        return cls(steps, 1, steps + 1)

    @classmethod
    def parse(cls, text: str) -> Shape:
        """``steps,topk,draft_tokens``; of a chain and of no speculation, ``steps`` is enough.

        Raises ValueError for other text.
        """
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) == 1:
            return cls.chain(numbers[0])
        if len(numbers) != 3:
            raise ValueError(f"shape {text!r}: expected steps,topk,draft_tokens or steps; fix: for example 3,1,4")
        return cls(*numbers)

    @property
    def candidates(self) -> int:
        """Drafted tokens among which the verified ones are chosen."""
        return self.topk * (1 + self.topk * (self.steps - 1)) if self.steps else 0

    @property
    def is_chain(self) -> bool:
        """Whether it drafts at all, and without branches."""
        return self.steps > 0 and self.topk == 1

    def flags(self) -> str:
        """For SGLang's command line; empty without speculation."""
        if not self.steps:
            return ""
        return (
            f"--speculative-num-steps {self.steps} --speculative-eagle-topk {self.topk} "
            f"--speculative-num-draft-tokens {self.draft_tokens}"
        )

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.steps},{self.topk},{self.draft_tokens}"


NO_SPECULATION = Shape()
