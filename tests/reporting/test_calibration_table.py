import json
from io import StringIO

import pytest
from rich.console import Console

from specverify.certification.calibration import ALPHAS, Calibration, FalseAlarms
from specverify.certification.calibration_library import Detection
from specverify.reporting.calibration_table import print_calibration, to_json, verdict_line

GOOD = FalseAlarms(
    "joint.every_token", decides=True, runs=1000, alarms=(40, 4, 0), mean_e=0.9, mean_e_error=0.1
)
HIGH = FalseAlarms("joint.first_token", decides=True, runs=1000, alarms=(40, 40, 0))
REPORTED = FalseAlarms("joint.first_token, G", decides=False, runs=1000, alarms=(300, 90, 30))
CAUGHT = Detection("bonus-from-draft", 3, True, ("a", "b", "c"), 12_000, 60_000, "a, b, c")
TOGETHER = Detection("slightly-off", 3, True, (), 50_000, 60_000, "all together")
MISSED = Detection("unseen", 3, False, (), 60_000, 60_000, "nothing was rejected")


def printed(calibration):
    file = StringIO()
    print_calibration(calibration, Console(file=file, width=140))
    return file.getvalue()


def line(text, name):
    return next(line for line in text.splitlines() if line.startswith(name)).rstrip()


def test_both_tables():
    text = printed(Calibration(3, (GOOD, REPORTED), (CAUGHT, TOGETHER)))
    assert line(text, "joint.every_token").split()[1:] == [
        "1,000",
        "0.0400",
        "0.0040",
        "0.0000",
        "0.900",
        "ok",
    ]
    assert line(text, "joint.first_token, G").endswith("reported only")
    assert "at most 0.1285, 0.0194, 0.0040, which is alpha + 3 binomial sd" in text
    assert line(text, "bonus-from-draft").split() == [
        *("bonus-from-draft", "3", "12,000", "60,000", "caught", "a,", "b", "and", "1", "more"),
    ]
    assert line(text, "slightly-off").endswith("all tests together")
    assert text.rstrip().endswith("false alarms within limits; 2 of 2 mutants caught")


def test_what_is_wrong_is_said():
    text = printed(Calibration(3, (GOOD, HIGH), (CAUGHT, MISSED)))
    assert line(text, "joint.first_token").endswith("TOO HIGH")
    assert line(text, "joint.every_token").endswith("ok")
    assert "MISSED" in line(text, "unseen")
    assert "nothing (nothing was rejected)" in line(text, "unseen")
    assert "TOO HIGH in 1 rows; 1 of 2 mutants caught, MISSED: unseen" in text


@pytest.mark.parametrize(
    ("calibration", "said"),
    [
        (Calibration(0, (GOOD,)), "false alarms within limits"),
        (Calibration(0, (), (CAUGHT,)), "1 of 1 mutants caught"),
        (Calibration(0, (GOOD,), (), interrupted=True), "within limits; interrupted"),
    ],
)
def test_half_of_it(calibration, said):
    assert said in verdict_line(calibration)
    text = printed(calibration)
    assert ("mutant" in text) == bool(calibration.detections)
    assert ("joint" in text) == bool(calibration.false_alarms)


def test_reported_rows_never_fail():
    assert not REPORTED.too_high
    assert Calibration(0, (GOOD, REPORTED)).ok


def test_json_holds_the_same():
    content = json.loads(to_json(Calibration(3, (GOOD, HIGH, REPORTED), (CAUGHT, MISSED))))
    assert content["alphas"] == list(ALPHAS)
    assert (content["ok"], content["interrupted"], content["seed"]) == (False, False, 3)
    assert [row["too_high"] for row in content["null"]] == [False, True, False]
    assert content["null"][0]["rates"] == [0.04, 0.004, 0.0]
    assert [found["caught"] for found in content["library"]] == [True, False]
    assert content["library"][0]["first"] == ["a", "b", "c"]
