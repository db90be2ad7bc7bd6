"""How large the deviations of mutants are for which the catalogue gives no size, measured.

A rule or decoder whose signature ships is held against the target on the inputs of the signatures,
other rules on the same rounds, and decoders on the small cases that are computed for the properties
that catch them. A transform is held against its reference on the rows of its cases and, if it is
right on those, on the others that a diagnosis looks at. What differs nowhere there has its size in
words, in `fixtures/mutants/sizes.py`, as has what is no mistake of a distribution.

python benchmarks/mutant_sizes.py [--write [--anew]]
"""

import argparse
import json
from pathlib import Path

import torch

from specverify.certification.diagnosis_transforms import seen_of_known
from specverify.certification.run import certify
from specverify.certification.signatures import Known, inputs, library, of_transform, signature
from specverify.certification.transform_case import PARAMETERS
from specverify.certification.transform_looks import Look, looks
from specverify.exact.joint import total_variation
from specverify.fixtures.controls import CONTROLS, KnownControl
from specverify.fixtures.lookalikes.catalogue import LookAlike
from specverify.fixtures.mutants.catalogue import Mutant
from specverify.fixtures.mutants.sizes import MEASURED, in_words

FILE = Path(__file__).parent.parent / "fixtures" / "mutants" / MEASURED
VISIBLE = 1e-9
GREEDY = "greedy."
"""Chapter of rules that are right at temperature 0 only, and held against nothing else."""

CALLS = {
    "alone": "of a row that is handed over alone",
    "kept": "of what a result is after another call",
    "overwritten": "of a result whose like was written to before",
    "grown": "of a result after that of a shorter history",
    "logits handed in": "of what the logits handed in are after a call",
    "history handed in": "of what the history handed in is after a call, over places and tokens",
}
"""What looks at calls are about."""


def main() -> None:
    """Print the sizes that are measured and which mutants have none, or write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="measure what the file lacks")
    parser.add_argument("--anew", action="store_true", help="with --write: measure all of it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    if arguments.write:
        known = written({} if arguments.anew else known)
    for id, size in known.items():
        print(f"{id:<40} {size}")
    bare = [
        control.id
        for control in CONTROLS
        if control.effect != "preserved" and not control.size
        if control.id.removesuffix("-rule") not in known
    ]
    print(f"without a size: {', '.join(bare) or 'none'}")


def written(known: dict[str, str]) -> dict[str, str]:
    """Measure what is not known and save after each mutant; what needs no size any more goes."""
    found: dict[str, str] = {}
    for control in CONTROLS:
        id = control.id.removesuffix("-rule")
        if control.effect == "preserved" or stated(control) or in_words(id, control.code):
            continue
        if size := known.get(id) or measure(control):
            found[id] = size
            merged = dict(sorted((known | found).items()))
            FILE.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    found = dict(sorted(found.items()))
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def stated(control: KnownControl) -> str:
    """The size that a mutant gives itself."""
    return control.origin.size if isinstance(control.origin, Mutant) else ""


def measure(control: KnownControl) -> str:
    """The size of one mutant; empty where nothing differs, or nothing can be computed."""
    kind, mutant = control.subject.kind, control.origin
    if isinstance(mutant, LookAlike):
        return ""
    if kind == "transform":
        return of_rows(mutant)
    if kind == "rule" or mutant in library(kind):
        greedy = any(property.startswith(GREEDY) for property in control.caught_by)
        return "" if greedy else of_signature(mutant)
    return of_small_cases(control)


def of_signature(mutant: Known) -> str:
    """By what a mutant emits on the inputs of the signatures."""
    apart = [
        (total_variation(joint, input.expected), input.name)
        for input in inputs(mutant.subject.kind)
        if (joint := signature(mutant, input)) is not None
    ]
    largest, where = max(apart, default=(0.0, ""))
    if largest < VISIBLE:
        return ""
    of = "a round at" if mutant.subject.kind == "rule" else "three tokens of a tiny pair, input"
    return f"TV {number(largest)} of {of} {where}"


def of_small_cases(control: KnownControl) -> str:
    """By what a decoder emits in the small cases of the properties that catch it."""
    certificate = certify(
        control.subject, only=sorted(control.caught_by), sample=False, shrink=False
    )
    apart = [
        (test.exact.total_variation, case.id.removeprefix("probe/"))
        for case in certificate.cases
        for test in case.tests
        if test.exact is not None
    ]
    largest, where = max(apart, default=(0.0, ""))
    return f"TV {number(largest)} of a whole run of a tiny pair, {where}" if largest else ""


def of_rows(mutant: Known) -> str:
    """By what a transform makes of rows."""
    reference = str(mutant.subject.reference)
    if reference not in PARAMETERS or mutant not in of_transform(reference):
        return ""
    found = {look: seen_of_known(mutant, look) for look in looks(reference)}
    cases = {look: seen for look, seen in found.items() if look.corpus}
    everywhere = torch.cat([apart(look, seen) for look, seen in cases.items()])
    none = torch.cat([seen[:, -1] > look.expected[:, -1] for look, seen in cases.items()])
    if bool(none.any()):
        elsewhere = float(everywhere[~none].max())
        beside = "right elsewhere" if elsewhere < VISIBLE else f"TV {number(elsewhere)} elsewhere"
        return f"no distribution on {share(none)} of the rows of the cases; {beside}"
    if bool((everywhere > VISIBLE).any()):
        return (
            f"TV {number(float(everywhere.max()))} at most on the rows of the cases, on "
            f"{share(everywhere > VISIBLE)} of them"
        )
    look = max(found, key=lambda look: float(apart(look, found[look]).max()))
    largest = float(apart(look, found[look]).max())
    if largest < VISIBLE:
        return ""
    where = CALLS.get(look.kind, f"on {look.kind} rows with {look.parameters}")
    return f"none on the rows of the cases; TV {number(largest)} at most {where}"


def apart(look: Look, seen: torch.Tensor) -> torch.Tensor:
    """Total variation from the reference [B]; 1 where there is no distribution."""
    return look.variation(seen, look.expected).clamp(max=1.0)


def share(rows: torch.Tensor) -> str:
    """Share of the rows that are true."""
    return f"{float(rows.double().mean()):.2g}".lstrip("0") if not bool(rows.all()) else "all"


def number(value: float) -> str:
    """A total variation, short."""
    if value > 1 - 0.005:
        return "1"
    return (f"{value:.2f}" if value >= 0.005 else f"{value:.1g}").lstrip("0")


if __name__ == "__main__":
    main()
