"""How well violations are diagnosed: every mutant as subject, known and left out of the library.

Transforms have beside their mutants mistakes that any of them may have; figures are given for both.

Known, its own kind must be the first guess for nine of ten. Left out, the diagnosis must be
unknown, a neighbour of its own kind, or unsure: never another kind with confidence. Mutants whose
distributions cannot be computed, or that are right on all inputs compared, are listed apart.

With `--bets` mutants of decoders are sampled, as is done with what cannot be steered, and the first
guess is made from the bets that gained most: the kind that the catalogue gives, a neighbour
(another kind, beside which the right one has a weight of a tenth at least), unknown, or another
kind. Mutants that so few tokens do not show are counted apart.

python benchmarks/diagnosis.py [--write [--anew] [--jobs N]] [--kinds rule decoder transform]
python benchmarks/diagnosis.py --bets [--tokens N] [--seed N] [--only ID ...]
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from specverify.certification.certificate import CaseRecord, DiagnosisRecord
from specverify.certification.diagnosis import compared
from specverify.certification.diagnosis_bets import UNKNOWN, by_bets, weighed
from specverify.certification.diagnosis_transforms import compared_transform, seen_of
from specverify.certification.plan import pair_presets
from specverify.certification.run import certify
from specverify.certification.signatures import Known, emitted, inputs, library, signature
from specverify.fixtures.mutants import MUTANTS, Mutant
from specverify.fixtures.mutants.any_transform import GeneralMistake
from specverify.models.pairs import load_pair

KINDS = ("rule", "decoder", "transform")
STORED = ("rule", "decoder")
"""Kinds whose signatures take minutes, and are kept in a file."""
CONFIDENT = 0.9
"""Probability from which a diagnosis is given as one."""
TOKENS = 36_000
"""Sampled a mutant with `--bets`, unless it ends at its first alarm before."""
NEIGHBOUR = 0.1
"""Weight of the right kind beside a wrong guess, from which the guess is a neighbour."""
EVERY = "joint.every_token"
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


def report(title: str, mutants: Sequence[Known]) -> None:
    """Print a line for each of some mutants, and what it comes to."""
    right = judged = misled = 0
    apart = []
    for mutant in mutants:
        known, left_out = diagnosed(mutant)
        if known is None:
            apart.append(mutant.id)
            continue
        assert left_out is not None
        judged += 1
        right += known.kind == mutant.family
        wrong = left_out.kind not in (UNKNOWN, mutant.family) and left_out.confidence >= CONFIDENT
        misled += wrong
        print(
            f"{mutant.id:<40} {mutant.family:<12} known: {said(known):<34} left out: "
            f"{said(left_out)}{'  MISLED' if wrong else ''}"
        )
    print(f"{title}: first guess right for {right} of {judged}; misled, left out: {misled}")
    print(f"not compared: {', '.join(apart) or 'none'}\n")


def diagnosed(mutant: Known) -> tuple[DiagnosisRecord | None, DiagnosisRecord | None]:
    """What is made of a mutant as it is known, and as it is left out; None for what is right."""
    kind, left_out = mutant.subject.kind, frozenset({mutant.id})
    if kind == "transform":
        seen, reference = seen_of(mutant.subject), str(mutant.subject.reference)
        known = compared_transform(reference, seen)
        return known, known and compared_transform(reference, seen, without=left_out)
    observed = {input: signature(mutant, input) for input in inputs(kind)}
    known = compared(kind, observed)
    return known, known and compared(kind, observed, without=left_out)


def said(diagnosis: DiagnosisRecord) -> str:
    """A diagnosis in short."""
    return f"{diagnosis.kind} {diagnosis.confidence:.0%} {diagnosis.mutant}"[:48]


def guess(mutant: Mutant, tokens: int, seed: int) -> tuple[str, DiagnosisRecord | None]:
    """What bets on sampled tokens make of a mutant, and how good that is.

    Args:
        mutant: a decoder.
        tokens: to sample under each of its settings, at most.
        seed: of the run.

    Returns:
        "right", "neighbour", "unknown" or "another", and the diagnosis; "unseen" and None where
        no bet rejects.
    """
    pair = load_pair("toy")
    settings = mutant.contract(pair_presets(pair, pair.open("language_model")[0]))
    certificate = certify(
        mutant.subject,
        pair,
        settings=settings,
        tokens=tokens * len(settings),
        seed=seed,
        only=[EVERY],
        exact=False,
        shrink=False,
    )
    index, found = by_bets(certificate.cases)
    if found is None:
        return "unseen", None
    if found.kind == mutant.family:
        return "right", found
    if found.kind == UNKNOWN:
        return "unknown", found
    beside = _weights(certificate.cases[index]).get(mutant.family, 0.0)
    return "neighbour" if beside >= NEIGHBOUR else "another", found


def _weights(case: CaseRecord) -> dict[str, float]:
    """Kinds by weight, from the bets of a case."""
    (components,) = (t.components for t in case.tests if t.property == EVERY and t.components)
    return weighed(case, components)


def report_bets(only: Sequence[str], tokens: int, seed: int) -> None:
    """Print a line for each decoder of the catalogue, and what the first guesses come to.

    Args:
        only: ids of mutants; all decoders that are sampled when empty.
        tokens: see `guess`.
        seed: see `guess`.
    """
    results = Counter[str]()
    for mutant in MUTANTS.values():
        if mutant.subject.kind != "decoder" or (only and mutant.id not in only):
            continue
        result, found = guess(mutant, tokens, seed)
        results[result] += 1
        made = "" if found is None else f"{found.kind} {found.confidence:.0%}: {found.description}"
        print(f"{mutant.id:<32} {mutant.family:<12} {result:<10} {made}", flush=True)
    judged = results.total() - results["unseen"]
    print(
        f"first guess by bets, of {judged} that {tokens:,} tokens show: right {results['right']}, "
        f"a neighbour {results['neighbour']}, unknown {results['unknown']}, "
        f"another kind {results['another']}; not shown: {results['unseen']}"
    )


def main() -> None:
    """Print both tables or that of the bets, or write the library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="compute what the library lacks")
    parser.add_argument("--anew", action="store_true", help="with --write: compute all of it")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bets", action="store_true", help="guess from bets on sampled tokens")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="with --bets: for each setting")
    parser.add_argument("--seed", type=int, default=0, help="with --bets: of the runs")
    parser.add_argument("--only", nargs="+", choices=MUTANTS, default=(), metavar="ID")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.bets:
        report_bets(arguments.only, arguments.tokens, arguments.seed)
        return
    if arguments.write:
        stored = [kind for kind in arguments.kinds if kind in STORED]
        write(stored, arguments.jobs, anew=arguments.anew)
        return
    for kind in arguments.kinds:
        mutants = library(kind)
        catalogue = [mutant for mutant in mutants if not isinstance(mutant, GeneralMistake)]
        report(kind, catalogue)
        if general := [mutant for mutant in mutants if isinstance(mutant, GeneralMistake)]:
            report(f"{kind}, mistakes of any", general)


if __name__ == "__main__":
    main()
