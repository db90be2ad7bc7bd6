"""Finished shards on disk, so that a run that was ended goes on where it was."""

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

from specverify.errors import SpecverifyError, UsageError
from specverify.sampling.engines import Engine
from specverify.sampling.packing import State, pack, unpack

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_MANIFEST = "manifest.json"
_LOCK = "lock"
_TEMPORARY = ".tmp"
_KIND = {"format": "specverify shards 1"}
"""Tells the manifest from that of anybody else, and this layout of files from later ones."""

_CASE = re.compile(r"[a-z0-9-]{1,50}-[0-9a-f]{16}")
_SHARD = re.compile(r"\d{8,}\.shard")
_ABSENT = object()


class ShardStore:
    """A folder of the finished shards of one run of one command.

    The manifest says which run: shards of another one are never read, and files of somebody else
    never touched. One process at a time has the folder; the system releases it when that process
    ends, however it ends. Every file is written beside its place and moved there, so what is found
    under its name is whole.

    Args:
        directory: the folder; made where it is missing.
        manifest: what decides every shard, such as subject, source digest, versions, pair,
            prompts, settings, seed and sizes; as JSON can hold it.

    Raises:
        UsageError: the folder holds another run, or other files, or is in use, or cannot be
            written; or the manifest is none that JSON can hold.
    """

    def __init__(self, directory: Path, manifest: Mapping[str, Any]) -> None:
        self.directory = directory
        wanted = _as_json(manifest)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._refuse_other_files()
            self._lock = _lock(directory / _LOCK)
        except OSError as error:
            raise UsageError(
                f"cannot keep shards in {str(directory)!r}: {error.strerror or error}; name a "
                "folder that can be written"
            ) from error
        try:
            self._check_or_write(wanted)
        except BaseException:
            self.close()
            raise

    def _refuse_other_files(self) -> None:
        names = {entry.name for entry in self.directory.iterdir()}
        others = sorted(names - {_LOCK, _MANIFEST + _TEMPORARY})
        if _MANIFEST not in names and others:
            raise self._not_ours(f"other files ({others[0]!r}) and no {_MANIFEST}")

    def _not_ours(self, what: str) -> UsageError:
        return UsageError(
            f"the folder {str(self.directory)!r} holds {what}; name an empty folder, or one that "
            "does not exist yet"
        )

    def _check_or_write(self, run: Any) -> None:
        path = self.directory / _MANIFEST
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            text = json.dumps({**_KIND, "run": run}, indent=2, sort_keys=True) + "\n"
            _write(path, text.encode("ascii"))
            return
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.keys() != {*_KIND, "run"}:
            raise self._not_ours(f"a {_MANIFEST} that is not specverify's")
        ours = {**_KIND, "run": run}
        for part in sorted(found):
            difference = _first_difference(found[part], ours[part], part)
            if difference is not None:
                field, there, here = difference
                raise UsageError(
                    f"the folder {str(self.directory)!r} holds shards of another run: "
                    f"{field.removeprefix('run.')} is {there} there and {here} here; name another "
                    "folder, or delete this one"
                )

    def load(self, case: str, index: int) -> State | None:
        """The state of a finished shard; None if there is none, or its file is damaged."""
        path = self._path(case, index)
        try:
            packed = unpack(path.read_bytes())
        except (FileNotFoundError, UsageError):
            return None
        if packed.get("case") != case or packed.get("index") != index:
            return None  # a file that was moved or copied by hand
        return packed["state"]

    def save(self, case: str, index: int, state: State) -> None:
        """Keep the state of a finished shard, in place of any earlier file.

        Raises:
            UsageError: the state cannot be packed, see `packing.pack`.
            SpecverifyError: the file cannot be written, or the store is closed.
        """
        if self._lock is None:
            raise SpecverifyError(
                f"the store of {str(self.directory)!r} is closed; open it again to save shards"
            )
        content = pack({"case": case, "index": index, "state": state})
        path = self._path(case, index)
        try:
            path.parent.mkdir(exist_ok=True)
            _write(path, content)
        except OSError as error:
            raise SpecverifyError(
                f"shard {index} of case {case!r} cannot be saved in {str(self.directory)!r}: "
                f"{error.strerror or error}; make room or name another folder; finished shards "
                "are kept"
            ) from error

    def finished(self, case: str) -> int:
        """Number of files of finished shards of a case; damaged ones show only when loaded."""
        folder = self.directory / _file_name(case)
        if not folder.is_dir():
            return 0
        return sum(_SHARD.fullmatch(entry.name) is not None for entry in folder.iterdir())

    def discard(self) -> None:
        """Delete the files of this run, and its folders where nothing else is left in them.

        The store is closed after it.
        """
        for folder in list(self.directory.iterdir()):
            if not _CASE.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
                continue
            for file in list(folder.iterdir()):
                if _SHARD.fullmatch(file.name.removesuffix(_TEMPORARY)):
                    file.unlink()
            _remove_if_empty(folder)
        for name in (_MANIFEST + _TEMPORARY, _MANIFEST):
            (self.directory / name).unlink(missing_ok=True)
        self.close()
        _remove_if_empty(self.directory)

    def close(self) -> None:
        """Let go of the folder, for other processes to use; its shards stay."""
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            _unlock(descriptor, self.directory / _LOCK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _path(self, case: str, index: int) -> Path:
        if index < 0:
            raise UsageError(f"shard index is {index}; shards are counted from 0")
        return self.directory / _file_name(case) / f"{index:08d}.shard"


def stored(
    engine: Engine,
    store: ShardStore,
    case: str,
    work: Callable[[int], State],
    indices: Sequence[int],
    *,
    keep: Callable[[State], bool] = lambda state: True,
) -> Generator[tuple[int, State], None, None]:
    """Yield (index, state) of shards: finished ones from the store, then the others as run.

    Finished ones are loaded when their turn comes; what is run is saved before it is yielded, so
    whatever a caller has seen is there after an interrupt.

    Args:
        engine: runs what is missing.
        store: of this run; its manifest must hold everything that decides a state.
        case: the case that the shards are of.
        work: gives the state of a shard from its index.
        indices: the shards wanted, each once.
        keep: whether a state is saved; one that failed may do better another time.
    """
    missing: list[int] = []
    for index in indices:
        state = store.load(case, index)
        if state is None:
            missing.append(index)
        else:
            yield index, state
    with closing(engine.run(work, missing)) as results:
        for index, state in results:
            if keep(state):
                store.save(case, index, state)
            yield index, state


def _file_name(case: str) -> str:
    """A name for a case that any file system takes: readable, and another for another case."""
    readable = re.sub(r"[^a-z0-9]+", "-", case.lower()).strip("-")[:50].strip("-") or "case"
    digest = hashlib.sha256(case.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable}-{digest[:16]}"


def _as_json(manifest: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(dict(manifest)))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the manifest cannot be written as JSON: {error}; use strings, numbers, lists and "
            "dicts only"
        ) from error


def _first_difference(there: Any, here: Any, field: str) -> tuple[str, str, str] | None:
    """Name and both values of the first field that differs, in alphabetical order."""
    for key, old, new in _pairs(there, here):
        found = _first_difference(old, new, f"{field}{key}")
        if found is not None:
            return found
    if isinstance(there, dict | list) and type(there) is type(here):
        return None
    old, new = _shown(there), _shown(here)
    return None if old == new else (field, old, new)


def _pairs(there: Any, here: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted(there.keys() | here.keys()):
            yield f".{key}", there.get(key, _ABSENT), here.get(key, _ABSENT)
    elif isinstance(there, list) and isinstance(here, list):
        for i in range(max(len(there), len(here))):
            old, new = (items[i] if i < len(items) else _ABSENT for items in (there, here))
            yield f"[{i}]", old, new


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, sort_keys=True)


def _write(path: Path, content: bytes) -> None:
    """Write a file so that it is either whole or not there, even after a power cut."""
    temporary = path.with_name(path.name + _TEMPORARY)
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY):
            raise


def _lock(path: Path) -> int:
    """Take the lock file of a folder; its descriptor holds it.

    The system lets go of it when the process ends. Without `fcntl` the file itself is the lock,
    and one that a killed process left must be deleted by hand.

    Raises:
        UsageError: another process has it.
    """
    exclusive = os.O_EXCL if fcntl is None else 0
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | exclusive, 0o666)
        except FileExistsError:
            raise _in_use(path) from None
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise _in_use(path) from None
            except OSError:
                os.close(descriptor)
                raise
            if not _is_at(descriptor, path):  # its last owner deleted it in between
                os.close(descriptor)
                continue
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        return descriptor


def _unlock(descriptor: int, path: Path) -> None:
    if fcntl is None:  # Windows, where an open file cannot be deleted
        os.close(descriptor)
    with suppress(OSError):
        path.unlink()
    if fcntl is not None:  # last: unlocked, the file may be another process's
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _in_use(path: Path) -> UsageError:
    owner = ""
    with suppress(OSError):
        owner = path.read_text(errors="replace").strip()
    remedy = "" if fcntl is not None else f"; if no such process runs, delete {str(path)!r}"
    return UsageError(
        f"the folder {str(path.parent)!r} is in use by another run (process {owner or 'unknown'}); "
        f"wait for its end, or name another folder{remedy}"
    )
