"""Ways in which a number leaves torch: followed where Python can be, refused elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Noise, Symbol

_READERS = (
    "numpy",
    "__array__",
    "data_ptr",
    "__dlpack__",
    "untyped_storage",
    "storage",
    "_typed_storage",
    "share_memory_",
    "__reduce_ex__",
    "__deepcopy__",
)
"""Methods that hand out the memory itself."""


class RandomNumber:
    """A Python number that a random element became: compared, it decides as the tensor would.

    It holds the element as float64, which is what `Tensor.item` makes of it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __lt__(self, other: Any) -> bool:
        return bool(self._tensor < _plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self._tensor <= _plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self._tensor > _plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self._tensor >= _plain(other))

    def __add__(self, other: Any) -> "RandomNumber":
        return RandomNumber(self._tensor + _plain(other))

    def __radd__(self, other: Any) -> "RandomNumber":
        return RandomNumber(_plain(other) + self._tensor)

    def __sub__(self, other: Any) -> "RandomNumber":
        return RandomNumber(self._tensor - _plain(other))

    def __rsub__(self, other: Any) -> "RandomNumber":
        return RandomNumber(_plain(other) - self._tensor)

    def __mul__(self, other: Any) -> "RandomNumber":
        return RandomNumber(self._tensor * _plain(other))

    def __rmul__(self, other: Any) -> "RandomNumber":
        return RandomNumber(_plain(other) * self._tensor)

    def __truediv__(self, other: Any) -> "RandomNumber":
        return RandomNumber(self._tensor / _plain(other))

    def __rtruediv__(self, other: Any) -> "RandomNumber":
        return RandomNumber(_plain(other) / self._tensor)

    def __neg__(self) -> "RandomNumber":
        return RandomNumber(-self._tensor)

    def __float__(self) -> float:
        return float(self._tensor)  # refused by the mode, which names the line

    __int__ = __index__ = __float__  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._tensor)

    def __eq__(self, other: object) -> bool:
        return bool(self._tensor == _plain(other))

    def __hash__(self) -> int:
        return hash(float(self))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*[_plain(argument) for argument in args], **(kwargs or {}))


def _plain(number: Any) -> Any:
    return number._tensor if isinstance(number, RandomNumber) else number


@contextmanager
def watched(steering: Steering) -> Iterator[None]:
    """Watch the methods of tensors through which numbers leave torch."""
    kept: dict[str, Any] = {}
    patches = {
        "item": _item(steering, Tensor.item),
        "tolist": _tolist(steering, Tensor.tolist),
        **{
            name: _reader(steering, name, getattr(Tensor, name))
            for name in _READERS
            if hasattr(Tensor, name)
        },
    }
    try:
        for name, patch in patches.items():
            kept[name] = Tensor.__dict__.get(name)
            setattr(Tensor, name, patch)
        yield
    finally:
        for name, original in kept.items():
            if original is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, original)


def _symbol(steering: Steering, tensor: Any) -> Symbol | None:
    """What is random in a tensor after everything that can be drawn was."""
    if not steering.shadows:
        return None
    with _disable_current_modes():
        symbol = steering.shadows.of(tensor)
        if symbol is None or steering.settle_in(tensor, symbol):
            return None
        return symbol


def _item(steering: Steering, original: Callable[..., Any]) -> Callable[..., Any]:
    def item(self: Tensor) -> Any:
        if self.numel() == 1 and isinstance(_symbol(steering, self), Noise):
            return RandomNumber(self.reshape(()).double())
        return original(self)

    return item


def _tolist(steering: Steering, original: Callable[..., Any]) -> Callable[..., Any]:
    def tolist(self: Tensor) -> Any:
        symbol = _symbol(steering, self)
        if symbol is None:
            return original(self)
        if not isinstance(symbol, Noise):
            raise steering.refuse("Tensor.tolist of random numbers, which cannot be followed")
        return self.item() if self.dim() == 0 else [row.tolist() for row in self]

    return tolist


def _reader(steering: Steering, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def reader(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if _symbol(steering, self) is not None:
            raise steering.refuse(
                f"Tensor.{name} hands out random numbers, which cannot be followed"
            )
        return original(self, *args, **kwargs)

    return reader
