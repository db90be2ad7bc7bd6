"""The floats that torch's uniform generators return, as integers."""

import torch
from torch import Tensor

BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 24, torch.bfloat16: 24}
"""A uniform is an integer below 2^bits over 2^bits; half-width types round a float32 one."""

_WRAPPED = {torch.float16: 1 << 12, torch.bfloat16: 1 << 15}
"""How many of these integers round up to 1.0, which torch replaces by 0.0."""


def values(integers: Tensor, dtype: torch.dtype) -> Tensor:
    """The uniforms that belong to grid integers, in an order in which they never decrease.

    Integer 0 is the smallest uniform. For half-width types the integers that wrap to 0.0 come
    first, so that a larger integer never has a smaller value.

    Args:
        integers: long, any shape, from 0 to 2^BITS[dtype] - 1.
        dtype: one of `BITS`.
    """
    wrapped = _WRAPPED.get(dtype, 0)
    exact = (integers - wrapped).clamp(min=0).double() * 2.0 ** -BITS[dtype]
    return exact.to(dtype)
