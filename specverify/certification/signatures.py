"""What known mistakes emit on a few small inputs: the library that a diagnosis compares with.

The distributions of the mutants that ship with specverify ship too (`benchmarks/diagnosis.py
--write` computes them), since computing them all takes minutes. Those that are not in the file are
computed when they are first asked for, and kept while the process lives.
"""

import importlib
import importlib.resources
import json
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from specverify.certification.probes.decoder_trial import DecoderTrial
from specverify.certification.probes.rule_trial import RuleTrial
from specverify.certification.probes.world import World, small_tables
from specverify.certification.transform_case import PARAMETERS
from specverify.errors import CannotSteer, SubjectError
from specverify.exact.compare_round import completed
from specverify.exact.joint import Joint
from specverify.exact.round import Round
from specverify.settings import SamplingSettings
from specverify.subjects.guard import DEFAULT_TIME_LIMIT
from specverify.subjects.protocols import Subject

RULES = "specverify.fixtures.mutants.rule_calls:RULE_MUTANTS"
DECODERS = "specverify.fixtures.mutants:MUTANTS"
"""The catalogues that ship with specverify. Named, not imported: they are made of subjects."""
TRANSFORMS = "specverify.fixtures.mutants", "transforms"
"""Package of the mutants of transforms, and how the names of its modules with such begin."""
GENERAL = "specverify.fixtures.mutants.any_transform:general_mistakes"
"""Mistakes that any transform may have, by its reference."""

SIGNATURES = "specverify.fixtures.mutants", "signatures.json"
"""Package and name of the file with what the mutants emit: by kind, input and mutant a list of
tokens and mass, or null where it cannot be computed, or could not when the file was made."""

_COMPLETE = 1e-6
"""Mass of crashes up to which a distribution is one."""


class Known(Protocol):
    """A known mistake."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def family(self) -> str:
        """The kind of mistake."""
        ...

    @property
    def description(self) -> str:
        """The one change."""
        ...

    @property
    def subject(self) -> Subject:
        """What makes it."""
        ...


@dataclass(frozen=True, eq=False)
class Input:
    """Something small on which subjects are compared."""

    name: str
    emits: Callable[[Subject], Joint]
    """The distribution of what a subject emits there.

    Raises:
        CannotSteer: it cannot be computed.
        SubjectError: the subject fails.
    """
    expected: Joint


@cache
def library(kind: str) -> tuple[Known, ...]:
    """Known mistakes of subjects of a kind; those of transforms that any may have come last."""
    if kind == "rule":
        return tuple(_catalogue(RULES))
    if kind == "decoder":
        found = _catalogue(DECODERS).values()
        return tuple(mutant for mutant in found if mutant.subject.kind == "decoder")
    return tuple(mutant for reference in PARAMETERS for mutant in of_transform(reference))


@cache
def of_transform(reference: str) -> tuple[Known, ...]:
    """Known mistakes of transforms that claim to be a reference.

    Args:
        reference: a key of `transform_case.PARAMETERS`.
    """
    own = (mutant for mutant in _transforms() if mutant.subject.reference == reference)
    return (*own, *_catalogue(GENERAL)(reference))


@cache
def _transforms() -> tuple[Known, ...]:
    package, prefix = TRANSFORMS
    path = importlib.import_module(package).__path__
    names = sorted(module.name for module in pkgutil.iter_modules(path))
    chosen = (name for name in names if name.startswith(prefix))
    return tuple(mutant for name in chosen for mutant in _catalogue(f"{package}.{name}:MUTANTS"))


@cache
def inputs(kind: str) -> tuple[Input, ...]:
    """What subjects of a kind, rules or decoders, are compared on; see `transform_looks`."""
    return tuple(_rounds() if kind == "rule" else _worlds())


_COMPUTED: dict[tuple[str, Input], Joint | None] = {}


def signature(mutant: Known, input: Input) -> Joint | None:
    """What a known mistake emits on an input; None where that cannot be computed."""
    key = mutant.id, input
    if key not in _COMPUTED:
        stored = _stored().get(mutant.subject.kind, {}).get(input.name, {})
        if mutant.id in stored:
            entry = stored[mutant.id]
            _COMPUTED[key] = None if entry is None else {tuple(t): mass for t, mass in entry}
        else:
            _COMPUTED[key] = emitted(mutant.subject, input)
    return _COMPUTED[key]


@cache
def _stored() -> dict[str, Any]:
    package, name = SIGNATURES
    file = importlib.resources.files(package) / name
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def emitted(subject: Subject, input: Input) -> Joint | None:
    """What a subject emits on an input; None where that cannot be computed."""
    try:
        return input.emits(subject)
    except (CannotSteer, SubjectError):
        return None


def _rounds() -> Iterator[Input]:
    """Rounds long enough to tell rules apart that agree on one draft token."""
    for size, width, seed in ((4, 2, 31), (2, 3, 32)):
        round = Round.random(size, width, seed=seed)
        first = dict(enumerate(round.p(0)[0].tolist()))
        expected = completed(round, {(token,): mass for token, mass in first.items()})
        yield Input(f"V={size}, K={width}", _of_round(round), expected)


def _of_round(round: Round) -> Callable[[Subject], Joint]:
    def emits(subject: Subject) -> Joint:
        trial = RuleTrial(subject, "diagnosis", "", 0, DEFAULT_TIME_LIMIT)
        joint = trial.joint(round)
        return completed(round, _whole(joint.probabilities))

    return emits


def _worlds() -> Iterator[Input]:
    """The contracts under which mistakes of a loop show, each as small as it may be."""
    target, draft = small_tables(2)
    base = World(target, draft, SamplingSettings(max_new_tokens=3), ((0, 1),), 2)
    contracts = {
        "plain": base,
        # A rejection ends a round early: with longer blocks that does not show within three tokens.
        "short": replace(base, num_draft_tokens=1),
        "history": base.under(repetition_penalty=2.0, presence_penalty=0.7),
        "stopping": base.under(stop_token_ids=(1,), stop_sequences=((1, 0),), min_new_tokens=1),
        "filtered": base.under(temperature=0.7, min_p=0.4),
        "random": base.under(xtc_probability=0.5, xtc_threshold=0.1),
        "batch": replace(base.under(max_new_tokens=2), prompts=((0, 1), (1,)), num_draft_tokens=1),
    }
    for name, world in contracts.items():
        yield Input(name, _of_world(world), world.expected())


def _of_world(world: World) -> Callable[[Subject], Joint]:
    def emits(subject: Subject) -> Joint:
        if (refused := world.refused_by(subject)) is not None:
            raise CannotSteer(refused)
        trial = DecoderTrial(subject, "diagnosis", "", 0, DEFAULT_TIME_LIMIT)
        return _whole(trial.joint(world).probabilities)

    return emits


def _whole(joint: Joint) -> Joint:
    """A distribution without the mass of crashes, if that is small.

    Raises:
        SubjectError: it is not.
    """
    total = sum(joint.values())
    if total < 1 - _COMPLETE:
        raise SubjectError(f"it fails with probability {1 - total:.3g}")
    return joint


def _catalogue(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
