"""What the benchmarks share: interleaved timing, traced memory, the form of the report."""

import argparse
import resource
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping

Work = Callable[[], int]
"""Does some work and returns how many units of it (tokens) were done."""


def parse_quick(description: str) -> bool:
    """Whether `--quick` was given: a smaller run, for a first look."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a smaller run, for a first look")
    return parser.parse_args().quick


def interleaved(
    works: Mapping[str, Work], repeats: int, *, alike: bool = False
) -> dict[str, list[float]]:
    """Units per second of each work, `repeats` times, after one untimed call of each.

    The works take turns, so that a slower minute of the machine slows all of them: compare the
    rates of one repeat, not of two runs.

    Args:
        works: by name.
        repeats: timed calls of each.
        alike: whether all must do as many units, as they are to do the same.
    """
    done = {name: work() for name, work in works.items()}
    assert not alike or len(set(done.values())) == 1, f"not the same: {done}"
    rates: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            started = time.perf_counter()
            units = work()
            rates[name].append(units / (time.perf_counter() - started))
    return rates


def median_ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median over the repeats of the ratio within one repeat."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def traced_peak(work: Work) -> int:
    """Most bytes that Python and numpy held at once while `work` ran, beyond what they held."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def process_peak() -> int:
    """Most bytes of physical memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def goal(name: str, value: float, bound: float, *, at_least: bool = True) -> str:
    """One line of the report: a ratio, its goal, and whether it is met."""
    met = value >= bound if at_least else value <= bound
    sign = ">=" if at_least else "<="
    return f"{'met ' if met else 'MISS'}  {name:<58} {value:>12,.3f}   goal {sign} {bound:,g}"
