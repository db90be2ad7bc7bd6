"""Watches generators, so that nothing draws from them unseen."""

import torch
from torch import Generator

from specverify.errors import CannotSteer


class Generators:
    """The states of every generator that a run is known to draw from.

    A state that moved on its own, under an unchanged seed, is a draw that the mode did not see: in
    a custom operator, or in another thread.
    """

    def __init__(self, handed: Generator | None) -> None:
        self._last: dict[int, tuple[Generator, int]] = {}
        self._seen: set[bytes] = set()
        for generator in (torch.default_generator, handed):
            if generator is not None:
                self.moved(generator)

    def state(self, generator: Generator) -> bytes:
        """The state that the next draw starts from.

        Raises:
            CannotSteer: the generator was drawn from unseen.
        """
        state = _state_of(generator)
        known = self._last.get(id(generator))
        if known is not None and state not in self._seen and generator.initial_seed() == known[1]:
            raise CannotSteer(
                "something draws random numbers unseen, such as a custom operator or another thread"
            )
        self._seen.add(state)
        return state

    def moved(self, generator: Generator) -> None:
        """Note where a draw that was seen has left a generator."""
        self._seen.add(_state_of(generator))
        self._last[id(generator)] = (generator, generator.initial_seed())

    def check(self) -> None:
        """Look at all of them once more, at the end of a run."""
        for generator, _ in list(self._last.values()):
            self.state(generator)


def _state_of(generator: Generator) -> bytes:
    return generator.get_state().numpy().tobytes()
