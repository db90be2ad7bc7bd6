"""The failure text: what is read first when something is wrong."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from specverify.certification.certificate import (
    CaseRecord,
    CounterexampleRecord,
    DiagnosisRecord,
    OutcomeRecord,
    SuspectRecord,
)
from specverify.reporting.failure import looks_like, print_failures, replay_command

RECORD = CounterexampleRecord(
    kind="round",
    property="joint.round",
    inputs={"num_draft_tokens": 1},
    outcomes=tuple(
        OutcomeRecord(what=f"{a} {b}", tokens=(a, b), observed=observed, expected=0.25)
        for (a, b), observed in {(0, 0): 0.3125, (0, 1): 0.3125, (1, 0): 0.25, (1, 1): 0.1}.items()
    ),
    total_variation=0.125,
    tolerance=1e-12,
    text="Let p = (1/2, 1/2). Then the target emits 0. However, the subject does not.",
)
DIAGNOSIS = DiagnosisRecord(
    kind="residual",
    confidence=0.974,
    mutant="residual-not-subtracted",
    description="the correction is drawn from p",
    basis="exact",
)
CASE = CaseRecord(
    id="exact/random-V3-K1-float64",
    verdict="violated",
    counterexample=RECORD,
    diagnosis=DIAGNOSIS,
)


def printed(*cases: CaseRecord, **options: object) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_failures(cases, console, **options)  # type: ignore[arg-type]
    return console.export_text()


def test_everything_stands_there_in_order() -> None:
    text = printed(
        CASE, certificate=Path("out/mine.json"), scripts={CASE.id: Path("out/mine-exact.py")}
    )
    wanted = (
        "COUNTEREXAMPLE joint.round in exact/random-V3-K1-float64",
        "Let p = (1/2, 1/2).",
        "Then the target emits 0. However, the subject does not.",
        "tokens",
        "0.3125",
        "total variation 0.125",
        "Looks like: residual-not-subtracted, of kind 'residual' (97%): the correction is drawn",
        "specverify replay out/mine.json exact/random-V3-K1-float64 --counterexample",
        "python out/mine-exact.py",
    )
    places = [text.find(part) for part in wanted]
    assert -1 not in places, text
    assert places == sorted(places)


def test_a_mask_that_leaks_is_marked_however_little_gets_through() -> None:
    leaking = CounterexampleRecord(
        kind="transform",
        property="transforms.support",
        inputs={"history": [0]},
        outcomes=(
            OutcomeRecord(what="0", tokens=(0,), observed=1.0, expected=1.0),
            OutcomeRecord(what="1", tokens=(1,), observed=1e-13, expected=0.0),
        ),
        tolerance=1e-6,
        text="Let temperature = 1/2. Then the reference gives token 1 probability 0.",
    )
    shown = StringIO()
    console = Console(width=120, force_terminal=True, color_system="standard", file=shown)
    print_failures([CASE.model_copy(update={"counterexample": leaking})], console)
    (line,) = [line for line in shown.getvalue().splitlines() if "1e-13" in line]
    assert "\x1b[1;31m" in line.partition("1e-13")[0]
    assert "total variation" not in shown.getvalue()


def test_a_search_that_was_cut_off_says_so() -> None:
    cut = CASE.model_copy(update={"counterexample": RECORD.model_copy(update={"complete": False})})
    assert "ran out of time" in printed(cut)
    assert "ran out of time" not in printed(CASE)


def test_nothing_to_say_about_what_is_right() -> None:
    assert printed(CaseRecord(id="plain", verdict="preserved")).strip() == ""


def test_a_case_is_replayed_as_itself_where_nothing_was_searched() -> None:
    own = RECORD.model_copy(update={"kind": "case", "inputs": {}})
    case = CASE.model_copy(update={"counterexample": own})
    assert replay_command(case, None) == f"specverify replay CERTIFICATE {CASE.id}"


def test_unknown_kinds_name_the_nearest() -> None:
    suspect = SuspectRecord(mutant="lenient", kind="ratio", probability=0.2)
    unknown = DIAGNOSIS.model_copy(
        update={"kind": "unknown", "mutant": "", "confidence": 0.8, "suspects": (suspect,)}
    )
    assert looks_like(unknown) == "no known kind of mistake (80%); nearest: lenient"
    bets = DIAGNOSIS.model_copy(update={"mutant": "", "basis": "bets"})
    assert looks_like(bets) == "kind 'residual' (97%): the correction is drawn from p"
