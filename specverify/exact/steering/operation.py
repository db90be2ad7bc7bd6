"""One torch operation as the mode sees it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class Operation:
    """An operator with its arguments."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    raised: Exception | None = field(default=None, init=False)
    """What `run` raised: an error of the subject's."""

    @cached_property
    def name(self) -> str:
        """Without namespace, overload and the underscore of in-place variants."""
        return self._name.rstrip("_") if self.in_place else self._name

    @cached_property
    def _name(self) -> str:
        return self.func._schema.name.split("::")[1]

    @cached_property
    def in_place(self) -> bool:
        """Whether it writes its first argument."""
        return self._name.endswith("_") and not self._name.endswith("__")

    @cached_property
    def functional(self) -> Any:
        """The operator that leaves its arguments alone."""
        if not self.in_place:
            return self.func
        return getattr(getattr(torch.ops.aten, self.name), self.func._overloadname)

    def argument(self, name: str, *, default: Any = None) -> Any:
        """An argument by the name it has in the schema."""
        for place, declared in enumerate(self.func._schema.arguments):
            if declared.name == name:
                if place < len(self.args):
                    return self.args[place]
                return self.kwargs.get(name, default)
        return default

    @property
    def generator(self) -> Generator:
        """The one it draws from; torch's global one if none is given."""
        given = self.kwargs.get("generator")
        if given is None:
            given = next((a for a in self.args if isinstance(a, Generator)), None)
        return torch.default_generator if given is None else given

    def heads(self, integers: int) -> Tensor:
        """For `bernoulli`: how many of so many integers are heads, long.

        To be read before an in-place form overwrites its probabilities.
        """
        given = self.argument("p", default=0.5) if self.in_place else self.argument("p")
        given = self.args[0] if given is None else given
        return (
            (torch.as_tensor(given, dtype=torch.float64) * integers).nan_to_num(0.0).round().long()
        )

    def run(self) -> Any:
        """Carry it out on what the tensors hold."""
        try:
            return self.func(*self.args, **self.kwargs)
        except Exception as error:
            object.__setattr__(self, "raised", error)
            raise

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor among the arguments, lists included."""
        for argument in (*self.args, *self.kwargs.values()):
            if isinstance(argument, Tensor):
                yield argument
            elif isinstance(argument, (list, tuple)):
                yield from (entry for entry in argument if isinstance(entry, Tensor))

    def written(self) -> Iterator[Tensor]:
        """Tensors it writes."""
        for place, declared in enumerate(self.func._schema.arguments):
            if declared.alias_info is None or not declared.alias_info.is_write:
                continue
            given = self.args[place] if place < len(self.args) else self.kwargs.get(declared.name)
            if isinstance(given, Tensor):
                yield given
            elif isinstance(given, (list, tuple)):
                yield from (entry for entry in given if isinstance(entry, Tensor))


def replaced(args: Sequence[Any], place: int, value: Any) -> list[Any]:
    """Arguments with one of them exchanged."""
    return [value if index == place else argument for index, argument in enumerate(args)]
