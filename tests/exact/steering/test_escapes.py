"""Numbers that leave torch are followed or refused, with operation and line."""

import copy
import ctypes
import io
import math
import pickle

import numpy as np
import pytest
import torch

from specverify.errors import CannotSteer
from specverify.exact.steering.escapes import RandomNumber
from tests.exact.steering.following import LAW, WEIGHTS, check, coins, refused, steered, uniform

CDF = WEIGHTS.cumsum(0).tolist()


def buffer_of_items(g):
    u = torch.empty((), dtype=torch.float64)
    first = u.uniform_(generator=g).item()
    second = u.uniform_(generator=g).item()
    return [first < 0.3, second < 0.6]


def inverted(g):
    level, reached = uniform(g).item(), 0.0
    for x, weight in enumerate(WEIGHTS.tolist()):
        reached += weight
        if level < reached:
            return x
    return 2


def inverted_by_subtraction(g):
    level = uniform(g).item()
    for x, weight in enumerate(WEIGHTS.tolist()[:-1]):
        level -= weight
        if level < 0:
            return x
    return 2


def set_item(g):
    x = torch.zeros(2, dtype=torch.float64)
    x[0], x[1] = uniform(g).item(), uniform(g).item()
    return x < torch.tensor([0.3, 0.6], dtype=torch.float64)


PAIR = coins(0.3, 0.3)
FOLLOWED = {
    "item": (lambda g: uniform(g).item() < 0.3, coins(0.3)),
    "item on the right": (lambda g: 0.3 > uniform(g, 1).item(), coins(0.3)),  # noqa: SIM300
    "if": (lambda g: 1 if uniform(g).item() <= 0.3 else 0, coins(0.3)),
    "against a tensor": (lambda g: WEIGHTS[1] > uniform(g).item(), coins(0.3)),
    "arithmetic": (lambda g: 2 * uniform(g).item() + 1 < 1.6, coins(0.3)),
    "quotient": (lambda g: uniform(g).item() / 0.5 >= 0.6, coins(0.7)),
    "reflected": (lambda g: 1 - uniform(g).item() > 0.7, coins(0.3)),
    "power": (lambda g: uniform(g).item() ** 2 < 0.09, coins(0.3)),
    "negative": (lambda g: -uniform(g).item() > -0.3, coins(0.3)),
    "min": (lambda g: min(0.5, uniform(g).item()) < 0.3, coins(0.3)),
    "buffer": (buffer_of_items, coins(0.3, 0.6)),
    "tolist": (lambda g: [[x < 0.3 for x in row] for row in uniform(g, 1, 2).tolist()], PAIR),
    "torch.tensor": (
        lambda g: torch.tensor([x.item() for x in uniform(g, 2)], dtype=torch.float64) < 0.3, PAIR
    ),
    "torch.tensor of float32": (
        lambda g: torch.tensor([x.item() for x in uniform(g, 2, dtype=torch.float32)]) < 0.25,
        coins(0.25, 0.25),
    ),
    "keyword": (lambda g: torch.add(torch.zeros(1), other=uniform(g).item()) < 0.3, coins(0.3)),
    "setitem": (set_item, coins(0.3, 0.6)),
    "numpy number": (lambda g: np.float64(0.3) > uniform(g).item(), coins(0.3)),
    "inversion": (inverted, LAW),
    "inversion by subtraction": (inverted_by_subtraction, LAW),
    "tokens": (lambda g: torch.multinomial(WEIGHTS, 1, generator=g).item(), LAW),
    "list of tokens": (lambda g: torch.multinomial(WEIGHTS, 1, generator=g).tolist(), LAW),
    "tokens in numpy": (
        lambda g: torch.from_numpy(torch.multinomial(WEIGHTS, 1, generator=g).numpy() + 0), LAW
    ),
    "coins in numpy": (lambda g: int((uniform(g, 1) < 0.3).numpy().sum()), coins(0.3)),
    "coins in a list": (lambda g: (uniform(g, 1) < 0.3).tolist(), coins(0.3)),
    "copied token": (lambda g: copy.deepcopy(torch.multinomial(WEIGHTS, 1, generator=g)), LAW),
}  # fmt: skip


@pytest.mark.parametrize(("emit", "law"), FOLLOWED.values(), ids=FOLLOWED)
def test_followed(emit, law):
    check(
        emit, law, 1e-7 if emit in (FOLLOWED["torch.tensor"][0], FOLLOWED["keyword"][0]) else 1e-12
    )


def test_a_number_is_rounded_beside_a_tensor_as_torch_rounds_it():
    level = torch.tensor(0.3, dtype=torch.bfloat16)
    heads = float((torch.arange(1 << 16).double() * 2.0**-16).to(torch.bfloat16).lt(level).sum())
    found = steered(lambda g: level > uniform(g).item()).probabilities
    assert abs(found[1,] - heads / (1 << 16)) < 2**-15
    assert abs(found[1,] - float(level)) > 2**-12


def saved(tensor):
    torch.save(tensor, io.BytesIO())


def ctypes_read(tensor):
    return ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_double))[0]


ESCAPES = {
    "numpy": lambda u: u.numpy()[0] < 0.5,
    "detached numpy": lambda u: u.detach().cpu().numpy()[0] < 0.5,
    "asarray": lambda u: np.asarray(u)[0] < 0.5,
    "numpy function": lambda u: np.log(u).sum() < 0.5,
    "dlpack": lambda u: np.from_dlpack(u)[0] < 0.5,
    "data_ptr": ctypes_read,
    "storage": lambda u: u.untyped_storage().tolist()[0] < 5,
    "typed storage": lambda u: u.storage()[0] < 0.5,
    "view as bytes": lambda u: u.view(torch.int8).tolist()[0] < 0,
    "deepcopy": lambda u: copy.deepcopy(u),
    "copy": copy.copy,
    "pickle": pickle.dumps,
    "save": saved,
    "apply_": lambda u: u.apply_(lambda x: float(x < 0.5)),
    "map_": lambda u: torch.zeros(2).double().map_(u, lambda _, x: float(x < 0.5)),
    "repr": lambda u: repr(u),
    "float": lambda u: float(u[0]) < 0.5,
    "int": lambda u: int(u[0] * 3),
    "bool": lambda u: bool(u[0]),
    "format": lambda u: f"{u[0]:.3f}",
    "number as text": lambda u: str(u[0].item()),
    "formatted number": lambda u: f"{u[0].item():.3f}",
    "rounded number": lambda u: round(u[0].item()),
    "absolute number": lambda u: abs(u[0].item() - 0.5) < 0.1,
    "whole number": lambda u: int(u[0].item() * 3),
    "remainder": lambda u: u[0].item() % 1 < 0.3,
    "math": lambda u: math.log(u[0].item()) < -1,
    "floor": lambda u: math.floor(u[0].item() * 3),
    "equal": lambda u: u[0].item() == 0.5,
    "in a set": lambda u: u[0].item() in {0.5},
    "as a scalar argument": lambda u: torch.full((2,), u[0].item()) < 0.5,
    "two numbers": lambda u: u[0].item() < u[1].item(),
    "sorted": lambda u: sorted(u.tolist()),
    "array of numbers": lambda u: np.array(u.tolist(), dtype=float),
    "range": lambda u: range(u[0].item()),
}


@pytest.mark.parametrize("read", ESCAPES.values(), ids=ESCAPES)
def test_refused(read):
    def emit(g):
        read(uniform(g, 2))
        return 0

    refused(emit)


@pytest.mark.parametrize("name", ["numpy", "data_ptr", "deepcopy", "int", "format", "math", "map_"])
def test_refusals_name_the_line(name):
    error = refused(lambda g: ESCAPES[name](uniform(g, 2)), r"test_escapes\.py:\d+: ")
    assert f'"{name}": ' in str(error) or "ctypes" in str(error)


@pytest.mark.parametrize("name", ["numpy", "storage", "int", "remainder", "map_"])
def test_a_refusal_that_is_swallowed_is_raised_all_the_same(name):
    def emit(g):
        u = uniform(g, 2)
        try:
            ESCAPES[name](u)
        except Exception:
            return 0
        return 1

    refused(emit)


def test_plain_tensors_are_handed_out():
    def emit(g):
        u = uniform(g, 1) < 0.3
        plain = torch.ones(2)
        assert plain.numpy().sum() == 2
        assert copy.deepcopy(plain).tolist() == [1.0, 1.0]
        assert f"{plain[0]:.1f}" == "1.0"
        return u

    check(emit, coins(0.3))


def test_methods_are_restored():
    names = ("item", "tolist", "numpy", "data_ptr", "map_", "__deepcopy__", "__reduce_ex__")
    before = [torch.Tensor.__dict__.get(name) for name in names], torch.tensor, torch.as_tensor
    with pytest.raises(CannotSteer):
        steered(lambda g: uniform(g).numpy())
    after = [torch.Tensor.__dict__.get(name) for name in names], torch.tensor, torch.as_tensor
    assert before == after
    assert not isinstance(torch.rand(()).item(), RandomNumber)
