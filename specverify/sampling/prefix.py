"""Results in the order of their shards, whatever order they were completed in.

Evidence evaluated in order of completion is biased: shards that end early differ from those that
end late, as short runs do from long ones, and stopping then looks at what it should not. The
contiguous prefix of finished shards does not depend on how fast any of them was.
"""

from collections.abc import Generator, Iterator, Mapping
from typing import Generic, TypeVar

from specverify.errors import SpecverifyError

T = TypeVar("T")

_NAMED = 5
"""Shards named in a message."""


class FinishedShards(Generic[T]):
    """Results by shard, handed out in the order of the shards.

    Adding and merging are a union by key: associative, commutative and idempotent. What a shard
    gives depends on its index alone, so a result that comes twice, because a shard thought lost
    was run again, is the same result. Nothing is summed here: sums are taken over what `take`
    hands out, so that even float sums do not depend on who was faster.
    """

    def __init__(self, results: Mapping[int, T] | None = None) -> None:
        self.waiting: dict[int, T] = {}
        self.turn = 0
        """The shard that is handed out next."""
        for index, result in (results or {}).items():
            self.add(index, result)

    def add(self, index: int, result: T) -> None:
        """Add a shard, once; raise `SpecverifyError` for a negative index."""
        if index < 0:
            raise SpecverifyError(f"shard {index} came; shards are counted from 0")
        if index >= self.turn:
            self.waiting.setdefault(index, result)

    def merge(self, other: "FinishedShards[T]") -> None:
        """Add the shards that another engine finished."""
        for index, result in other.waiting.items():
            self.add(index, result)

    def take(self) -> Iterator[T]:
        """Hand out the shards whose turn it is."""
        while self.turn in self.waiting:
            result = self.waiting.pop(self.turn)
            self.turn += 1
            yield result


def in_order(results: Iterator[tuple[int, T]]) -> Generator[T, None, None]:
    """Yield the results of shards 0, 1, 2, ... as soon as all before them are in.

    What comes early is kept until its turn, what comes twice is dropped. When this generator ends
    or is closed, so is its source.

    Args:
        results: (index, result) in any order.

    Raises:
        SpecverifyError: an index is negative, or one never came though later ones did.
    """
    finished: FinishedShards[T] = FinishedShards()
    try:
        for index, result in results:
            finished.add(index, result)
            yield from finished.take()
        if finished.waiting:
            later = sorted(finished.waiting)
            names = ", ".join(map(str, later[:_NAMED])) + (", ..." if len(later) > _NAMED else "")
            raise SpecverifyError(
                f"shard {finished.turn} never came, though later ones did ({names}); the engine "
                "must run a lost shard again, or raise what ended it"
            )
    finally:
        close = getattr(results, "close", None)
        if close is not None:
            close()
