"""The section that closes a test session: what was certified, in a few lines each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specverify.reporting.failure import replay_command
from specverify.reporting.json_file import certificate_name, write_certificate

if TYPE_CHECKING:
    from specverify.certification.certificate import CaseRecord, Certificate

Line = tuple[str, dict[str, bool]]
"""Text, and its style as pytest's terminal takes it."""

_STYLES: dict[str, dict[str, bool]] = {
    "preserved": {"green": True},
    "lossy-as-declared": {"green": True},
    "violated": {"red": True},
    "error": {"red": True},
    "inconclusive": {"yellow": True},
}
_LONGEST = 240
"""Characters of a reason that are shown."""


def session_lines(certificates: Sequence["Certificate"], paths: Mapping[int, Path]) -> list[Line]:
    """The section's lines.

    Args:
        certificates: of the session, in order.
        paths: where they were written, by position; empty if they were not.
    """
    lines: list[Line] = []
    for place, certificate in enumerate(certificates):
        lines += _lines_of(certificate, paths.get(place))
    for disclaimer in dict.fromkeys(certificate.disclaimer for certificate in certificates):
        lines.append((disclaimer, {}))
    return lines


def write_all(certificates: Sequence["Certificate"], directory: Path) -> dict[int, Path]:
    """Write the certificates of a session; those that would have one name are numbered.

    Raises:
        OSError: the folder cannot be written.
    """
    paths: dict[int, Path] = {}
    for place, certificate in enumerate(certificates):
        name = Path(certificate_name(certificate))
        same = sum(path.stem.startswith(name.stem) for path in paths.values())
        if same:
            paths[place] = certificate.save(directory / f"{name.stem}-{same + 1}{name.suffix}")
        else:
            paths[place] = write_certificate(certificate, directory)
    return paths


def _lines_of(certificate: "Certificate", path: Path | None) -> list[Line]:
    pair = f" on {certificate.pair}" if certificate.pair else ""
    head = f"{certificate.verdict.upper()}  {certificate.subject.name}{pair} · {_work(certificate)}"
    lines: list[Line] = [(head, {"bold": True, **_STYLES[certificate.verdict]})]
    found = _violated(certificate)
    if certificate.verdict != "preserved" and not (certificate.verdict == "violated" and found):
        lines.append((f"  {_short(certificate.reason)}", {}))
    lines += [(text, {}) for text in _bounds(certificate)]
    expected = {(e.property, case) for e in certificate.expectations for case in e.cases}
    for property, case in found:
        known = "  as expected:" if (property, case.id) in expected else "  violated:"
        lines.append((f"{known} {property} in {case.id} · {replay_command(case, path)}", {}))
    for entry in certificate.expectations:
        if entry.state in ("passes", "expired"):
            said = "passes, remove the entry" if entry.state == "passes" else "has expired"
            lines.append((f"  expected failure of {entry.property} {said}: {entry.reason}", {}))
    if path is not None:
        lines.append((f"  certificate {path} · sha256 {certificate.digest()}", {}))
    return lines


def _work(certificate: "Certificate") -> str:
    tokens = sum(case.tokens for case in certificate.cases)
    tests = [test for case in certificate.cases for test in case.tests]
    asked = len({test.property for test in tests})
    violated = len({test.property for test in tests if test.decision == "violated"})
    said = [f"{violated} of {asked} properties violated" if violated else f"{asked} properties"]
    said.append(f"{len(certificate.cases)} cases")
    if tokens:
        said.append(f"n {tokens:,} tokens")
    return " · ".join(said)


def _bounds(certificate: "Certificate") -> list[str]:
    """The loosest value of each bound that was reached, and the largest computed distance."""
    loosest: dict[str, float] = {}
    for case in certificate.cases:
        for bound in case.bounds:
            loosest[bound.name] = max(bound.value, loosest.get(bound.name, 0.0))
    lines = [f"  {name} at most {value:.2g}" for name, value in loosest.items()]
    small = [case.tv_bound for case in certificate.cases if case.small]
    if exact := [distance for distance in small if distance is not None]:
        lines.append(f"  largest computed total variation {max(exact):.2g}, of {len(exact)} cases")
    return lines


def _violated(certificate: "Certificate") -> list[tuple[str, "CaseRecord"]]:
    """Each violated property, with the case that explains it or else the first one."""
    found: dict[str, CaseRecord] = {}
    for case in certificate.cases:
        for test in case.tests:
            if test.decision != "violated":
                continue
            shown = case.counterexample
            explains = shown is not None and shown.property == test.property
            if explains or test.property not in found:
                found[test.property] = case
    return sorted(found.items(), key=lambda entry: entry[0])


def _short(text: str) -> str:
    text = text.partition("\n")[0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
