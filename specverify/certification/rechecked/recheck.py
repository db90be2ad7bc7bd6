"""A certificate held against itself: everything in it that its own numbers decide, once more.

Nothing is run: no model, no subject, no sample. What was counted or computed is taken from the
certificate; what follows from it (p-values, decisions, verdicts, distances) is computed anew. So a
number that was changed by hand disagrees with another, also where the digest was made to fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specverify.certification.case_records import CaseRecord
from specverify.certification.certificate import Certificate
from specverify.certification.rechecked.cases import recheck_case
from specverify.certification.rechecked.computed import recheck_exact
from specverify.certification.rechecked.decisions import recheck_tests
from specverify.certification.rechecked.ledger import Disagreement, Ledger
from specverify.certification.rechecked.run import recheck_run, share_of
from specverify.certification.registry import LOSSY

__all__ = ["Disagreement", "Rechecked", "recheck", "recheck_file"]


@dataclass(frozen=True)
class Rechecked:
    """What recomputing a certificate gave."""

    disagreements: tuple[Disagreement, ...]
    """Fields that are not what the others make them; none if it is consistent."""
    compared: tuple[tuple[str, int], ...]
    """What was recomputed, and how often."""
    unknown: tuple[tuple[str, str], ...]
    """What cannot be, and why."""


def recheck(certificate: Certificate, stated_digest: str | None = None) -> Rechecked:
    """Recompute everything that a certificate's own numbers decide.

    Args:
        certificate: to check.
        stated_digest: SHA-256 that its file states; not compared when omitted.
    """
    ledger = Ledger()
    if stated_digest is not None:
        ledger.same("digest", "sha256", stated_digest, certificate.digest())
    lossy = _lossy(certificate)
    with ledger.guarded("certificate"):
        recheck_run(certificate, ledger)
    for case in certificate.cases:
        cut_short = certificate.interrupted and case.reason.startswith("interrupted")
        with ledger.guarded(f"cases[{case.id}]"):
            recheck_tests(case, share_of(certificate), ledger)
            recheck_exact(case, ledger, lossy=lossy)
            recheck_case(
                case,
                certificate.alpha,
                ledger,
                cut_short=cut_short,
                expecting=bool(certificate.expectations),
            )
    ledger.cannot(
        "subject, seed, environment, prompts, settings",
        "they say what was run; the digest covers them, `specverify replay` runs it again",
    )
    return Rechecked(
        tuple(ledger.disagreements),
        tuple(sorted(ledger.compared.items())),
        tuple(ledger.unknown.items()),
    )


def recheck_file(path: str | Path) -> tuple[Certificate, Rechecked]:
    """Read a certificate and recompute it.

    Raises:
        UsageError: there is no such file, or it is no certificate.
    """
    certificate, stated = Certificate.read(path)
    return certificate, recheck(certificate, str(stated))


def _lossy(certificate: Certificate) -> bool:
    """Whether the subject declares a lossy contract."""
    said: Sequence[CaseRecord | Certificate] = (certificate, *certificate.cases)
    return any(case.verdict == "lossy-as-declared" for case in certificate.cases) or any(
        entry.reason == LOSSY for part in said for entry in part.not_applicable
    )
