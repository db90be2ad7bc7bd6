"""Elementwise operations on random numbers: recorded, never computed."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specverify.exact.steering import grid
from specverify.exact.steering.operation import Operation
from specverify.exact.steering.steering import Steering
from specverify.exact.steering.symbols import Form, Noise, Step, Symbol

MONOTONE = frozenset(
    [
        "mul",
        "add",
        "sub",
        "rsub",
        "div",
        "true_divide",
        "log",
        "log2",
        "log10",
        "log1p",
        "exp",
        "expm1",
        "neg",
        "reciprocal",
        "sqrt",
        "pow",
        "square",
        "clamp",
        "clamp_min",
        "clamp_max",
        "minimum",
        "maximum",
        "sigmoid",
        "_to_copy",
    ]
)
"""Operations that never change direction on [0, 1], whatever the other operand."""

SLACK = 1e-9
"""Largest constant that may be added to a race's noise, or cut off it, as a guard against zero: it
changes the outcome with a probability of the same size."""

_NEAR_UNIFORM = 1e-6
_RACING = (torch.float32, torch.float64)
_FLIPPED: dict[str, dict[Form | None, Form]] = {
    "neg": {"neg": "exp", "exp": "neg", "log": "gum", "gum": "log"},
    "reciprocal": {"exp": "inv", "inv": "exp"},
    "log": {"exp": "log", "inv": "gum"},
    "exp": {"log": "exp", "gum": "inv", "neg": "order", "order": "order"},
}


def arithmetic(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Apply one of `MONOTONE` to noise.

    Args:
        steering: the run.
        operation: with exactly one noisy argument.
        symbols: by position among the arguments.
    """
    ((place, noise),) = symbols.items()
    assert isinstance(noise, Noise)
    result = operation.functional(*operation.args, **operation.kwargs)
    if not isinstance(result, Tensor) or not result.is_floating_point():
        raise steering.refuse(f"{operation.name} turns a random number into {result.dtype}")
    noise = noise.map(lambda field: field.expand(result.shape))
    form, log_weight = _raced(operation, place, noise)
    others = [a for i, a in enumerate(operation.args) if isinstance(a, Tensor) and i != place]
    step = Step(_call_of(operation, place), len(others))
    noise = replace(
        noise,
        steps=(*noise.steps, step),
        operands=(*noise.operands, *(other.expand(result.shape) for other in others)),
        form=form,
        log_weight=log_weight,
    )
    if operation.in_place:
        operation.args[0].copy_(result)
        result = operation.args[0]
    steering.shadows.set(result, noise)
    return result


def softmax(steering: Steering, operation: Operation, symbols: dict[int, Symbol]) -> Any:
    """Softmax keeps the order along its dimension, and with it who wins a race."""
    noise = symbols.get(0)
    if not isinstance(noise, Noise) or noise.form not in ("gum", "order"):
        raise steering.refuse(f"{operation.name} of random numbers")
    result = operation.run()
    weight = noise.log_weight
    assert weight is not None
    steering.shadows.set(result, Noise(noise.ids, form="order", log_weight=weight))
    return result


def _call_of(operation: Operation, place: int) -> Any:
    """The operation as a function of the random value and the other tensors."""
    func, args, kwargs = operation.functional, operation.args, dict(operation.kwargs)

    def call(value: Tensor, operands: Sequence[Tensor]) -> Tensor:
        rest = list(operands)
        filled = [
            value if i == place else (rest.pop(0) if isinstance(a, Tensor) else a)
            for i, a in enumerate(args)
        ]
        return func(*filled, **kwargs)

    return call


def _raced(operation: Operation, place: int, noise: Noise) -> tuple[Form | None, Tensor | None]:
    """Form and weight in a race after the operation; None where it fits no race any more."""
    name, form = operation.name, noise.form
    other = _other(operation, place)
    if form is None:
        if name == "log" and _near_uniform(noise):
            return "neg", torch.zeros(noise.ids.shape, dtype=torch.float64)
        if name == "pow" and place == 0 and _near_uniform(noise):
            return "order", -_log(other).expand(noise.ids.shape)
        return None, None
    weight = noise.log_weight
    assert weight is not None
    if name in _FLIPPED:
        flipped = _FLIPPED[name].get(form)
        return (None, None) if flipped is None else (flipped, weight)
    if name == "_to_copy":
        kept = operation.kwargs.get("dtype", torch.float32) in _RACING
        return (form, weight) if kept else (None, None)
    if name in ("mul", "div", "true_divide"):
        return _scaled(name, place, form, weight, other)
    if name in ("add", "sub", "rsub"):
        return _shifted(operation, name, place, form, weight, other)
    if name in ("clamp", "clamp_min", "clamp_max"):
        bounds = [abs(float(b)) for b in operation.args[1:] if isinstance(b, (int, float))]
        harmless = all(b <= SLACK or math.isinf(b) for b in bounds)
        return (form, weight) if harmless and form in ("exp", "neg") else (None, None)
    return None, None


def _scaled(
    name: str, place: int, form: Form, weight: Tensor, other: Any
) -> tuple[Form | None, Tensor | None]:
    if _is(other, -1.0) and form in _FLIPPED["neg"]:
        return _FLIPPED["neg"][form], weight
    factor = _log(other)
    if name != "mul" and place == 1:
        turned: dict[Form, tuple[Form, Tensor]] = {
            "exp": ("inv", weight + factor),
            "inv": ("exp", weight - factor),
        }
        return turned.get(form, (None, None))
    if name != "mul":
        factor = -factor
    if form in ("exp", "neg"):
        return form, weight - factor
    if form == "inv":
        return form, weight + factor
    positive = not isinstance(other, Tensor) or other.numel() == 1
    return (
        ("order", weight)
        if form != "log" and positive and bool(factor.isfinite())
        else (None, None)
    )


def _shifted(
    operation: Operation, name: str, place: int, form: Form, weight: Tensor, other: Any
) -> tuple[Form | None, Tensor | None]:
    if operation.kwargs.get("alpha", 1) != 1:
        return None, None
    if form in ("exp", "neg", "inv", "order"):
        tiny = isinstance(other, (int, float)) and abs(other) <= SLACK
        return (form, weight) if tiny and form in ("exp", "neg") else (None, None)
    shift = torch.as_tensor(other).double()
    negated = name == "rsub" or (name == "sub" and place == 1)
    if name == "sub" and place == 0:
        shift = -shift
    if negated:
        form = _FLIPPED["neg"][form]
    return form, weight + (shift if form == "gum" else -shift)


def _near_uniform(noise: Noise) -> bool:
    if noise.dtype not in _RACING:
        return False
    ends = torch.zeros_like(noise.ids)
    last = (1 << grid.BITS[noise.dtype]) - 1
    low, high = noise.value(ends).double(), noise.value(ends + last).double()
    return bool(((low.abs() <= _NEAR_UNIFORM) & ((high - 1).abs() <= _NEAR_UNIFORM)).all())


def _other(operation: Operation, place: int) -> Any:
    rest = [a for i, a in enumerate(operation.args[:2]) if i != place]
    return rest[0] if rest else None


def _log(other: Any) -> Tensor:
    """Logarithm of a weight; a negative one never wins against a positive one."""
    value = torch.as_tensor(other).double()
    return torch.where(value < 0, -torch.inf, value.clamp(min=0).log())


def _is(other: Any, number: float) -> bool:
    return isinstance(other, (int, float)) and other == number
