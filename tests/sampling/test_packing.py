"""States survive packing to the bit; everything else is refused."""

import struct
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from specverify.errors import UsageError
from specverify.sampling.packing import pack, unpack


def same(left: Any, right: Any) -> bool:
    """Equal in type and to the bit, which `==` is not: NaN, -0.0, 1 == 1.0 == True."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray | np.generic):
        left, right = np.asarray(left), np.asarray(right)
        return (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    return left == right


dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
scalars = arrays.filter(lambda array: array.size > 0).map(lambda array: array.ravel()[0])
leaves = st.one_of(
    arrays,
    scalars,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters()),
    st.lists(st.integers()),
)
states = st.dictionaries(
    st.text(),
    st.recursive(leaves, lambda inner: st.dictionaries(st.text(), inner, max_size=4), max_leaves=6),
)


@settings(max_examples=60)
@given(states)
def test_round_trip_is_exact(state: dict[str, Any]) -> None:
    packed = pack(state)
    assert same(unpack(packed), state)
    assert pack(unpack(packed)) == packed


@pytest.mark.parametrize(
    "value",
    [
        struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0],
        -0.0,
        float("-inf"),
        5e-324,
        0.1 + 0.2,
        2**80,
        -1,
        True,
        "",
        "\ud800 \x00 é",
        [],
        [1, [2, None], {"a": 0.5}],
        ["float", "list"],
        {},
        {"json": np.zeros(2), "0": 1},
        np.float32(0.1),
        np.str_("a"),
        np.array(3),
        np.zeros((0, 3), np.float16),
        np.array(["", "ab"]),
        np.arange(6).reshape(2, 3).T,
        np.arange(10)[::3],
        np.array([1.0, np.nan, -0.0], ">f4"),
    ],
    ids=repr,
)
def test_values_that_are_easily_changed(value: Any) -> None:
    assert same(unpack(pack({"value": value}))["value"], value)


def test_the_comparison_of_these_tests_sees_what_equality_does_not() -> None:
    assert not same(0.0, -0.0)
    assert not same(1, True)
    assert not same(np.zeros(2, np.float32), np.zeros(2))
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert same(float("nan"), float("nan"))


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ((1, 2), "tuple"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (Colour.RED, "Colour"),
        (object(), "object"),
        (np.array([None]), "ndarray with dtype object"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (np.zeros(1, [("a", int)]), "ndarray with dtype"),
        (np.datetime64("2020-01-01"), "datetime64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_types_are_refused_with_their_key(value: Any, what: str) -> None:
    with pytest.raises(UsageError, match=r"state\['case'\]\['items'\]\[1\] is of type " + what):
        pack({"fine": 1, "case": {"items": [0, value]}})


def test_keys_that_are_not_strings_are_refused() -> None:
    with pytest.raises(UsageError, match=r"state\['cells'\] has the key 3 of type int"):
        pack({"cells": {3: 1}})


@given(st.data())
def test_damage_is_an_error_never_another_state(data: st.DataObject) -> None:
    packed = bytearray(pack({"counts": np.arange(5), "total": 0.25}))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UsageError, match="delete the file"):
        unpack(bytes(packed))


@pytest.mark.parametrize("cut", [0, 5, 19, 40, 60, -1])
def test_what_is_cut_short_or_foreign_is_an_error(cut: int) -> None:
    packed = pack({"counts": np.arange(5)})
    with pytest.raises(UsageError):
        unpack(packed[:cut])
    with pytest.raises(UsageError):
        unpack(packed + b"\0")
    with pytest.raises(UsageError, match="no packed state"):
        unpack(b"PK\x03\x04 something else")
