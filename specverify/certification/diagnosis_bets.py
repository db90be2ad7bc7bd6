"""What the bets that gained most on sampled tokens say about the kind of mistake.

A bet is a law of the next token. Some laws are those of one mistake, such as a correction drawn
from p; others are shared: tokens that follow another context come from a stale cache as well as
from another row. So each law has weights of the kinds that make it true, what is missing from 1
being an unknown kind, and each bet counts as much as it has gained. The weights are a judgement,
made by looking at what the mutants on the toy pair emit, and no probabilities that were derived;
`benchmarks/diagnosis.py --bets` measures how far they carry on those.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specverify.certification.case_records import CaseRecord, DiagnosisRecord, TestRecord

UNKNOWN = "unknown"

Weights = Mapping[str, float]

_REJECTED = ("violated", "blocked")
"""Decisions of a test that rejects: a sampled one is blocked by what was computed."""
_BETS = ("joint.every_token", "joint.own_distributions")
"""Properties whose parts are bets on tokens, those that say more first."""
_CHAPTERS = {"batch": "batch", "randomness": "coins", "state": "cache"}
"""Chapters whose other mixtures have parts too, such as pairs of calls: the chapter is the kind."""
_BY_CHAPTER = 0.8
"""Confidence in that."""
_STANDS_OUT = 0.5
"""Weight from which a kind is named: it is likelier than all others together."""
_LATE = 0.9
"""Weight of the bonus token where only the places are wrong at which bonus tokens stand."""

_HISTORY = {
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "no_repeat_ngram_size",
    "bad_words",
    "min_new_tokens",
    "allowed_tokens",
    "forced_tokens",
}
"""Settings under which the tokens before decide: what a wrong history spoils."""
_STOPS = {"max_new_tokens", "stop_token_ids", "stop_sequences"}
"""Settings that change no distribution of a token."""

_LAWS: Mapping[str, Weights] = {
    # The correction alone is drawn from the wrong law.
    "wrong residual": {"residual": 0.95},
    # Seen in part of the tokens, it is not much unlike a ratio that is a little off.
    "wrong residual, diluted": {"residual": 0.6, "ratio": 0.25},
    # The ratio or the draws are those of a draft before its transforms.
    "raw q": {"proposal": 0.9},
    "raw q, diluted": {"proposal": 0.6, "transforms": 0.2},
    # Acceptance that always succeeds emits q; a residual of |p - q| emits (p + q) / 2.
    "towards q": {"ratio": 0.6, "residual": 0.3},
    "away from q": {"ratio": 0.55, "block rule": 0.25},
    "towards raw p": {"transforms": 0.85},
    # Tokens that follow another context than the one emitted look nearly random in this one.
    "another context": {"cache": 0.6, "rejection": 0.15, "residual": 0.1, "batch": 0.05},
    "another context everywhere": {"batch": 0.6, "cache": 0.2},
    "flatter": {"cache": 0.55, "transforms": 0.2},
    # A draft sharper than it says is accepted too often where it is sure.
    "sharper": {"proposal": 0.7, "transforms": 0.15},
    "towards q, sharper": {"proposal": 0.6, "ratio": 0.2},
    "towards q, flatter": {"residual": 0.4, "ratio": 0.4},
    # A coin used again by an inverse CDF picks tokens by their number.
    "order of ids": {"coins": 0.85},
    # Bins learn a direction, and do not say which.
    "learned": {},
}
"""What may make a law true, without transforms."""

_WITH_TRANSFORMS: Mapping[str, Weights] = {
    "flatter": {"transforms": 0.55, "cache": 0.25},
    "sharper": {"transforms": 0.45, "proposal": 0.4},
}
"""The same where the settings have transforms to make mistakes with."""

_WITH_HISTORY: Mapping[str, Weights] = {
    "towards raw p": {"history": 0.65, "transforms": 0.25},
    "towards q": {"ratio": 0.5, "residual": 0.25, "history": 0.15},
    "away from q": {"history": 0.55, "ratio": 0.25},
    "raw q, diluted": {"history": 0.55, "proposal": 0.3},
}
"""The same where the distribution depends on the history, and no plainer case is wrong."""

_PATTERNS = (
    (r"(ratio|draft|draft and ratio) (with|from) raw q, .*, diluted .*", "raw q, diluted"),
    (r"(ratio|draft|draft and ratio) (with|from) raw q, .*", "raw q"),
    (r"residual = .*, diluted .*", "wrong residual, diluted"),
    (r"residual = .*", "wrong residual"),
    (r"leak to raw p, .*", "towards raw p"),
    (r"leak to uniform, 1", "another context everywhere"),
    (r"leak to uniform, .*", "another context"),
    (r"leak to q, .*", "towards q"),
    (r"leak away from q, .*", "away from q"),
    (r"tilt (ln\(q/p\)|q > p), -.*", "away from q"),
    (r"tilt ln\(q/p\), [^-].*, temperature 0.*", "towards q, sharper"),
    (r"tilt ln\(q/p\), [^-].*, temperature .*", "towards q, flatter"),
    (r"tilt (ln\(q/p\)|q > p), .*", "towards q"),
    (r"temperature 0.*", "sharper"),
    (r"temperature .*", "flatter"),
    (r"bins in index order", "order of ids"),
    (r"bins in .* order", "learned"),
)
"""Names of bets (`statistics.bet_components`, `statistics.mixture`) and their laws; the first that
fits the whole name counts."""


def law_of(bet: str) -> str | None:
    """Which law a bet bets on, a key of the tables above; None for a name that is not known.

    Args:
        bet: its name, without a stratum.
    """
    return next((law for pattern, law in _PATTERNS if re.fullmatch(pattern, bet)), None)


def kinds_of(
    bet: str, settings: Mapping[str, Any] | None = None, num_draft_tokens: int | None = None
) -> dict[str, float]:
    """How likely kinds of mistakes are if a bet is right; sums to 1 with the unknown kind.

    Args:
        bet: its name in the components of a test, with a stratum or without.
        settings: fields that are not neutral, as a case records them.
        num_draft_tokens: K, from which bonus tokens are told by their place.
    """
    inside = re.fullmatch(r"stratum (\d+): (.*)", bet)
    law = law_of(bet if inside is None else inside[2])
    fields = set(settings or {}) - _STOPS
    weights: Weights = {} if law is None else _LAWS[law]
    if law is not None and fields:
        weights = _WITH_TRANSFORMS.get(law, weights)
    if law is not None and fields & _HISTORY:
        weights = _WITH_HISTORY.get(law, weights)
    found = dict(weights)
    # Strata are numbered by place in the run, two a place; runs of a usual length end after K + 2.
    place = -1 if inside is None else int(inside[1]) // 2
    if num_draft_tokens is not None and place >= num_draft_tokens and law != "order of ids":
        found = {kind: (1 - _LATE) * weight for kind, weight in found.items()} | {"bonus": _LATE}
    return found | {UNKNOWN: 1 - math.fsum(found.values())}


def weighed(case: CaseRecord, components: Mapping[str, float]) -> dict[str, float]:
    """Kinds of mistakes by how much the bets gained that speak for them; sums to 1.

    A bet counts by its share of E, which is its weight after the tokens in the sense of Bayes.

    Args:
        case: whose settings and K the bets were made under.
        components: ln of what each bet contributes to E, by name, at least one.
    """
    most, kinds = max(components.values()), dict[str, float]()
    shares = {name: math.exp(gained - most) for name, gained in components.items()}
    whole = math.fsum(shares.values())
    for name, share in shares.items():
        for kind, weight in kinds_of(name, case.settings, case.num_draft_tokens).items():
            kinds[kind] = kinds.get(kind, 0.0) + share / whole * weight
    return kinds


def by_bets(cases: Sequence[CaseRecord]) -> tuple[int, DiagnosisRecord | None]:
    """The diagnosis from bets on sampled tokens, in the plainest case where they reject.

    The plainest is the one with the fewest settings, since those leave the fewest mistakes to be
    made; of several the one where a bet gained most.

    Args:
        cases: of a run.

    Returns:
        Index of the case, and its diagnosis, of kind "unknown" where no bet stands out; None if no
        test with parts rejects.
    """
    found = _rejecting(cases)
    if not found:
        return 0, None
    index, test = min(found, key=lambda entry: _order(cases[entry[0]], entry[1]))
    name = max(test.components, key=test.components.__getitem__)
    if test.property not in _BETS:
        kind = _CHAPTERS[test.property.partition(".")[0]]
        said = f"{test.property} alone rejects; what gained most: {name}"
        return index, _record(kind, _BY_CHAPTER, said)
    kinds = weighed(cases[index], test.components)
    best = max((kind for kind in kinds if kind != UNKNOWN), key=lambda k: (kinds[k], k), default="")
    weight = kinds.get(best, 0.0)
    if weight < _STANDS_OUT:
        said = f"no kind of mistake stands out; the bet that gained most: {name}"
        return index, _record(UNKNOWN, 1 - weight, said)
    return index, _record(best, weight, f"the bet that gained most: {name}")


def _rejecting(cases: Sequence[CaseRecord]) -> list[tuple[int, TestRecord]]:
    """Tests that reject and have parts; others than bets on tokens only where no such bet is."""
    found = [
        (index, test)
        for index, case in enumerate(cases)
        for test in case.tests
        if test.decision in _REJECTED and test.components
    ]
    for property in _BETS:
        if chosen := [entry for entry in found if entry[1].property == property]:
            return chosen
    return [entry for entry in found if entry[1].property.partition(".")[0] in _CHAPTERS]


def _order(case: CaseRecord, test: TestRecord) -> tuple[int, float]:
    return len(set(case.settings) - _STOPS), -max(test.components.values())


def _record(kind: str, confidence: float, description: str) -> DiagnosisRecord:
    confidence = round(min(1.0, max(0.0, confidence)), 6)
    return DiagnosisRecord(kind=kind, confidence=confidence, description=description, basis="bets")
