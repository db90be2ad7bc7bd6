"""The section that closes a test session."""

from pathlib import Path

from specverify.certification.case_records import BoundRecord, CaseRecord, ExpectationRecord
from specverify.certification.certificate import Certificate
from specverify.reporting.session import session_lines, write_all
from tests.plain_certificate import plain_case, plain_certificate

PLAIN = plain_certificate()


def case(id: str, decision: str, **more: object) -> CaseRecord:
    return plain_case(id, "joint.round", decision, **more)


def text(*certificates: Certificate, paths: dict[int, Path] | None = None) -> str:
    return "\n".join(line for line, _ in session_lines(certificates, paths or {}))


def test_a_preserved_run_says_what_it_rests_on() -> None:
    bounds = [BoundRecord(name="leak rate", value=v, alpha=1e-6, n=9) for v in (0.01, 0.02)]
    cases = (
        case("plain", "pass", tokens=1_000, bounds=(bounds[0],)),
        case("history", "pass", tokens=500, bounds=(bounds[1],)),
        case("exact/a", "pass", tv_bound=1e-16),
    )
    assert text(PLAIN.model_copy(update={"cases": cases})) == "\n".join(
        [
            "PRESERVED  mine:verify on toy · 1 properties · 3 cases · n 1,500 tokens",
            "  leak rate at most 0.02",
            "  largest computed total variation 1e-16, of 1 cases",
            PLAIN.disclaimer,
        ]
    )


def test_a_violation_is_named_with_what_shows_it_again() -> None:
    cases = (case("exact/a", "violated"), case("exact/b", "violated"))
    made = PLAIN.model_copy(update={"cases": cases, "verdict": "violated"})
    shown = text(made, paths={0: Path("out/x.json")})
    assert "VIOLATED  mine:verify on toy · 1 of 1 properties violated" in shown
    assert "  violated: joint.round in exact/a · specverify replay out/x.json exact/a" in shown
    assert "exact/b" not in shown
    assert f"  certificate out/x.json · sha256 {made.digest()}" in shown
    assert "replay CERTIFICATE exact/a" in text(made)


def test_expected_failures_are_told_apart() -> None:
    entry = ExpectationRecord(
        property="joint.round", reason="issue 12", state="failed as expected", cases=("exact/a",)
    )
    made = PLAIN.model_copy(
        update={"cases": (case("exact/a", "violated"),), "expectations": (entry,)}
    )
    assert "  as expected: joint.round in exact/a" in text(made)
    stale = entry.model_copy(update={"state": "passes", "cases": ()})
    passing = PLAIN.model_copy(update={"expectations": (stale,)})
    assert "expected failure of joint.round passes, remove the entry: issue 12" in text(passing)


def test_a_verdict_that_no_property_gives_has_its_reason() -> None:
    made = PLAIN.model_copy(
        update={"cases": (case("plain", "pass"),), "verdict": "violated", "reason": "all together"}
    )
    assert "  all together" in text(made)
    assert "  nothing was rejected" not in text(PLAIN)


def test_the_disclaimer_stands_once() -> None:
    assert text(PLAIN, PLAIN).count(PLAIN.disclaimer) == 1


def test_certificates_of_one_name_are_numbered(tmp_path: Path) -> None:
    other = PLAIN.model_copy(update={"profile": "standard"})
    paths = write_all([PLAIN, other], tmp_path)
    assert [path.name for path in paths.values()] == [
        "mine-verify-toy-seed0.json",
        "mine-verify-toy-seed0-2.json",
    ]
    assert Certificate.load(paths[1]) == other
