"""Steering imports nothing while a subject runs: it would take of the subject's time limit."""

import subprocess
import sys

SCRIPT = """
import sys
import torch
from torch import Generator
from specverify.exact import edge_coins, joint_distribution
from specverify.exact.round import Round

late = set()

def rule(tokens, q, p, generator):
    before = set(sys.modules)
    x = tokens[..., None]
    ratio = (p[:, :1].gather(2, x) / q.gather(2, x))[..., 0]
    kept = torch.rand(ratio.shape, dtype=p.dtype, generator=generator) < ratio
    weights = torch.where(kept, p[:, 1], (p[:, 0] - q[:, 0]).clamp(min=0))
    last = torch.multinomial(weights, 1, generator=generator)
    _ = torch.rand((), generator=generator).item() < 0.5
    result = torch.cat([tokens.where(kept, last), last.where(kept, -1)], 1)
    late.update(set(sys.modules) - before)
    return result

round = Round.random(3, 1)
assert joint_distribution(rule, round).probabilities
assert edge_coins.edge_coin_outcomes(rule, round, batch=True, seed=0, maximum_calls=1000)
print(sorted(late))
"""


def test_everything_is_there_before_a_subject_is_called() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ran.stdout, ran.returncode) == ("[]\n", 0), ran.stderr
