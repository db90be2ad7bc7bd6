"""The kill table as it stands in a certificate."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from specverify.certification import kill_record as module
from specverify.certification.kill_record import kill_record
from specverify.certification.kill_table import ControlRecord, KillRecord, KillTable
from specverify.certification.rechecked.recheck import recheck
from specverify.certification.run import certify
from specverify.subjects.protocols import Capabilities, Subject
from tests.certified import PAIR, crash


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    kill_record.cache_clear()
    yield
    kill_record.cache_clear()


def control(id: str, effect: str, kills: tuple[str, ...] = (), reason: str = "") -> ControlRecord:
    found = tuple(KillRecord(property=name, evidence="exact", cost=30) for name in kills)
    return ControlRecord.model_validate(
        {
            "id": id,
            "kind": "rule",
            "description": "one change",
            "effect": effect,
            "killed_by": [kill.model_dump() for kill in found],
            "reason": reason,
            "seconds": 1.0,
        }
    )


TABLE = KillTable(
    controls=(
        control("always-accept", "violated", ("joint.round", "support.nothing_outside")),
        control("prints", "finding"),
        control("survivor", "violated", (), "a mutant came out preserved"),
        control("race", "preserved"),
    ),
    seed=3,
    suite="",
)


def test_mutants_come_with_what_catches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kill_table", lambda: TABLE)
    record = kill_record()
    assert record is not None
    assert record.mutants == {
        "always-accept": {"joint.round": ("exact", 30), "support.nothing_outside": ("exact", 30)},
        "prints": {},
        "survivor": {},
    }
    assert (record.lookalikes, record.wrong, record.seed) == (("race",), ("survivor",), 3)


def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def table() -> KillTable:
        calls.append(1)
        return TABLE

    monkeypatch.setattr(module, "kill_table", table)
    assert kill_record() is kill_record()
    assert len(calls) == 1


def test_without_a_table_of_these_properties_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kill_table", lambda: None)
    assert kill_record() is None


def test_it_stands_in_the_certificate_and_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kill_table", lambda: TABLE)
    certificate = certify(
        Subject("mine", "rule", crash, Capabilities()), PAIR, tokens=100, exact=False
    )
    assert certificate.kill_table == kill_record()
    assert recheck(certificate).disagreements == ()
    without = certificate.model_copy(update={"kill_table": None})
    assert without.digest() != certificate.digest()
    both = kill_record().model_copy(update={"lookalikes": ("prints",), "wrong": ("nobody",)})
    found = recheck(certificate.model_copy(update={"kill_table": both})).disagreements
    assert [entry.field for entry in found] == [
        "certificate.kill_table",
        "certificate.kill_table.wrong",
    ]


def test_certifying_does_not_load_the_self_test_beforehand() -> None:
    code = (
        "import sys; import specverify.certification.run; "
        f"assert {module.__name__!r} in sys.modules; "
        "assert 'specverify.certification.selftest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
