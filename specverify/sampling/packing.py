"""States of shards as bytes, and back without loss.

Arrays become members of an npz archive, everything else a JSON text beside them. Nothing is ever
unpickled, so a file from elsewhere cannot run code. A digest in front tells damage from data.
"""

import hashlib
import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specverify.errors import UsageError

State = dict[str, Any]
"""Numpy arrays and scalars, int, float, str, bool, None, lists, and dicts with str keys, nested."""

_HEADER = b"specverify state 1\n"
_DIGEST = 32
_JSON = "json"
_KINDS = "biufcSU"
"""Kinds of dtypes that npz keeps exactly without pickling."""

_TAKEN = "take numpy arrays and scalars, int, float, str, bool, None, lists, dicts with str keys"


def pack(state: Mapping[str, Any]) -> bytes:
    """Bytes from which `unpack` makes an equal state: types, dtypes, shapes and float bits.

    Equal states give equal bytes under one version of zlib.

    Raises:
        UsageError: something in it has another type; the message names its key.
    """
    arrays: dict[str, NDArray[Any]] = {}
    text = json.dumps(_encode(dict(state), "", arrays), separators=(",", ":"))
    arrays[_JSON] = np.frombuffer(text.encode("ascii"), np.uint8)
    file = io.BytesIO()
    # Before numpy 2.2 there is no `allow_pickle` here; the kinds of dtypes need none.
    np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
    content = file.getvalue()
    return _HEADER + hashlib.sha256(content).digest() + content


def unpack(content: bytes) -> State:
    """The state that `pack` was given.

    Raises:
        UsageError: the bytes are damaged, cut short, or none that `pack` of this version made.
    """
    start = len(_HEADER) + _DIGEST
    if not content.startswith(_HEADER):
        raise UsageError(
            f"these {len(content)} bytes are no packed state: they do not begin with "
            f"{_HEADER.decode().strip()!r}; delete the file, its shard is then run again"
        )
    if hashlib.sha256(content[start:]).digest() != content[len(_HEADER) : start]:
        raise UsageError(
            f"these {len(content)} bytes are a damaged state: their digest does not match; delete "
            "the file, its shard is then run again"
        )
    try:
        with np.load(io.BytesIO(content[start:]), allow_pickle=False) as archive:
            return _decode(json.loads(archive[_JSON].tobytes()), archive)
    except Exception as error:  # such as a dtype that only another machine has
        raise UsageError(
            f"these {len(content)} bytes hold a state that cannot be read here "
            f"({type(error).__name__}: {error}); delete the file, its shard is then run again"
        ) from error


def _encode(value: Any, key: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """JSON that stands for a value. Dicts stand for themselves, all else in brackets is tagged."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        # Not its digits: JSON has none for infinities, and no text keeps the bits of a NaN.
        return ["float", struct.pack(">d", value).hex()]
    if kind is dict:
        wrong = next((name for name in value if type(name) is not str), None)
        if wrong is not None:
            raise UsageError(
                f"state{key} has the key {wrong!r} of type {type(wrong).__name__}, which cannot be "
                "packed; keys must be strings"
            )
        return {name: _encode(item, f"{key}[{name!r}]", arrays) for name, item in value.items()}
    if kind is list:
        return ["list", *(_encode(item, f"{key}[{i}]", arrays) for i, item in enumerate(value))]
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _KINDS:
        name = str(len(arrays))
        arrays[name] = np.asarray(value)
        return ["array" if kind is np.ndarray else "scalar", name]
    dtype = f" with dtype {value.dtype}" if kind is np.ndarray else ""
    raise UsageError(
        f"state{key} is of type {kind.__qualname__}{dtype}, which cannot be packed; states {_TAKEN}"
    )


def _decode(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, dict):
        return {name: _decode(item, arrays) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    tag, *items = value
    if tag == "float":
        return struct.unpack(">d", bytes.fromhex(items[0]))[0]
    if tag == "list":
        return [_decode(item, arrays) for item in items]
    array = arrays[items[0]]
    return array[()] if tag == "scalar" else array
