"""The path of a sampled case: ln E and bounds as more and more shards are judged.

A case is judged after every shard; a few of these looks are recorded, at shards that the plan fixes
beforehand. So the path depends on nothing but the seed and where sampling ended.
"""

import math
from collections.abc import Collection, Iterable, Mapping

from specverify.certification.case_records import BoundRecord, LooksRecord, TestRecord

FOLLOWED = "joint.every_token"
"""Property whose path is always shown."""

_LOOKS = 48
"""Looks that are spread evenly over the logarithm of the number of shards."""
_HIGHEST = 3
"""Paths that are shown beside it: those of the tests that came highest."""

_Look = tuple[int, int, int, dict[str, float], dict[str, float]]


def path_schedule(shards: int, fixed: Iterable[int]) -> frozenset[int]:
    """Numbers of shards after which a look is recorded.

    Args:
        shards: the case has at most, at least 1.
        fixed: looks at which bounds for a fixed n are claimed; all are recorded.
    """
    steps = (math.ceil(shards ** (i / (_LOOKS - 1))) for i in range(_LOOKS))
    return frozenset((*steps, *fixed))


class Looks:
    """Looks at one case, recorded as it is sampled."""

    def __init__(self, shards: int, fixed: Iterable[int]) -> None:
        self._fixed = frozenset(fixed)
        self._schedule = path_schedule(shards, self._fixed)
        self._looks: list[_Look] = []

    def due(self, shards: int) -> bool:
        """Whether a look after so many shards is to be recorded."""
        return shards in self._schedule

    def add(
        self,
        shards: int,
        runs: int,
        tokens: int,
        tests: Iterable[TestRecord],
        bounds: Iterable[BoundRecord],
        fixed_bounds: Collection[str],
    ) -> None:
        """Record a look; one after the same number of shards takes the place of the last.

        Args:
            shards: that were judged.
            runs: in them.
            tokens: in them.
            tests: as they stand; those that decide are followed.
            bounds: as they stand; those that are asked for are followed.
            fixed_bounds: names of those that hold at fixed looks only.
        """
        if self._looks and self._looks[-1][0] == shards:
            self._looks.pop()
        log_es: dict[str, float] = {}
        for test in tests:
            if test.alpha is not None and test.statistic is not None:
                log_es[test.property] = max(test.statistic, log_es.get(test.property, -math.inf))
        values = {bound.name: bound.value for bound in bounds if bound.limit is not None}
        if shards not in self._fixed:
            values = {name: v for name, v in values.items() if name not in fixed_bounds}
        self._looks.append((shards, runs, tokens, log_es, values))

    def record(self, final_bounds: Mapping[str, float]) -> LooksRecord | None:
        """The path; None if nothing was judged.

        Args:
            final_bounds: that the case claims when it ends, which may be at a look of its own.
        """
        if not self._looks:
            return None
        shards, runs, tokens, log_es, bounds = zip(*self._looks, strict=True)
        bounds = [*bounds[:-1], {**bounds[-1], **final_bounds}]
        names = sorted({name for values in bounds for name in values})
        return LooksRecord(
            shards=shards,
            runs=runs,
            tokens=tokens,
            log_e={name: tuple(look.get(name) for look in log_es) for name in _shown(log_es)},
            bounds={name: tuple(look.get(name) for look in bounds) for name in names},
        )


def _shown(log_es: Iterable[Mapping[str, float]]) -> list[str]:
    """Properties whose paths are recorded."""
    highest: dict[str, float] = {}
    for look in log_es:
        for name, value in look.items():
            highest[name] = max(value, highest.get(name, -math.inf))
    others = sorted((name for name in highest if name != FOLLOWED), key=lambda n: (-highest[n], n))
    return [*([FOLLOWED] if FOLLOWED in highest else []), *others[:_HIGHEST]]
