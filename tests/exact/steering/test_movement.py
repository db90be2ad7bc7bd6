import pytest
import torch

from tests.exact.steering.following import (
    LAW,
    WEIGHTS,
    check,
    coins,
    product_law,
    refused,
    token,
    uniform,
)

LEVELS = torch.tensor([0.3, 0.6], dtype=torch.float64)


def written_by_halves(g):
    u = torch.zeros(2, 1, dtype=torch.float64)
    u[0].uniform_(generator=g)
    u[1, 0] = uniform(g)
    return u[:, 0]


def copied_before_it_is_overwritten(g):
    u = uniform(g, 2)
    kept = u.clone()
    u.fill_(0.0)
    return kept


def behind_data(g):
    u, v = uniform(g, 2), torch.zeros(2, dtype=torch.float64)
    v.data = u
    return v


UNIFORMS = {
    "index": lambda g: torch.stack([(u := uniform(g, 5))[3], u[1]]),
    "view": lambda g: uniform(g, 2).view(1, 2).view(-1),
    "transpose": lambda g: uniform(g, 2, 1).t().contiguous().view(2),
    "chunk": lambda g: torch.cat(uniform(g, 6).chunk(3)[1:])[1:3],
    "unbind": lambda g: torch.stack(uniform(g, 2, 3).unbind(1)[1:])[0],
    "expand": lambda g: uniform(g, 2, 1).expand(2, 4)[:, 2],
    "stack": lambda g: torch.stack([uniform(g) for _ in range(2)]),
    "cat": lambda g: torch.cat([uniform(g, 1), uniform(g, 1)]),
    "cat with numbers": lambda g: torch.cat([uniform(g, 2), torch.ones(2).double()])[:2],
    "gather": lambda g: uniform(g, 3).gather(0, torch.tensor([2, 0])),
    "index_select": lambda g: uniform(g, 3).index_select(0, torch.tensor([2, 0])),
    "mask": lambda g: uniform(g, 3)[torch.tensor([True, False, True])],
    "where": lambda g: torch.where(torch.tensor([True, False]), uniform(g, 2), uniform(g, 2)),
    "masked_fill": lambda g: uniform(g, 3).masked_fill(torch.arange(3) == 1, 0.0)[::2],
    "flip and roll": lambda g: uniform(g, 2).flip(0).roll(1),
    "pad": lambda g: torch.nn.functional.pad(uniform(g, 2), (1, 1), value=0.5)[1:3],
    "repeat": lambda g: uniform(g, 1, 2).repeat(2, 1)[1],
    "scatter": lambda g: (
        torch.zeros(3).double().scatter(0, torch.tensor([2, 0]), uniform(g, 2))[::2]
    ),
    "setitem": written_by_halves,
    "clone": copied_before_it_is_overwritten,
    "data": behind_data,
    "detach": lambda g: uniform(g, 2).requires_grad_().detach(),
    "einsum": lambda g: torch.einsum("i,i->i", uniform(g, 2), torch.ones(2).double()),
}


@pytest.mark.parametrize("emit", UNIFORMS.values(), ids=UNIFORMS)
def test_uniforms_are_carried(emit):
    check(lambda g: emit(g) < LEVELS, coins(0.3, 0.6))


def drawn_into_buffer(g):
    out = torch.zeros(2, dtype=torch.long)
    out[1:] = token(g)
    out[0] = token(g)[0]
    return out


def swapped(g):
    drawn = token(g, 2)
    drawn[0], drawn[1] = drawn[1].clone(), drawn[0].clone()
    return drawn


TWO = product_law(LAW, LAW)
DOUBLED = {(x, 2 * x): mass for (x,), mass in LAW.items()}


def mapped(function, law=LAW):
    expected = {}
    for key, mass in law.items():
        image = function(*key)
        expected[image] = expected.get(image, 0.0) + mass
    return expected


TOKENS = {
    "stack": (lambda g: torch.stack([token(g), token(g)]), TWO),
    "setitem": (drawn_into_buffer, TWO),
    "swap": (swapped, TWO),
    "flip": (lambda g: token(g, 2).flip(0), TWO),
    "float": (lambda g: token(g, 2).float(), TWO),
    "int32": (lambda g: token(g, 2).to(torch.int32), TWO),
    "int8": (lambda g: token(g, 2).to(torch.int8).long(), TWO),
    "bool": (lambda g: token(g).bool().long(), coins(0.5)),
    "embedding": (
        lambda g: torch.tensor([2, 0, 1])[token(g)],
        mapped(lambda x: ((2, 0, 1)[x],)),
    ),
    "weights of a drawn row": (
        lambda g: torch.cat(
            [x := token(g), torch.multinomial(torch.eye(3).double()[x[0]], 1, generator=g)]
        ),
        mapped(lambda x: (x, x)),
    ),
    "arithmetic": (lambda g: torch.cat([x := token(g), 2 * x]), DOUBLED),
    "sum": (lambda g: token(g, 2).sum(), mapped(lambda x, y: (x + y,), TWO)),
    "sort": (lambda g: token(g, 2).sort().values, mapped(lambda x, y: (*sorted((x, y)),), TWO)),
    "compared": (
        lambda g: (x := token(g, 2))[0] == x[1],
        mapped(lambda x, y: (int(x == y),), TWO),
    ),
    "where": (
        lambda g: torch.where(uniform(g, 1) < 0.25, 7, token(g)),
        {(7,): 0.25, **{key: 0.75 * mass for key, mass in LAW.items()}},
    ),
    "mask": (
        lambda g: token(g, 2).masked_fill(torch.tensor([False, True]), 9),
        product_law(LAW, {(9,): 1.0}),
    ),
    "written at a drawn place": (
        lambda g: torch.zeros(3, dtype=torch.long).scatter(0, token(g), 1),
        mapped(lambda x: tuple(int(i == x) for i in range(3))),
    ),
    "accumulated": (
        lambda g: torch.ones(2, dtype=torch.long).index_put_(
            (torch.tensor([1]),), token(g), accumulate=True
        ),
        mapped(lambda x: (1, 1 + x)),
    ),
    "scattered with a sum": (
        lambda g: torch.ones(2, dtype=torch.long).scatter_(
            0, torch.tensor([1]), token(g), reduce="add"
        ),
        mapped(lambda x: (1, 1 + x)),
    ),
    "repeated as often": (
        lambda g: torch.arange(2).repeat_interleave(torch.cat([token(g), torch.tensor([1])])).sum(),
        {(1,): 1.0},
    ),
    "one-hot": (
        lambda g: torch.nn.functional.one_hot(token(g), 3),
        mapped(lambda x: tuple(int(i == x) for i in range(3))),
    ),
    "isin": (lambda g: torch.isin(token(g), torch.tensor([0, 2])), coins(0.7)),
    "control flow": (
        lambda g: [1, 0] if token(g) == 2 else [0, int(token(g))],
        {(1, 0): 0.2, **{(0, x): 0.8 * mass for (x,), mass in LAW.items()}},
    ),
}


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize(("emit", "law"), TOKENS.values(), ids=TOKENS)
def test_tokens_are_carried(emit, law):
    check(emit, law)


@pytest.mark.parametrize(
    "emit",
    [
        lambda g: torch.zeros(1, dtype=torch.long).fill_(uniform(g)) < 0.5,
        lambda g: torch.zeros(1, dtype=torch.bfloat16).fill_(uniform(g)) < 0.5,
        lambda g: torch.where(torch.tensor([True]), uniform(g, 1).float(), WEIGHTS[:1]) < 0.1,
        lambda g: torch.stack([uniform(g), 2 * uniform(g)]) < 0.5,
        lambda g: torch.where(uniform(g, 1) < 0.5, uniform(g, 1), uniform(g, 1) + 0.5) < 0.6,
        lambda g: uniform(g, 3)[torch.randperm(3, generator=g)] < 0.5,
        lambda g: uniform(g, 4).resize_(2) < 0.5,
        lambda g: torch.zeros(2).double().set_(uniform(g, 2)) < 0.5,
        lambda g: uniform(g, 2).to_sparse().to_dense() < 0.5,
        lambda g: uniform(g, 2).view(torch.int8) < 5,
    ],
)
def test_what_is_not_carried(emit):
    refused(emit)
