"""How long the profiles take on two cores, from the command line to the exit code.

python benchmarks/profiles.py [--quick]
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from common import goal, parse_quick

import specverify

HERE = Path(__file__).parent
COMMAND = str(Path(sys.executable).with_name("specverify"))


@specverify.subject(kind="rule", algorithm="token", coin_dtype="float64")
def verify(draft_tokens, draft_probs, target_probs, generator):
    """Leviathan et al. (2023), written as most engines do."""
    size = draft_tokens.shape[1]
    p = target_probs[:, :-1].gather(2, draft_tokens[:, :, None]).squeeze(2)
    q = draft_probs.gather(2, draft_tokens[:, :, None]).squeeze(2)
    coins = torch.rand(p.shape, generator=generator, dtype=torch.float64)
    accepted = (coins * q < p).long().cumprod(1).sum(1)
    leftover = (target_probs[:, :-1] - draft_probs).clamp(min=0)
    residual = torch.cat([leftover, target_probs[:, -1:]], 1)
    rows = torch.arange(len(p))
    weights = residual[rows, accepted]
    # Where p and q are an ulp apart, rounding can leave no residual to draw from.
    nothing = weights.sum(1, keepdim=True) == 0
    weights = torch.where(nothing, target_probs[rows, accepted], weights)
    last = weights.multinomial(1, generator=generator)
    places = torch.arange(size + 1)
    tokens = torch.cat([draft_tokens, last], 1)
    tokens = torch.where(places == accepted[:, None], last, tokens)
    return tokens.where(places <= accepted[:, None], -1)


def seconds(*arguments: str, codes: Sequence[int] = (0,)) -> float:
    """Wall time of a certification; its exit code has to be one of `codes`."""
    command = [COMMAND, "certify", *arguments, "--jobs", "2"]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    if done.returncode not in codes:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
    return time.perf_counter() - begin


def main() -> None:
    """Time a rule, decoders on tables and on real models, and the standard profile."""
    quick = parse_quick("seconds of a certification by profile")
    rows = [
        ("quick, a rule, toy pair, s", 30, ("profiles:verify",)),
        ("quick, reference decoder, toy pair, s", 180, ("reference",)),
        ("quick, reference decoder, trained pair, s", 180, ("reference", "--pair", "trained")),
        ("quick, transformers, trained pair, s", 180, ("transformers", "--pair", "trained")),
    ]
    if not quick:
        standard = ("reference", "--pair", "trained", "--profile", "standard")
        rows += [
            ("standard, reference decoder, trained pair, s", 1200, standard),
            ("standard, reference decoder, toy pair, s", 1200, ("reference", *standard[3:])),
        ]
    for name, most, arguments in rows:
        # 2, inconclusive, is an honest outcome of a slow loop on few tokens.
        print(goal(name, seconds(*arguments, codes=(0, 2)), most, at_least=False), flush=True)


if __name__ == "__main__":
    main()
