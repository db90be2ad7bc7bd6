"""Ways in which a number leaves torch: followed where Python can be, refused elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from specverify.errors import CannotSteer
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Noise, Symbol

_READERS = (
    "numpy",
    "__array__",
    "data_ptr",
    "const_data_ptr",
    "__dlpack__",
    "untyped_storage",
    "storage",
    "_typed_storage",
    "share_memory_",
    "apply_",
    "map_",
    "map2_",
    "__repr__",
    "__reduce_ex__",
    "__deepcopy__",
)
"""Methods that hand out the memory itself, or read it without torch's dispatcher."""


with _disable_current_modes():
    """It imports on its first use, which must not be within the time limit of a subject's call."""


class RandomNumber:
    """A Python number that a random element became: compared, it decides as the tensor would.

    It holds the element as float64, which is what `Tensor.item` makes of it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __lt__(self, other: Any) -> bool:
        return bool(_beside(self, other) < _plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(_beside(self, other) <= _plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(_beside(self, other) > _plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(_beside(self, other) >= _plain(other))

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

    def __pow__(self, other: Any) -> "RandomNumber":
        return RandomNumber(self._tensor ** _plain(other))

    def __rpow__(self, other: Any) -> "RandomNumber":
        return RandomNumber(_plain(other) ** self._tensor)

    def __neg__(self) -> "RandomNumber":
        return RandomNumber(-self._tensor)

    def __pos__(self) -> "RandomNumber":
        return self

    def __float__(self) -> float:
        return float(self._tensor)  # refused by the mode, which names the line

    def _used(self, *_: Any) -> Any:
        """Any other use of the number needs its value."""
        return float(self)

    __int__ = __index__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = _used
    __abs__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = _used
    __str__ = __repr__ = __format__ = is_integer = hex = as_integer_ratio = conjugate = _used
    __reduce_ex__ = __copy__ = __deepcopy__ = __hash__ = _used  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._tensor)

    def __eq__(self, other: object) -> bool:
        return bool(self._tensor == _plain(other))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        others = [a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Tensor)]

        def plain(argument: Any) -> Any:
            if isinstance(argument, (list, tuple)):
                return type(argument)(plain(entry) for entry in argument)
            if not isinstance(argument, RandomNumber):
                return argument
            return _beside(argument, others[0]) if others else argument._tensor

        arguments = {name: plain(argument) for name, argument in (kwargs or {}).items()}
        return func(*[plain(argument) for argument in args], **arguments)


def _beside(number: RandomNumber, other: Any) -> Tensor:
    """The number as it counts beside a tensor: it does not change the tensor's precision."""
    if isinstance(other, Tensor):
        return number._tensor.to(torch.result_type(other, 1.0))
    return number._tensor


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
    tensor_of, as_tensor = torch.tensor, torch.as_tensor
    try:
        for name, patch in patches.items():
            kept[name] = Tensor.__dict__.get(name)
            setattr(Tensor, name, patch)
        torch.tensor = _tensor(steering, tensor_of)  # type: ignore[assignment]
        torch.as_tensor = _tensor(steering, as_tensor)  # type: ignore[assignment]
        yield
    except Exception as error:
        if RandomNumber.__name__ in str(error):
            raise steering.refuse(
                f"a random number is used in a way not followed: {error}"
            ) from error
        raise
    finally:
        torch.tensor, torch.as_tensor = tensor_of, as_tensor
        for name, original in kept.items():
            if original is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, original)


def _symbol(steering: Steering, tensor: Any) -> Symbol | None:
    """What is random in a tensor after everything that can be drawn was."""
    if not steering.shadows:
        return None
    try:
        with _disable_current_modes():
            symbol = steering.shadows.of(tensor)
            if symbol is None or steering.settle_in(tensor, symbol):
                return None
            return symbol
    except CannotSteer as error:
        steering.refusal = steering.refusal or error
        raise


def _item(steering: Steering, original: Callable[..., Any]) -> Callable[..., Any]:
    def item(self: Tensor) -> Any:
        if self.numel() == 1 and isinstance(_symbol(steering, self), Noise):
            steering.numbers_out = True
            return RandomNumber(self.reshape(()).double().clone())
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


def _tensor(steering: Steering, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` and `torch.as_tensor`, which look into lists without torch's dispatcher."""

    def holds_random(data: Any) -> bool:
        if isinstance(data, (list, tuple)):
            return any(holds_random(entry) for entry in data)
        if isinstance(data, Tensor):
            return bool(steering.shadows) and steering.shadows.among((data,))
        return isinstance(data, RandomNumber)

    def stacked(data: Any, dtype: torch.dtype | None) -> Tensor:
        if isinstance(data, (list, tuple)):
            entries = [stacked(entry, dtype) for entry in data]
            if len({entry.dtype for entry in entries}) > 1:
                raise steering.refuse("a tensor is made of random numbers and others")
            return torch.stack(entries)
        if isinstance(data, RandomNumber):
            return data._tensor.to(dtype or torch.get_default_dtype())
        if isinstance(data, Tensor):
            return data.detach().clone() if dtype is None else data.detach().to(dtype)
        return original(data, dtype=dtype)

    def tensor(data: Any, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        if not isinstance(data, (list, tuple, RandomNumber)) or not holds_random(data):
            return original(data, *args, dtype=dtype, **kwargs)
        return stacked(data, dtype)

    return tensor


def _reader(steering: Steering, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def reader(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        tensors = [self, *(argument for argument in args if isinstance(argument, Tensor))]
        if any(_symbol(steering, tensor) is not None for tensor in tensors):
            raise steering.refuse(
                f"Tensor.{name} hands out random numbers, which cannot be followed"
            )
        with _disable_current_modes():
            steering.shadows.hand_out(self)
        return original(self, *args, **kwargs)

    return reader
