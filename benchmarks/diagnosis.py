"""How well violations are diagnosed: every mutant as subject, known and left out of the library.

Known, its own kind must be the first guess for nine of ten. Left out, the diagnosis must be
unknown, a neighbour of its own kind, or unsure: never another kind with confidence. Mutants whose
distributions cannot be computed, or that are right on all inputs compared, are listed apart.

python benchmarks/diagnosis.py [--write [--anew] [--jobs N]] [--kinds rule decoder]
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from specverify.certification.certificate import DiagnosisRecord
from specverify.certification.diagnosis import UNKNOWN, compared
from specverify.certification.signatures import emitted, inputs, library, signature

KINDS = ("rule", "decoder")
CONFIDENT = 0.9
"""Probability from which a diagnosis is given as one."""
FILE = Path(__file__).parent.parent / "fixtures" / "mutants" / "signatures.json"


def computed(task: tuple[str, int, frozenset[str]]) -> list[tuple[str, str, Any]]:
    """What one mutant emits on some inputs: input, mutant, distribution."""
    torch.set_num_threads(1)
    kind, index, names = task
    mutant = library(kind)[index]
    found = []
    for input in inputs(kind):
        if input.name not in names:
            continue
        joint = emitted(mutant.subject, input)
        entry = None if joint is None else [[list(t), mass] for t, mass in sorted(joint.items())]
        found.append((input.name, mutant.id, entry))
    return found


def write(kinds: Sequence[str], jobs: int, *, anew: bool) -> None:
    """Compute the signatures that are missing, and save after each mutant.

    Args:
        kinds: of subjects.
        jobs: processes.
        anew: whether those that are there are computed too: after a change of the inputs or of a
            mutant.
    """
    everything = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    with ProcessPoolExecutor(jobs) as pool:
        for kind in kinds:
            names, ids = [i.name for i in inputs(kind)], [m.id for m in library(kind)]
            before = {} if anew else everything.get(kind, {})
            by_input = {
                name: {id: entry for id, entry in before.get(name, {}).items() if id in ids}
                for name in names
            }
            everything[kind] = by_input
            tasks = [
                (kind, index, missing)
                for index, id in enumerate(ids)
                if (missing := frozenset(name for name in names if id not in by_input[name]))
            ]
            for done, results in enumerate(pool.map(computed, tasks), 1):
                for name, mutant, entry in results:
                    by_input[name][mutant] = entry
                FILE.write_text(compact(everything) + "\n", encoding="utf-8")
                print(f"{kind} {done}/{len(tasks)}", flush=True)


def compact(everything: dict[str, dict[str, dict[str, Any]]]) -> str:
    """JSON with one mutant a line, so that a change shows as one."""
    kinds = []
    for kind, by_input in sorted(everything.items()):
        parts = []
        for name, by_mutant in sorted(by_input.items()):
            rows = ",\n".join(
                f"   {json.dumps(mutant)}: {json.dumps(entry, separators=(',', ':'))}"
                for mutant, entry in sorted(by_mutant.items())
            )
            parts.append(f"  {json.dumps(name)}: {{\n{rows}\n  }}")
        kinds.append(f" {json.dumps(kind)}: {{\n" + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(kinds) + "\n}"


def report(kind: str) -> None:
    """Print a line for each mutant of a kind, and what it comes to."""
    right = judged = misled = 0
    apart = []
    for mutant in library(kind):
        observed = {input: signature(mutant, input) for input in inputs(kind)}
        known = compared(kind, observed)
        if known is None:
            apart.append(mutant.id)
            continue
        left_out = compared(kind, observed, without=frozenset({mutant.id}))
        assert left_out is not None
        judged += 1
        right += known.kind == mutant.family
        wrong = left_out.kind not in (UNKNOWN, mutant.family) and left_out.confidence >= CONFIDENT
        misled += wrong
        print(
            f"{mutant.id:<40} {mutant.family:<12} known: {said(known):<34} left out: "
            f"{said(left_out)}{'  MISLED' if wrong else ''}"
        )
    print(f"{kind}: first guess right for {right} of {judged}; misled, left out: {misled}")
    print(f"not compared: {', '.join(apart) or 'none'}\n")


def said(diagnosis: DiagnosisRecord) -> str:
    """A diagnosis in short."""
    return f"{diagnosis.kind} {diagnosis.confidence:.0%} {diagnosis.mutant}"[:48]


def main() -> None:
    """Print both tables, or write the library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="compute what the library lacks")
    parser.add_argument("--anew", action="store_true", help="with --write: compute all of it")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        write(arguments.kinds, arguments.jobs, anew=arguments.anew)
        return
    for kind in arguments.kinds:
        report(kind)


if __name__ == "__main__":
    main()
