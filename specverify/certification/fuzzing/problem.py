"""What is searched: inputs of one kind of subject, and how it is tried on one of them."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from hypothesis.strategies import SearchStrategy
from pydantic import JsonValue

from specverify.certification.fuzzing.sampled import Counted, Stream
from specverify.certification.registry import Property
from specverify.exact.joint import Joint
from specverify.subjects.protocols import Subject

T = TypeVar("T", bound=Hashable)

InputKind = Literal["round", "world", "row"]


@dataclass(frozen=True)
class Region(Generic[T]):
    """Inputs of one size."""

    name: str
    inputs: SearchStrategy[T]


@dataclass(frozen=True)
class Computed:
    """What a subject makes of one input, by computation."""

    violation: str = ""
    """What is wrong; empty if nothing is."""
    crash: str = ""
    """What it raises; empty if it never does."""
    crashing: float = 0.0
    """With which probability."""
    observed: Joint = field(default_factory=dict)
    expected: Joint = field(default_factory=dict)
    """Both empty for a transform, which emits nothing."""
    numbers: Mapping[str, Any] | None = None
    """Fields of an `ExactRecord`."""


class Problem(ABC, Generic[T]):
    """A property of a subject, on inputs that can be drawn, written down and read again."""

    kind: InputKind
    property_id: str

    def __init__(self, subject: Subject, property: Property, seed: int, time_limit: float) -> None:
        self.subject = subject
        self.property = property
        self.seed = seed
        self.time_limit = time_limit

    @abstractmethod
    def regions(self) -> Sequence[Region[T]]:
        """Inputs in the order in which they are searched, the smallest first."""

    @abstractmethod
    def smaller(self, value: T) -> Sequence[Region[T]]:
        """Inputs smaller than one that fails, the smallest first, where it may be shown too.

        Making numbers smaller step by step does not lead from one size to another.
        """

    @abstractmethod
    def passes_over(self, value: T) -> bool:
        """Whether nothing can be said: the subject refuses it, or right ones differ on it."""

    @abstractmethod
    def compute(self, value: T) -> Computed:
        """Try the subject on an input, exactly.

        Raises:
            CannotSteer: its randomness cannot be followed.
            SubjectError: it raised whatever it drew, hung, or returned something malformed.
        """

    @abstractmethod
    def count(self, value: T, stream: Stream, call: int) -> Counted:
        """Sample the subject on an input.

        Args:
            value: the input.
            stream: source of all draws.
            call: which part of the stream.

        Raises:
            SubjectError: as `compute`.
        """

    @abstractmethod
    def given(self, value: T) -> str:
        """The input in words: `Let ... .`."""

    @abstractmethod
    def inputs(self, value: T) -> dict[str, JsonValue]:
        """Its numbers, which `load` reads."""

    @abstractmethod
    def load(self, inputs: Mapping[str, JsonValue]) -> T:
        """The input of these numbers.

        Raises:
            UsageError: they are missing or malformed.
        """

    @abstractmethod
    def tolerance(self, value: T) -> float:
        """Largest total variation of a right subject on an input."""
