"""Elementwise operations on random numbers: recorded, never computed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
"""Operations that change direction nowhere, or at zero alone (`_TURNING`)."""

_TURNING = frozenset(
    ["div", "true_divide", "log", "log2", "log10", "log1p", "pow", "reciprocal", "sqrt", "square"]
)
"""Monotone on either side of zero only (`log1p`: of -1; `div`: of a divisor)."""

SLACK = 1e-9
"""Largest constant that may be added to a race's noise, or cut off it, as a guard against zero, as
a multiple of what it races with: it changes the outcome with a probability of the same size."""

NORMALISED = Step(lambda value, operands: value, 1)
"""Stands for a softmax, after which elements race only against those it normalised them with; its
operand is the same number for all of these."""

_NEAR_UNIFORM = 1e-6
_SHARES = (0.0, 2**-20, 2**-10, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1 - 2**-10, 1.0)
"""Where a function of a uniform is looked at to see whether it is still uniform."""

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
    if operation.in_place and result.dtype != operation.args[0].dtype:
        raise steering.refuse(
            f"{operation.name}_ of random {result.dtype} numbers into {operation.args[0].dtype}"
        )
    # Cloned, since an in-place operation overwrites what the fields are views of.
    noise = noise.map(lambda field: field.expand(result.shape).clone())
    if _turns(operation, place, noise):
        raise steering.refuse(f"{operation.name} of random numbers on both sides of where it turns")
    form, log_weight = _raced(operation, place, noise, result.dtype)
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
    together = noise.ids.amax(operation.argument("dim"), keepdim=True).expand(result.shape)
    steering.shadows.set(
        result,
        Noise(
            noise.ids, steps=(NORMALISED,), operands=(together,), form="order", log_weight=weight
        ),
    )
    return result


@dataclass(frozen=True)
class _Call:
    """The operation as a function of the random value and the other tensors."""

    func: Any
    place: int
    args: tuple[Any, ...]
    """None in place of tensors."""
    tensors: tuple[int, ...]
    """Places of the tensors besides the random one."""
    kwargs: tuple[tuple[str, Any], ...]

    def __call__(self, value: Tensor, operands: Sequence[Tensor]) -> Tensor:
        filled = list(self.args)
        filled[self.place] = value
        for place, operand in zip(self.tensors, operands, strict=True):
            filled[place] = operand
        return self.func(*filled, **dict(self.kwargs))


def _call_of(operation: Operation, place: int) -> _Call:
    args = operation.args
    tensors = tuple(i for i, a in enumerate(args) if isinstance(a, Tensor) and i != place)
    plain = tuple(None if isinstance(a, Tensor) else a for a in args)
    return _Call(operation.functional, place, plain, tensors, tuple(operation.kwargs.items()))


def _turns(operation: Operation, place: int, noise: Noise) -> bool:
    """Whether the operation changes direction somewhere among the values of a uniform."""
    name = operation.name
    if noise.dtype is None or name not in _TURNING:
        return False
    if name in ("div", "true_divide") and place == 0:
        return False
    if name == "pow" and place == 1:
        return bool((torch.as_tensor(operation.args[0]) < 0).any())
    random = noise.ids >= 0
    first, last = (_at(noise, share)[random] + (name == "log1p") for share in (0.0, 1.0))
    return bool((first.signbit() != last.signbit()).any())


def _raced(
    operation: Operation, place: int, noise: Noise, dtype: torch.dtype
) -> tuple[Form | None, Tensor | None]:
    """Form and weight in a race after the operation; None where it fits no race any more."""
    name, form = operation.name, noise.form
    other = _other(operation, place)
    if dtype not in _RACING or operation.kwargs.get("rounding_mode") is not None:
        return None, None
    if form is None:
        if (name == "log" and _near_uniform(noise)) or (
            name == "log1p" and _near_uniform(noise, add=1.0)
        ):
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
        return form, weight
    if name in ("mul", "div", "true_divide"):
        return _scaled(name, place, form, weight, other)
    if name in ("add", "sub", "rsub"):
        return _shifted(operation, name, place, form, weight, other)
    if name in ("clamp", "clamp_min", "clamp_max"):
        return (form, weight) if _harmless(operation, form, weight) else (None, None)
    return None, None


def _harmless(operation: Operation, form: Form, weight: Tensor) -> bool:
    """Whether a clamp cuts off nothing but what lies next to zero, on the side of zero."""
    given = {
        "clamp": (operation.argument("min"), operation.argument("max")),
        "clamp_min": (operation.argument("min"), None),
        "clamp_max": (None, operation.argument("max")),
    }[operation.name]
    low, high = given if form == "exp" else given[::-1]
    if form not in ("exp", "neg"):
        return False
    open_ = high is None or (isinstance(high, (int, float)) and math.isinf(high))
    return open_ and (low is None or _tiny(low, weight))


def _tiny(number: Any, weight: Tensor) -> bool:
    """Whether adding it to E/w changes next to nothing, whatever the weight."""
    largest = weight[weight.isfinite()].amax().exp() if bool(weight.isfinite().any()) else 1.0
    size = (
        float(torch.as_tensor(number, dtype=torch.float64).abs().max())
        if isinstance(number, (int, float, Tensor))
        else math.inf
    )
    return size * max(1.0, float(largest)) <= SLACK


def _scaled(
    name: str, place: int, form: Form, weight: Tensor, other: Any
) -> tuple[Form | None, Tensor | None]:
    if _is(other, -1.0) and form in _FLIPPED["neg"]:
        return _FLIPPED["neg"][form], weight
    below = form in ("exp", "neg") and (name == "mul" or place == 0)
    if (below or (form == "inv" and name != "mul")) and _signed(other):
        # What divides the noise, and is negative or -0.0, always wins where it should lose.
        return None, None
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
        kept = form in ("exp", "neg") and not (name == "rsub" or (place == 1 and name == "sub"))
        return (form, weight) if kept and _tiny(other, weight) else (None, None)
    shift = torch.as_tensor(other, dtype=torch.float64)
    negated = name == "rsub" or (name == "sub" and place == 1)
    if name == "sub" and place == 0:
        shift = -shift
    if negated:
        form = _FLIPPED["neg"][form]
    return form, weight + (shift if form == "gum" else -shift)


def _near_uniform(noise: Noise, add: float = 0.0) -> bool:
    """Whether `add` to it is still uniform on [0, 1), or 1 minus such a number."""
    if noise.dtype not in _RACING:
        return False
    random = noise.ids >= 0
    shares = torch.tensor(_SHARES, dtype=torch.float64)
    values = torch.stack([_at(noise, share)[random] for share in _SHARES], -1) + add
    rising = (values - shares).abs() <= _NEAR_UNIFORM
    falling = (values - (1 - shares)).abs() <= _NEAR_UNIFORM
    return bool((rising | falling).all()) and bool((rising.all(-1) | falling.all(-1)).all())


def _at(noise: Noise, share: float) -> Tensor:
    """Value of noise whose uniforms have come so far along the grid, float64."""
    assert noise.dtype is not None
    last = (1 << grid.BITS[noise.dtype]) - 1
    return noise.value(torch.full_like(noise.ids, round(share * last))).double()


def _other(operation: Operation, place: int) -> Any:
    rest = [a for i, a in enumerate(operation.args[:2]) if i != place]
    return rest[0] if rest else None


def _signed(other: Any) -> bool:
    return bool(torch.as_tensor(other).signbit().any())


def _log(other: Any) -> Tensor:
    """Logarithm of a weight; a negative one never wins against a positive one."""
    value = torch.as_tensor(other, dtype=torch.float64)
    return torch.where(value < 0, -torch.inf, value.clamp(min=0).log())


def _is(other: Any, number: float) -> bool:
    """Whether it is that number, or a tensor of nothing else."""
    if isinstance(other, Tensor):
        return other.numel() > 0 and bool((other == number).all())
    return isinstance(other, (int, float)) and other == number
