"""`specverify exact`: a verification rule at a real vocabulary, without sampling its decisions.

Only click is imported at load.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specverify.certification.limits import LARGEST_SEED, MOST_DRAFT_TOKENS
from specverify.certification.verdict import Verdict, exit_code, worst
from specverify.cli_options import Folder, time_limit_option
from specverify.cli_streams import Streams
from specverify.errors import SubjectTimeout, UsageError

if TYPE_CHECKING:
    import torch

    from specverify.certification.progress import ProgressEvent
    from specverify.exact.large import DraftedPosition, PositionResult
    from specverify.models.pairs import Pair
    from specverify.subjects.protocols import Subject

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_FLOAT32, _FLOAT32_LARGE, _LARGE_VOCABULARY = 1e-6, 2e-5, 1 << 16
_FLOAT64, _GRID = 1e-12, 2.0**-50
"""A draw by thresholds moves every token by a step of the coins' grid or so."""

_MOST_PREFIXES = 10_000
_MOST_BYTES = 1 << 50


class _Bytes(click.ParamType):
    """A number of bytes, such as 2GB."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Read it; a unit counts in powers of 1024."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no amount of memory; write it as 500MB or 2GB", param, ctx)
        size = float(match[1]) * _UNITS[match[2]]
        if size > _MOST_BYTES:
            self.fail(f"{value!r} is more memory than any machine has; at most 1024TB", param, ctx)
        return int(size)


@click.command()
@click.argument("subject")
@click.option("--kind", type=click.Choice(["rule"]), help="For a function that is not declared.")
@click.option(
    "--pair",
    "pair_name",
    metavar="NAME",
    default="trained",
    show_default=True,
    help="Where the distributions come from: as for `specverify certify`.",
)
@click.option(
    "--contexts",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Prompts of the pair to take.",
)
@click.option(
    "--num-draft-tokens",
    type=click.IntRange(min=1),
    metavar="K",
    default=1,
    show_default=True,
    help="Draft tokens a round.",
)
@click.option(
    "--prefixes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Blocks to sample for the positions after the first.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    show_default=True,
    help="Of the probabilities that SUBJECT is handed.",
)
@click.option(
    "--resume",
    type=Folder(file_okay=False),
    metavar="DIR",
    help="Folder to keep progress in, and to continue from; also kept after Ctrl-C.",
)
@click.option(
    "--memory",
    type=_Bytes(),
    default="1GB",
    show_default=True,
    help="What one call of SUBJECT may take, models not counted.",
)
@click.option("--seed", type=click.IntRange(min=0, max=LARGEST_SEED), default=0, show_default=True)
@time_limit_option
def exact(
    subject: str,
    kind: str | None,
    pair_name: str,
    contexts: int,
    num_draft_tokens: int,
    prefixes: int,
    dtype: str,
    resume: Path | None,
    memory: int,
    seed: int,
    time_limit: float,
) -> int:
    """Compute what SUBJECT, a verification rule, emits for every draft token of a vocabulary.

    With K = 1 the distribution of a round is computed in full. With more draft tokens, each
    position is: over all tokens that may be drafted there, given tokens before it that are sampled
    from the draft.

    \b
    Examples:
      specverify exact mylib.verify:rule --kind rule
      specverify exact mylib.verify:RULE --pair TARGET_DIR,DRAFT_DIR --contexts 2 --resume progress
    """
    from specverify.models.pairs import load_pair
    from specverify.reporting.terminal import progress_bar, progress_console
    from specverify.sampling.store import ShardStore
    from specverify.subjects.registry import load_subject

    _check_sizes(num_draft_tokens, prefixes)
    streams = Streams()
    loaded = load_subject(subject, kind, kinds=("rule",))
    if loaded.kind != "rule":
        raise UsageError(
            f"{loaded.name!r} is a {loaded.kind}; `specverify exact` takes rules, use `specverify "
            "certify` for anything else"
        )
    folder = None if resume is None else resume.absolute()  # a subject may change the current one
    pair = load_pair(pair_name)
    tolerance = None
    verdicts: list[Verdict] = []
    places = _positions(pair, contexts, num_draft_tokens, prefixes, seed, dtype)
    kept = nullcontext()
    if folder is not None:
        asked = {
            "num_draft_tokens": num_draft_tokens,
            "prefixes": prefixes,
            "memory": memory,
            "seed": seed,
        }
        kept = ShardStore(folder, _manifest(loaded, pair, dtype, asked))
    with kept, progress_bar(progress_console()) as show:
        for label, position in places:
            tolerance = tolerance_of(position.target.dtype, position.vocab_size)
            started = time.monotonic()
            rule = _LimitedRule(loaded, time_limit)
            result = _check(rule, label, position, memory, folder, seed, show)
            streams.restore()
            verdict = verdict_of(result, tolerance)
            verdicts.append(verdict)
            for line in describe(label, result, verdict, time.monotonic() - started):
                click.echo(line)
    verdict = worst(verdicts)
    click.echo(f"{verdict.upper()}  {loaded.name} · pair {pair.name} · tolerance {tolerance:g}")
    return exit_code(verdict)


@dataclass(frozen=True)
class _LimitedRule:
    """A rule as `check_position` calls it, each call within the time limit."""

    subject: "Subject"
    time_limit: float

    def __call__(self, tokens: Any, q: Any, p: Any, generator: Any) -> Any:
        from specverify.subjects.watchdog import time_limit

        arguments = (tokens, q, p)
        if self.subject.capabilities.generator:
            arguments = (*arguments, generator)
        try:
            with time_limit(self.time_limit):
                return self.subject.call(*arguments)
        except SubjectTimeout as error:
            raise SubjectTimeout(f"subject {self.subject.name!r}: {error}") from error.__cause__


def _check_sizes(num_draft_tokens: int, prefixes: int) -> None:
    if num_draft_tokens > MOST_DRAFT_TOKENS:
        raise UsageError(
            f"--num-draft-tokens is at most {MOST_DRAFT_TOKENS}, got {num_draft_tokens}; a few "
            "show every mistake that more do"
        )
    if prefixes > _MOST_PREFIXES:
        raise UsageError(f"--prefixes is at most {_MOST_PREFIXES:,}, got {prefixes}")


def _manifest(
    subject: "Subject", pair: "Pair", dtype: str, asked: dict[str, int]
) -> dict[str, Any]:
    """What decides the progress kept in a folder, so that another computation's is refused."""
    from specverify.certification.records import (
        environment_record,
        subject_record,
        suite_record,
    )

    return {
        "command": "exact",
        "subject": subject_record(subject).model_dump(mode="json"),
        "suite": suite_record().model_dump(mode="json"),
        "environment": environment_record(dtype=dtype).model_dump(mode="json", exclude={"threads"}),
        "pair": pair.name,
        **asked,
    }


def tolerance_of(dtype: "torch.dtype", vocab_size: int) -> float:
    """Total variation up to which a rule counts as exact (design.md section 1)."""
    if str(dtype) == "torch.float64":
        return max(_FLOAT64, vocab_size * _GRID)
    return _FLOAT32 if vocab_size <= _LARGE_VOCABULARY else _FLOAT32_LARGE


def verdict_of(result: "PositionResult", tolerance: float) -> Verdict:
    """What a result says of the rule."""
    if result.lower > tolerance:
        return "violated"
    if result.crashes:
        return "error"
    return "preserved" if result.upper <= tolerance else "inconclusive"


def describe(
    label: str, result: "PositionResult", verdict: Verdict, seconds: float
) -> Iterator[str]:
    """The lines of the report on one position."""
    yield (
        f"{label}: {verdict} · TV {result.lower:.3g} to {result.upper:.3g} (token "
        f"{result.token_deviation:.3g}, next {result.next_deviation:.3g}) · largest ratio "
        f"{result.largest_ratio:.6g} · reached {result.reach:.4f}, accepted {result.accepted:.4f} "
        f"· {result.runs} runs, {seconds:.1f} s"
    )
    if result.outside_mass > 0:
        named = ", ".join(f"{token} ({mass:.2g})" for token, mass in result.outside_support)
        yield f"  outside the target's support: mass {result.outside_mass:.3g}" + (
            f"; tokens {named}" if named else "; behind the position"
        )
    for text, mass in result.crashes.items():
        yield f"  raises with probability {mass:.3g}: {text}"
    if result.unchecked > 0:
        yield (
            f"  goes on after a token of its own with probability {result.unchecked:.3g}; what "
            "follows is not compared"
        )
    for finding in result.findings:
        yield f"  finding: {finding}"


def _positions(
    pair: "Pair",
    contexts: int,
    num_draft_tokens: int,
    prefixes: int,
    seed: int,
    dtype: str,
) -> "Iterator[tuple[str, DraftedPosition]]":
    """Positions to check, with a name each."""
    from specverify.exact.large.from_models import DTYPES, drafted_positions

    if contexts > len(pair.prompts):
        raise UsageError(
            f"pair {pair.name!r} has {len(pair.prompts)} prompts; ask for at most as many contexts"
        )
    target, draft = pair.open("language_model")
    for number, prompt in enumerate(pair.prompts[:contexts], 1):
        found = drafted_positions(
            target,
            draft,
            prompt,
            num_draft_tokens,
            samples=prefixes,
            seed=seed,
            dtype=DTYPES[dtype],
        )
        for index, position in enumerate(found):
            label = f"context {number}, position {len(position.prefix) + 1}"
            if prefixes > 1 and position.prefix:
                label += f", block {(index - 1) // max(1, num_draft_tokens - 1) + 1}"
            yield label, position


def _check(
    rule: _LimitedRule,
    label: str,
    position: "DraftedPosition",
    memory: int,
    folder: Path | None,
    seed: int,
    show: "Callable[[ProgressEvent], None]",
) -> "PositionResult":
    from specverify.certification.progress import ProgressEvent
    from specverify.exact.large import check_position
    from specverify.subjects.provenance import source_sha256

    subject = rule.subject
    return check_position(
        rule,
        position,
        name=f"{subject.name} {source_sha256(subject.call)}",
        batch=subject.capabilities.batch,
        memory=memory,
        resume=None if folder is None else folder / f"{re.sub('[^a-z0-9]+', '-', label)}.npz",
        progress=lambda done, total: show(ProgressEvent(label, done, total, "draft tokens")),
        seed=seed,
    )
