"""What a steered run knows: its path, which elements are random, which draws are pending."""

from dataclasses import dataclass, field

from torch import Generator, Tensor

from specverify.errors import CannotSteer
from specverify.exact.steering.draws import Draws
from specverify.exact.steering.generators import Generators
from specverify.exact.steering.path import Path
from specverify.exact.steering.shadows import Shadows
from specverify.exact.steering.source_line import Line, current_line
from specverify.exact.steering.symbols import Counted, Noise, Pending, Symbol, Threshold


@dataclass
class Steering:
    """State of one run."""

    path: Path
    generator: Generator | None = None
    """The generator the subject was handed."""
    shadows: Shadows = field(default_factory=Shadows)
    refusal: CannotSteer | None = None
    """What was refused, kept since the subject may catch the exception."""
    global_draws: dict[Line, None] = field(default_factory=dict)
    """Lines that draw from torch's global generator."""
    repeated: dict[tuple[Line, Line], None] = field(default_factory=dict)
    """Pairs of lines that drew from the same state of a generator."""

    numbers_out: bool = False
    """Whether a random number was handed out as a Python object."""
    raised: Exception | None = None
    """What the last operation raised, if it did."""

    def __post_init__(self) -> None:
        self.draws = Draws(self.path, self.shadows)
        self.generators = Generators(self.generator)
        self.states: dict[int, tuple[Line, Noise | None]] = {}
        """Digests of generator states that were drawn from."""

    def refuse(self, reason: str) -> CannotSteer:
        """The error that ends the run; raise it."""
        if self.refusal is None:
            self.refusal = CannotSteer(f"{reason} (at {current_line()})")
        return self.refusal

    def settle(self, symbol: Symbol) -> bool:
        """Take draws that are pending; whether the symbol consists of such."""
        if isinstance(symbol, Pending):
            self.draws.take(symbol.ids)
            return True
        return False

    def settle_in(self, tensor: Tensor, symbol: Symbol) -> bool:
        """Turn what is random in a tensor into plain values where it can be.

        Returns:
            Whether all of it could.
        """
        if isinstance(symbol, Threshold):
            self.decide_where(tensor, None)
            return True
        if isinstance(symbol, Counted):
            coins, dim, counts = symbol.origin
            self.decide_where(coins, None)
            counts.copy_(coins.cumsum(dim))
            self.shadows.clear(counts)
            return True
        return self.settle(symbol)

    def decide_where(self, tensor: Tensor, needed: Tensor | None) -> None:
        """Decide coins of a tensor, in place.

        Args:
            tensor: what holds them.
            needed: bool, which of them; all if None. Rows in step decide all if any needs it.
        """
        symbol = self.shadows.of(tensor)
        if not isinstance(symbol, Threshold):
            return
        random = symbol.ids >= 0
        if needed is not None and self.path.rows == 1:
            random &= needed
        ids = symbol.ids[random]
        self.draws.settle(ids)
        decided = self.path.decide(ids, symbol.cut[random], symbol.above[random], current_line())
        tensor[random] = decided.to(tensor.dtype)
        self.shadows.set(
            tensor, Threshold(symbol.ids.masked_fill(random, -1), *symbol.aligned()[1:])
        )
