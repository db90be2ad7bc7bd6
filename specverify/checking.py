"""Conformance in a test file: one call, or one pytest item a property.

Options that a test does not name are those of the test session, see `pytest_plugin`.
"""

from collections.abc import Callable
from typing import Any, Literal

from specverify.certification.certificate import Certificate
from specverify.certification.run import certify
from specverify.check_plan import request
from specverify.conformance import ExpectedFailure, of_run
from specverify.models.pairs import Pair
from specverify.property_checks import Check, property_checks
from specverify.session import Found, Judged, current_session
from specverify.subjects.protocols import Subject

Inconclusive = Literal["pass", "fail"]


def check(
    subject: Subject | Callable[..., Any] | str,
    pair: Pair | str | None = None,
    *,
    kind: str | None = None,
    inconclusive: Inconclusive = "pass",
    **options: Any,
) -> Certificate:
    """Certify a subject, and raise if it does not keep its contract.

    Args:
        subject: what to test; see `specverify.certify`.
        pair: the models to test it on; the session's, or else `toy`, when omitted.
        kind: what a subject given by name is, where it does not say so itself.
        inconclusive: whether too little evidence fails too. A rule that is computed is decided at
            any number of tokens; the bound on what is sampled takes about a million.
        **options: of `specverify.certify`, such as profile, seed and tokens.

    Returns:
        The certificate.

    Raises:
        ConformanceError: the verdict is violated or error, or inconclusive where that fails; or a
            failure is expected that does not occur.
        UsageError: the request makes no sense.
        KeyboardInterrupt: it was interrupted.
    """
    loaded, pair, options = request(subject, pair, {"kind": kind, **options})
    certificate = certify(loaded, pair, **options)
    if (session := current_session()) is not None:
        session.found.append(Found(certificate))
        session.judged.append(Judged("*", certificate.verdict, certificate.digest()))
    if certificate.interrupted:
        raise KeyboardInterrupt
    failing = {"violated", "error"} | ({"inconclusive"} if inconclusive == "fail" else set())
    if certificate.verdict in failing or certificate.stale:
        raise of_run(certificate)
    return certificate


def parametrize(
    subject: Subject | Callable[..., Any] | str, pair: Pair | str | None = None, **options: Any
) -> Any:
    """Make one pytest item for each property of a subject.

    Args:
        subject: what to test; see `specverify.certify`.
        pair: the models to test it on; the session's, or else `toy`, when omitted.
        **options: of `specverify.certify`, such as profile, seed and tokens; `kind` as in `check`.

    Returns:
        A decorator. The test it decorates takes `check_property` and calls it.

    Example:
        @specverify.parametrize("mylib.sampling:verify")
        def test_conformance(check_property):
            check_property()
    """
    import pytest

    checks = property_checks(subject, pair, **options)
    return pytest.mark.parametrize(
        "check_property", [pytest.param(c, id=c.id, marks=marks(c)) for c in checks]
    )


def marks(check: Check) -> list[Any]:
    """Pytest marks of an item: what it is about, and that it is expected to fail.

    The plugin registers its own; without the plugin `--strict-markers` would refuse it.
    """
    import pytest

    made: list[Any] = []
    if current_session() is not None:
        made.append(pytest.mark.specverify(property=check.id, chapter=check.chapter))
    if check.expected:
        reasons = "; ".join(dict.fromkeys(entry.reason for entry in check.expected))
        reason = f"{reasons} (an expected failure: remove the entry once it passes)"
        made.append(pytest.mark.xfail(reason=reason, raises=ExpectedFailure, strict=True))
    return made
