"""The store of finished shards: reused, never mixed, and nobody else's files touched."""

import errno
import importlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.errors import SpecverifyError, UsageError
from specverify.sampling import store as module
from specverify.sampling.engines import InProcess
from specverify.sampling.prefix import in_order
from specverify.sampling.processes import Processes
from specverify.sampling.store import ShardStore, stored

HERE = Path(__file__).parent
MANIFEST = {
    "subject": "mine",
    "settings": {"temperature": 0.8, "top_p": None},
    "prompts": [[1, 2], [3]],
    "seed": 7,
}
STATE = {"counts": np.arange(4), "total": 0.1, "example": [1, 2]}


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    return importlib.import_module("work_for_processes")


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def equal(states: Iterable[Any], others: Iterable[Any]) -> bool:
    return [pickle.dumps(state) for state in states] == [pickle.dumps(state) for state in others]


def test_what_is_saved_is_loaded_by_a_later_store(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with ShardStore(folder, MANIFEST) as store:
        assert store.load("case", 0) is None
        assert store.finished("case") == 0
        store.save("case", 3, STATE)
        store.save("Case", 3, {"other": 1})
        assert store.finished("case") == 1
    with ShardStore(folder, dict(reversed(MANIFEST.items()))) as store:
        found = store.load("case", 3)
        assert found is not None
        assert equal([found], [STATE])
        assert store.load("Case", 3) == {"other": 1}
        assert store.load("case", 2) is None
        store.save("case", 3, {"new": 1})
        assert store.load("case", 3) == {"new": 1}
        assert store.finished("case") == 1
    assert not any(name.endswith((".tmp", "lock")) for name in files(folder))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 8}, "seed is 7 there and 8 here"),
        (
            {"settings": {"temperature": 0.9, "top_p": 1}},
            "settings.temperature is 0.8 there and 0.9",
        ),
        ({"settings": {"temperature": 0.8}}, "settings.top_p is null there and absent here"),
        ({"prompts": [[1, 2], [4]]}, r"prompts\[1\]\[0\] is 3 there and 4 here"),
        ({"prompts": [[1, 2]]}, r"prompts\[1\] is \[3\] there and absent here"),
        ({"prompts": []}, r"prompts\[0\] is \[1, 2\] there and absent here"),
        ({"prompts": {}}, r"prompts is \[\[1, 2\], \[3\]\] there and \{\} here"),
        ({"version": "2"}, 'version is absent there and "2" here'),
        ({"seed": 7.0}, "seed is 7 there and 7.0 here"),
    ],
)
def test_another_run_is_refused_by_its_first_difference(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with ShardStore(tmp_path, MANIFEST) as store:
        store.save("case", 0, STATE)
    before = files(tmp_path)
    with pytest.raises(UsageError, match=said + ".*; name another folder, or delete this one"):
        ShardStore(tmp_path, MANIFEST | change)
    assert files(tmp_path) == before


def test_what_json_makes_equal_is_the_same_run(tmp_path: Path) -> None:
    ShardStore(tmp_path, {"prompts": ((1, 2), (3,)), "nan": float("nan")}).close()
    ShardStore(tmp_path, {"nan": float("nan"), "prompts": [[1, 2], [3]]}).close()


def test_a_manifest_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the manifest cannot be written as JSON.*set"):
        ShardStore(tmp_path / "new", {"pair": {1, 2}})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("thesis.tex", "words", r"other files \('thesis.tex'\) and no manifest.json"),
        ("manifest.json", '{"name": "my web app"}', "a manifest.json that is not specverify's"),
        ("manifest.json", "[1]", "a manifest.json that is not specverify's"),
        ("manifest.json", "{", "a manifest.json that is not specverify's"),
    ],
)
def test_a_folder_of_somebody_else_is_left_alone(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said + "; name an empty folder"):
        ShardStore(tmp_path, MANIFEST)
    assert files(tmp_path) == {name}
    assert (tmp_path / name).read_text() == text


def test_a_start_that_was_cut_short_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123456\n")
    (tmp_path / "manifest.json.tmp").write_text('{"subj')
    ShardStore(tmp_path, MANIFEST).close()
    assert files(tmp_path) == {"manifest.json"}


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"cannot keep shards in .*name a folder"):
            ShardStore(path, MANIFEST)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "swap"])
def test_damaged_files_count_as_missing_and_are_replaced(tmp_path: Path, damage: str) -> None:
    with ShardStore(tmp_path, MANIFEST) as store:
        store.save("case", 0, STATE)
        store.save("case", 1, STATE)
        path, other = sorted(tmp_path.rglob("*.shard"))
        content = path.read_bytes()
        flipped = bytes([*content[:-30], content[-30] ^ 1, *content[-29:]])
        path.write_bytes(
            {
                "cut": content[: len(content) // 2],
                "flip": flipped,
                "empty": b"",
                "swap": other.read_bytes(),
            }[damage]
        )
        assert store.load("case", 0) is None
        assert store.load("case", 1) is not None
        results = dict(stored(InProcess(), store, "case", lambda _: STATE, range(2)))
        assert equal([results[0], results[1]], [STATE, STATE])
        assert path.read_bytes() == content


def test_a_write_that_fails_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with ShardStore(tmp_path, MANIFEST) as store:
        store.save("case", 0, STATE)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(
            SpecverifyError, match=r"shard 0 of case 'case' cannot be saved .*No sp"
        ):
            store.save("case", 0, {"new": 1})
        monkeypatch.undo()
        found = store.load("case", 0)
        assert found is not None
        assert equal([found], [STATE])
        store.discard()
    assert not tmp_path.exists()


cases = st.one_of(
    st.text(st.characters()),
    st.sampled_from(["a/b", "a-b", "A-B", "a b", "..", ".", "", "con", "/etc/passwd", "a" * 400]),
)


@given(cases, cases)
def test_cases_have_file_names_of_their_own(one: str, other: str) -> None:
    names = [module._file_name(case) for case in (one, other)]
    assert (names[0].lower() == names[1].lower()) == (one == other)
    assert all(module._CASE.fullmatch(name) and len(name) < 80 for name in names)


def test_indices_below_zero_are_refused(tmp_path: Path) -> None:
    with ShardStore(tmp_path, MANIFEST) as store, pytest.raises(UsageError, match="index is -1"):
        store.load("case", -1)


def test_discard_removes_what_the_store_made_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    store = ShardStore(folder, MANIFEST)
    for index in range(3):
        store.save("a/b", index, STATE)
        store.save("other", index, STATE)
    kept = sorted(folder.rglob("*.shard"))[0].parent / "notes.txt"
    kept.write_text("mine")
    (folder / "thesis").mkdir()
    (folder / "thesis" / "00000001.shard").write_text("mine")
    (kept.parent / "00000002.shard.tmp").write_text("half a shard")
    store.discard()
    assert files(folder) == {kept.relative_to(folder).as_posix(), "thesis/00000001.shard"}
    with pytest.raises(SpecverifyError, match="is closed"):
        store.save("a/b", 0, STATE)
    kept.unlink()
    clean = ShardStore(tmp_path / "clean", MANIFEST)
    clean.save("case", 0, STATE)
    clean.discard()
    assert not (tmp_path / "clean").exists()


def hold(folder: Path) -> subprocess.Popen[str]:
    """A process that has the folder until it is killed."""
    script = f"""
        import sys, time
        from pathlib import Path
        from specverify.sampling.store import ShardStore
        store = ShardStore(Path({str(folder)!r}), {MANIFEST!r})
        store.save("case", 0, {{"by": "holder"}})
        print("go", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    return process


def test_two_runs_cannot_share_a_folder_and_a_killed_one_blocks_nobody(tmp_path: Path) -> None:
    holder = hold(tmp_path)
    try:
        with pytest.raises(UsageError, match=rf"in use by another run \(process {holder.pid}\)"):
            ShardStore(tmp_path, MANIFEST)
    finally:
        holder.kill()
        holder.communicate()
    assert (tmp_path / "lock").exists()
    with ShardStore(tmp_path, MANIFEST) as store:
        assert store.load("case", 0) == {"by": "holder"}
        with pytest.raises(UsageError, match=f"process {os.getpid()}"):
            ShardStore(tmp_path, MANIFEST)


def test_a_lock_deleted_before_it_was_held_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    flock, calls = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:  # its last owner ends between our opening and our locking
            (tmp_path / "lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with ShardStore(tmp_path, MANIFEST):
        assert len(calls) == 2
        with pytest.raises(UsageError, match="in use by another run"):
            ShardStore(tmp_path, MANIFEST)


def test_without_fcntl_the_file_is_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "fcntl", None)
    with ShardStore(tmp_path, MANIFEST):
        with pytest.raises(UsageError, match=r"if no such process runs, delete '.*lock'"):
            ShardStore(tmp_path, MANIFEST)
        assert (tmp_path / "lock").exists()
    ShardStore(tmp_path, MANIFEST).close()


@settings(max_examples=20)
@given(st.sets(st.integers(0, 7)), st.permutations(range(8)))
def test_finished_shards_come_from_the_store_and_the_rest_is_run(
    tmp_path_factory: pytest.TempPathFactory, finished: set[int], order: list[int]
) -> None:
    ran: list[int] = []

    def state(index: int) -> dict[str, Any]:
        ran.append(index)
        return {"index": index, "third": index / 3}

    class AnyOrder(InProcess):
        def run(self, work: Any, indices: Any) -> Any:
            return super().run(work, sorted(indices, key=order.index))

    expected = [state(index) for index in range(8)]
    with ShardStore(tmp_path_factory.mktemp("store"), MANIFEST) as store:
        for index in finished:
            store.save("case", index, expected[index])
        ran.clear()
        results = stored(AnyOrder(), store, "case", state, range(8))
        first = [next(results)[0] for _ in finished]
        assert first == sorted(finished)
        assert ran == []
        results.close()
        assert list(in_order(stored(AnyOrder(), store, "case", state, range(8)))) == expected
        assert ran == [index for index in order if index not in finished]
        assert store.finished("case") == 8


def test_a_shard_is_saved_before_it_is_seen_and_closing_closes_the_engine(tmp_path: Path) -> None:
    closed = []

    class Watched(InProcess):
        def run(self, work: Any, indices: Any) -> Any:
            try:
                yield from super().run(work, indices)
            finally:
                closed.append(True)

    with ShardStore(tmp_path, MANIFEST) as store:
        results = stored(Watched(), store, "case", lambda index: {"index": index}, range(9))
        index, state = next(results)
        assert store.load("case", index) == state
        results.close()
        assert closed == [True]
        assert store.finished("case") == 1


SCRIPT = """
import os, sys
from functools import partial
from pathlib import Path

sys.path.insert(0, HERE)
import work_for_processes as work
from specverify.sampling.processes import Processes
from specverify.sampling.store import ShardStore, stored

if __name__ == "__main__":
    with ShardStore(Path(FOLDER), MANIFEST) as store, Processes(2) as engine:
        one = partial(work.logged_state, LOG, 0.05)
        for index, _ in stored(engine, store, "case", one, range(30)):
            print(index, flush=True)
"""


def test_a_run_killed_in_the_middle_goes_on_and_leaves_no_process(
    tmp_path: Path, work: ModuleType
) -> None:
    folder, log, script = tmp_path / "store", tmp_path / "log", tmp_path / "script.py"
    text = SCRIPT.replace("HERE", repr(str(HERE))).replace("FOLDER", repr(str(folder)))
    script.write_text(text.replace("LOG", repr(str(log))).replace("MANIFEST", repr(MANIFEST)))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(7)]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    workers = {pid for _, pid in work.noted(log)}
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while any(map(is_running, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.02)

    log.unlink()
    with ShardStore(folder, MANIFEST) as store, Processes(2) as engine:
        kept = store.finished("case")
        assert kept >= len(seen)
        again = partial(work.logged_state, log, 0.0)
        resumed = list(in_order(stored(engine, store, "case", again, range(30))))
    rerun = [index for index, _ in work.noted(log)]
    assert not set(seen) & set(rerun)
    assert len(rerun) == len(set(rerun)) == 30 - kept
    assert equal(resumed, map(work.state, range(30)))


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except OSError:
        return not Path("/proc/self").exists()
    return state not in "ZX"
