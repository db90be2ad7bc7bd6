"""Which elements of which tensors are random: kept by storage, so that views and bases agree."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specverify.errors import CannotSteer
from specverify.exact.steering.symbols import Pending, Symbol, concrete

_storage_of = torch.Tensor.untyped_storage
_NO_STORAGE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


@dataclass
class _Shadow:
    owner: Tensor
    """Keeps the storage alive, so that its address is not used again."""
    symbol: Symbol
    """Aligned with the elements of the whole storage."""


class Shadows:
    """Symbols by storage."""

    def __init__(self) -> None:
        self._shadows: dict[int, _Shadow] = {}
        self._handed_out: dict[int, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._shadows)

    def among(self, arguments: Iterable[Any]) -> bool:
        """Whether any tensor among the arguments, lists included, holds something random."""
        for argument in arguments:
            if isinstance(argument, Tensor):
                if _key(argument) in self._shadows and self.of(argument) is not None:
                    return True
            elif isinstance(argument, (list, tuple)) and self.among(argument):
                return True
        return False

    def of(self, tensor: Tensor) -> Symbol | None:
        """The symbol of a tensor, aligned with its shape; None if nothing in it is random."""
        shadow = self._shadows.get(_key(tensor))
        if shadow is None:
            return None
        if shadow.owner.dtype != tensor.dtype:
            raise CannotSteer(
                f"random numbers of {shadow.owner.dtype} are read as {tensor.dtype} through "
                "view(dtype)"
            )
        symbol = shadow.symbol.map(lambda field: _window(field, tensor))
        return None if concrete(symbol.ids) else symbol

    def set(self, tensor: Tensor, symbol: Symbol) -> None:
        """Say what a tensor holds from now on.

        Raises:
            CannotSteer: other parts of its storage hold random numbers with another history.
        """
        shadow = self._shadows.get(_key(tensor))
        if shadow is not None and not shadow.symbol.like(symbol):
            _window(shadow.symbol.ids, tensor).fill_(-1)
            if not concrete(shadow.symbol.ids):
                raise CannotSteer(
                    "random numbers with different histories are put into one tensor, part by part"
                )
            shadow = None
        if _key(tensor) in self._handed_out:
            raise CannotSteer(
                "random numbers are put into memory that was handed out before, by .numpy() or the "
                "like, and may be read there"
            )
        if shadow is None:
            size = _storage_of(tensor).nbytes() // tensor.element_size()
            flat = symbol.map(lambda field: field.new_zeros(size))
            flat.ids.fill_(-1)
            shadow = self._shadows[_key(tensor)] = _Shadow(tensor.detach(), flat)
        # What is put in may be a view of what is there.
        fields = [field.clone() for field in symbol.aligned()]
        for flat, field in zip(shadow.symbol.aligned(), fields, strict=True):
            _window(flat, tensor).copy_(field)

    def hand_out(self, tensor: Tensor) -> None:
        """Note that a tensor's memory is read by something that is not seen, from now on."""
        self._handed_out[_key(tensor)] = tensor.detach()

    def clear(self, tensor: Tensor) -> None:
        """Say that a tensor holds plain values from now on."""
        shadow = self._shadows.get(_key(tensor))
        if shadow is not None:
            _window(shadow.symbol.ids, tensor).fill_(-1)
            if concrete(shadow.symbol.ids):
                del self._shadows[_key(tensor)]

    def put(self, known: Mapping[int, int]) -> None:
        """Replace drawn tokens by their values, wherever they have been carried."""
        for key, shadow in list(self._shadows.items()):
            if not isinstance(shadow.symbol, Pending):
                continue
            ids, owner = shadow.symbol.ids, shadow.owner
            values = torch.empty(0, dtype=owner.dtype).set_(_storage_of(owner))
            for place, draw in enumerate(ids.tolist()):
                if draw in known:
                    values[place] = known[draw]
                    ids[place] = -1
            if concrete(ids):
                del self._shadows[key]


def _key(tensor: Tensor) -> int:
    if tensor.layout in _NO_STORAGE:
        return -1
    return _storage_of(tensor)._cdata


def _window(field: Tensor, tensor: Tensor) -> Tensor:
    return field.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
