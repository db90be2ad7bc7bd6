"""`specverify power`: how many tokens a certification needs, before any is sampled.

Only click is imported at load.
"""

import math
from typing import TYPE_CHECKING

import click

from specverify.certification.limits import MOST_TOKENS
from specverify.errors import UsageError

if TYPE_CHECKING:
    from specverify.reporting.power_table import PowerRow
    from specverify.statistics.triples import Triple


@click.command()
@click.option("--vocab", type=int, required=True, metavar="V", help="Tokens of the vocabulary.")
@click.option(
    "--tv",
    type=float,
    required=True,
    metavar="X",
    help="Deviation to see or to bound: a total variation, or a rate of impossible tokens.",
)
@click.option(
    "--alpha",
    type=float,
    default=1e-6,
    show_default=True,
    help="False-alarm probability of the whole run.",
)
@click.option(
    "--tests",
    type=int,
    metavar="M",
    default=10,
    show_default=True,
    help="Tests that share alpha; the first lines of a report say how many.",
)
@click.option(
    "--power",
    type=float,
    default=0.999,
    show_default=True,
    help="Probability that the deviation raises an alarm.",
)
@click.option(
    "--tokens",
    type=int,
    metavar="N",
    help="Also say what would be seen, and bounded, with so many tokens.",
)
@click.option(
    "--overlap",
    type=float,
    default=0.7,
    show_default=True,
    help="Mean sum of min(p, q) of target and draft: about the acceptance rate.",
)
@click.option(
    "--tokens-per-run",
    type=float,
    default=6.0,
    show_default=True,
    help="Tokens of one run, of which one is a first token.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answers as JSON.")
def power(
    vocab: int,
    tv: float,
    alpha: float,
    tests: int,
    power: float,
    tokens: int | None,
    overlap: float,
    tokens_per_run: float,
    *,
    as_json: bool,
) -> int:
    """Predict how many tokens it takes to see, or to bound, a deviation.

    No subject and no model is needed: where the answer depends on them, it is that of the hardest
    ones.

    \b
    Examples:
      specverify power --vocab 8 --tv 0.005
      specverify power --vocab 49152 --tv 0.005 --overlap 0.7 --tokens 1000000
      specverify power --vocab 1024 --tv 0.01 --tests 60 --json
    """
    _check(vocab, tv, alpha, tests, power, tokens, overlap, tokens_per_run)

    from specverify.reporting.power_table import PowerPlan, print_plan, to_json
    from specverify.reporting.terminal import report_console
    from specverify.statistics.budget import Budget
    from specverify.statistics.triples import triples

    # Tests share half of it, as in a certification; each bound has all of it.
    budget = Budget(alpha / 2, tests)
    asked = triples(vocab, budget, power, overlap, bound_alpha=alpha)
    rows = tuple(_row(triple, tv, tokens, overlap, tokens_per_run) for triple in asked)
    plan = PowerPlan(vocab, tv, alpha, tests, power, overlap, tokens_per_run, tokens, rows)
    if as_json:
        click.echo(to_json(plan))
    else:
        print_plan(plan, report_console())
    return 0


def _row(
    triple: "Triple", tv: float, tokens: int | None, overlap: float, tokens_per_run: float
) -> "PowerRow":
    from specverify.reporting.power_table import PowerRow

    each = {
        "tokens": 1.0,
        "first tokens": tokens_per_run,
        "runs": tokens_per_run,
        "pairs": 2.0,
        "answers": 2.0,
    }[triple.unit]
    needed = triple.samples_needed(tv)
    count = None if tokens is None else int(tokens / each)
    why_not = ""
    if needed is None and triple.method == "mixture e-process":
        why_not = (
            f"there is no leak of {tv:g}: even the draft itself is {1 - overlap:.2g} away from the "
            "target"
        )
    elif needed is None and triple.method == "independence":
        why_not = f"tokens alike half of the time cannot be so too often by {tv:g}"
    elif needed is None:
        why_not = f"coins that are exactly 0 explain impossible tokens at a rate of {tv:g}"
    return PowerRow(
        triple.question,
        triple.method,
        triple.gives,
        triple.unit,
        needed,
        None if needed is None else math.ceil(needed * each),
        triple.detectable(count) if count else None,
        why_not,
    )


def _check(
    vocab: int,
    tv: float,
    alpha: float,
    tests: int,
    power: float,
    tokens: int | None,
    overlap: float,
    tokens_per_run: float,
) -> None:
    if vocab < 2:
        raise UsageError(f"--vocab is the size of the vocabulary, at least 2; got {vocab}")
    if vocab > _LARGEST_VOCABULARY:
        raise UsageError(
            f"--vocab is at most {_LARGEST_VOCABULARY:,}, more than any tokenizer has; got {vocab}"
        )
    if not 0 < tv < 1:
        raise UsageError(
            f"--tv is a fraction strictly between 0 and 1, got {tv:g}; half a percent is 0.005"
        )
    if tv < _SMALLEST:
        raise UsageError(
            f"--tv {tv:g} is out of reach of sampling; ask for at least {_SMALLEST:g}, or compute "
            "the distribution exactly (`specverify exact`, docs/exact-distributions.md)"
        )
    if tests > _MOST_TESTS:
        raise UsageError(f"--tests is at most {_MOST_TESTS:,}, got {tests}")
    if tests < 1 or not 0 < alpha < 1:
        raise UsageError(
            "--alpha is a probability strictly between 0 and 1, shared by --tests, at least 1; got "
            f"{alpha:g} over {tests}"
        )
    if alpha < _SMALLEST_ALPHA or alpha / tests < _SMALLEST_SHARE:
        raise UsageError(
            f"--alpha {alpha:g} over --tests {tests} is too small to be told from 0; give an "
            f"--alpha of at least {_SMALLEST_ALPHA:g}, with fewer tests if need be (1e-6 means one "
            "false alarm in a million runs)"
        )
    if not 0.5 <= power < 1:
        raise UsageError(f"--power is a probability from 0.5 to below 1, got {power:g}")
    if tokens is not None and tokens < 1:
        raise UsageError(f"--tokens must be at least 1, got {tokens}; leave it out to ask nothing")
    if tokens is not None and tokens > MOST_TOKENS:
        raise UsageError(
            f"--tokens is at most {MOST_TOKENS:,}, what a certification samples at most; got "
            f"{tokens}"
        )
    if not 0 <= overlap < 1:
        raise UsageError(
            f"--overlap is the sum of min(p, q), at least 0 and below 1, got {overlap:g}; at 1 "
            "draft and target are the same, and nothing can leak"
        )
    if not 1 <= tokens_per_run < math.inf:
        raise UsageError(f"--tokens-per-run must be at least 1, got {tokens_per_run:g}")


_LARGEST_VOCABULARY = 10_000_000
_MOST_TESTS = 10**9
_SMALLEST_ALPHA = 1e-300
_SMALLEST_SHARE = 1e-305
"""Of alpha for one test: half of it must still be a number of full precision."""

_SMALLEST = 1e-5
"""Total variation below which the counts asked for lose their meaning."""
