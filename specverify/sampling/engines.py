"""Who runs the shards of a case: this process here, worker processes in `processes`."""

from collections.abc import Callable, Generator, Sequence
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class Engine(Protocol):
    """Runs shards. What a shard gives must depend on its index alone, never on who runs it.

    An engine that sends shards elsewhere, to worker processes or to a cluster, must guarantee:

    - each index is yielded at most once, whatever was run twice on the way;
    - results may come in any order (`prefix.in_order` restores it), and none is left behind: the
      generator ends once all have come;
    - a shard lost for reasons of its own (a machine that left, a queue that was restarted) is run
      again; one that the code under test ends is an error, for it would end the same way again,
      or, where that is contained, what the work's method `lost(index, how)` makes of it;
    - an exception raised by the work is raised by the generator;
    - only a bounded number of shards is under way beyond those yielded, so that an early stop
      wastes little, and closing the generator ends those promptly;
    - the work is picklable and is sent once to each machine or process, not with each shard.
    """

    def run(
        self, work: Callable[[int], T], indices: Sequence[int]
    ) -> Generator[tuple[int, T], None, None]:
        """Yield (index, what the work gave for it), in order of completion.

        Args:
            work: gives the state of the shard of an index.
            indices: the shards wanted, each once.
        """
        ...

    def close(self) -> None:
        """End whatever the engine keeps running between runs; it starts again when used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InProcess(Engine):
    """One shard after the other in this process; none is run before its result is asked for."""

    def run(
        self, work: Callable[[int], T], indices: Sequence[int]
    ) -> Generator[tuple[int, T], None, None]:
        for index in indices:
            yield index, work(index)
