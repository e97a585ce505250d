"""Checkpoints: what a run has finished, in files that the next start of the same command can trust.

    WORK/                   `_gpu_dedup/work` in the output folder, or a folder of its own below --work-dir
        work.json           what the work is for: the input files, by path; the batch size
        part-FILE-ROW-0.gdp   rows of the first pass, from row ROW of input file number FILE on: whole batches, one
                            after the other, to the end of the file or beyond it into the next ones
        decision.gdp        who goes, once that is known
        written.jsonl       output files that are complete, a line each
        lock                held while a run is at work here

Each part says by itself what it is of (the recipe as far as it matters, its files with size and time), so no list can
disagree with it. Whatever is cut short, altered, of another recipe or of a file that has changed since is not there as
far as a run is concerned: that work is done again, and nothing else is.

A part file is, little-endian:

    0   8 bytes   GDPART and two NULs
    8   uint32    version
    12  uint32    0
    16  int64     where the table of contents begins
    24  int64     its bytes
    32  uint64    XXH3-64 of it
    40  24 bytes  0
    64            arrays, each from a multiple of 64 on
    ...           the table of contents, JSON: {"key": ..., "facts": ..., "arrays": {name: [dtype, shape, at, XXH3-64]}}
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from gpu_dedup.errors import OutputError, RunError, disk_error, shown
from gpu_dedup.recipe import DEFINITIONS, Recipe

Array = npt.NDArray[Any]

MAGIC = b"GDPART\0\0"
VERSION = 1
_HEAD = struct.Struct("<8sIIqqQ24x")
_ALIGN = 64
_OTHER = "another folder with --work-dir"

WORK = "work.json"
WORK_FORMAT = "gpu-dedup work"
DECISION = "decision.gdp"
WRITTEN = "written.jsonl"
LOCK = "lock"
_PART = re.compile(r"part-\d+-\d+-\d+\.gdp")

# Fields of a recipe that the first pass does not ask: its parts are good for any value of them. All others count,
# those that a later version adds too.
LATER = frozenset(
    (
        "id_field", "on_no_text", "on_bad_row", "threshold_ppm", "recall_ppm", "num_perm", "bands", "rows", "sieve_cut",
        "distance", "search_distance", "near_action", "far_distance", "far_jaccard_ppm", "far_edit_ppm", "far_action",
        "bucket_cap", "cap_lowest", "cap_splits", "cap_slots", "verify", "edit_max_chars", "cluster", "witness",
        "action", "keep", "key_action",
    )
)  # fmt: skip
# Fields that change nothing of who goes and for whom.
UNDECIDED = frozenset(("id_field", "action"))


def first_pass_key(recipe: Recipe) -> dict[str, Any]:
    """What the rows of a part depend on, beside their files. Sketches of more slots are good for fewer."""
    from gpu_dedup.kernels.unicode import UNICODE_VERSION

    known = recipe.as_dict()
    out = {name: value for name, value in known.items() if name not in LATER}
    out["on_bad_file"] = recipe.on_bad_file  # it decides which columns are looked at
    return {"recipe": out, "definitions": DEFINITIONS, "unicode": UNICODE_VERSION}


def content_key(fingerprint: str, contents: Sequence[Any]) -> dict[str, Any]:
    """What output files depend on: the recipe and all bytes of the input; `contents` as for `decision_key`."""
    text = json.dumps([fingerprint, list(contents)], ensure_ascii=True)
    return {"output": hashlib.sha256(text.encode()).hexdigest()}


def decision_key(recipe: Recipe, contents: Sequence[Any]) -> dict[str, Any]:
    """What a decision depends on: the settled recipe and all bytes of the input.

    contents  for each file: its name, size, content hash, and why it was left out
    """
    from gpu_dedup.kernels.unicode import UNICODE_VERSION

    known = {f.name: getattr(recipe, f.name) for f in fields(recipe) if f.name not in UNDECIDED}
    known["key_action"] = recipe.key_flags if recipe.keyed else None  # copies that are only flagged are looked at
    text = json.dumps([known, list(contents), DEFINITIONS, UNICODE_VERSION], sort_keys=True, ensure_ascii=True)
    return {"decision": hashlib.sha256(text.encode()).hexdigest(), "of": "heads that go"}


# ---- a part file -----------------------------------------------------------------------------------------------------


class DamagedPartError(Exception):
    """A part that is cut short, altered, or none of ours; the work it stood for is done again."""


@contextlib.contextmanager
def _whole(path: str) -> Iterator[BinaryIO]:
    """A file that gets its name when all of it is on the disk. Raises OutputError."""
    temp = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temp, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(temp, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise disk_error(error, path, _OTHER) from error


def write_part(path: str, key: dict[str, Any], facts: Any, arrays: dict[str, Array]) -> int:
    """Write a part under a temporary name, bring it to the disk, give it its name. Returns its bytes.

    key, facts  plain values (JSON)
    arrays      any fixed-size type and shape
    Raises OutputError.
    """
    contents: dict[str, list[Any]] = {}
    with _whole(path) as file:
        file.write(bytes(_HEAD.size))
        at = _HEAD.size
        for name, array in arrays.items():
            flat = np.ascontiguousarray(array)
            data = flat.reshape(-1).view(np.uint8).data
            dtype = flat.dtype.newbyteorder("<").str
            contents[name] = [dtype, list(flat.shape), at, xxhash.xxh3_64_intdigest(data)]
            file.write(data)
            gap = -len(data) % _ALIGN
            file.write(bytes(gap))
            at += len(data) + gap
        table = json.dumps({"key": key, "facts": facts, "arrays": contents}, ensure_ascii=True).encode()
        file.write(table)
        file.seek(0)
        file.write(_HEAD.pack(MAGIC, VERSION, 0, at, len(table), xxhash.xxh3_64_intdigest(table)))
    return at + len(table)


class PartFile:
    """A part that is there: its key and facts at once, its arrays when they are asked for (checked against their sums).

    Raises DamagedPartError, now and later.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.nbytes = os.fstat(file.fileno()).st_size
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    raise DamagedPartError(f"{shown(path)}: is cut short")
                magic, version, _, at, size, digest = _HEAD.unpack(head)
                if magic != MAGIC or version != VERSION:
                    raise DamagedPartError(f"{shown(path)}: is no part of version {VERSION}")
                if at < _HEAD.size or size < 0 or at + size != self.nbytes:
                    raise DamagedPartError(f"{shown(path)}: is cut short")
                file.seek(at)
                table = file.read(size)
        except OSError as error:
            raise DamagedPartError(f"{shown(path)}: cannot be read ({error.strerror})") from error
        if len(table) != size or xxhash.xxh3_64_intdigest(table) != digest:
            raise DamagedPartError(f"{shown(path)}: its table of contents was altered")
        known = json.loads(table)
        self.key: dict[str, Any] = known["key"]
        self.facts: Any = known["facts"]
        self._arrays: dict[str, list[Any]] = known["arrays"]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def read(self, name: str) -> Array:
        """A whole array."""
        dtype, shape, at, digest = self._arrays[name]
        out = np.empty(shape, np.dtype(dtype))
        data = out.reshape(-1).view(np.uint8).data
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(at)
                got = 0
                while got < len(data):
                    count = file.readinto(data[got:])
                    if not count:
                        break
                    got += count
        except OSError as error:
            raise DamagedPartError(f"{shown(self.path)}: cannot be read ({error.strerror})") from error
        if got != len(data) or xxhash.xxh3_64_intdigest(data) != digest:
            raise DamagedPartError(f"{shown(self.path)}: {name} is cut short or was altered")
        return out

    def check(self) -> None:
        """Read all arrays and hold them against their sums."""
        for name in self._arrays:
            self.read(name)


# ---- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stretch:
    """Rows of one file that a part holds.

    file     path of the input file
    size, mtime_ns   of it when they were read
    first, rows      its rows, by number in the file
    at       where they begin among the rows of the part
    chunks, chunk    how many chunks they came in, and where these begin among the chunks of the part
    text_bytes       of their texts
    ended    the file ends with them
    content_hash     of the whole file, where it ended
    """

    file: str
    size: int
    mtime_ns: int
    first: int
    rows: int
    at: int
    chunks: int
    chunk: int
    text_bytes: int
    ended: bool
    content_hash: str | None


class Checkpoint:
    """The work folder of a run.

    folder   made if need be
    every    bytes of input after which a part is written
    fresh    forget what an earlier start has left
    inputs   paths of the input files, in order
    batch_bytes  of this run: parts of a file that was not finished are only good for the same
    shard    number of the first of these files among all, for a process that works on some of them: it takes what is of
             its files and adds to it, and all else is up to the process that started it and holds the folder

    Raises RunError where the folder is of other input, or of a run that is at work.
    """

    def __init__(
        self, folder: str, every: int, inputs: Sequence[str], batch_bytes: int, fresh: bool = False,
        shard: int | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.every = every
        self.batch_bytes = batch_bytes
        self.inputs = list(inputs)
        self.used = 0  # parts of an earlier start that this one goes on from
        self.written = 0  # parts of this start
        self._lock = -1
        self._shard = shard
        if shard is not None:
            return
        self._disk(lambda: os.makedirs(folder, 0o700, exist_ok=True))
        self._take_lock()
        try:
            if fresh:
                self._clear()
            self._check_input()
        except BaseException:
            self.close(keep=True)
            raise

    def _disk(self, work: Any) -> Any:
        try:
            return work()
        except OSError as error:
            raise disk_error(error, self.folder, _OTHER) from error

    def _take_lock(self) -> None:
        self._lock = self._disk(
            lambda: os.open(os.path.join(self.folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise RunError(
                f"{shown(self.folder)}: another run is at work with this folder; wait for its end, or choose another "
                "with --work-dir"
            ) from None
        except OSError:
            pass  # a file system without locks: one run at a time is then up to the user

    def _check_input(self) -> None:
        path = os.path.join(self.folder, WORK)
        mine = {"format": WORK_FORMAT, "version": VERSION, "inputs": self.inputs}
        try:
            with open(path, encoding="ascii") as file:
                found = json.load(file)
        except FileNotFoundError:
            found = None
        except (OSError, ValueError):
            self._clear()  # nobody can say what it was for
            found = None
        if found is not None and found.get("version") != VERSION:
            self._clear()
            found = None
        if found is not None and found != mine:
            others = found.get("inputs") or [""]
            raise RunError(
                f"{shown(self.folder)}: holds unfinished work on other input ({shown(str(others[0]))}"
                f"{f' and {len(others) - 1} more' if len(others) > 1 else ''}); choose another folder, or pass --fresh "
                "to give that work up"
            )
        if found is None:
            with _whole(path) as file:
                file.write(json.dumps(mine, ensure_ascii=True).encode("ascii"))

    def _clear(self) -> None:
        for name in os.listdir(self.folder):
            if name != LOCK:
                path = os.path.join(self.folder, name)
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        os.unlink(path)

    # -- parts ------------------------------------------------------------------------------------------------------

    def parts(self, key: dict[str, Any], slots: int, exact_slots: bool) -> list[tuple[PartFile, list[Stretch]]]:
        """Sound parts of this key with slots enough, in the order of their names; the others are taken away. A shard
        leaves them alone, and passes over those that have nothing of its files.

        exact_slots  a sketch of more slots is another one (not so for MinHash)
        """
        out = []
        mine = set(self.inputs)
        for name in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, name)
            if name.endswith(".tmp") and self._shard is None:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            if not _PART.fullmatch(name):
                continue
            try:
                part = PartFile(path)
                good = part.key == key and (
                    part.facts["slots"] == slots if exact_slots else part.facts["slots"] >= slots
                )
                if good and self._shard is not None:
                    good = any(stretch["file"] in mine for stretch in part.facts["stretches"])
                if good:
                    part.check()
            except (DamagedPartError, KeyError, TypeError):
                good = False
            if good:
                out.append((part, [Stretch(**stretch) for stretch in part.facts["stretches"]]))
            elif self._shard is None:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        return out

    def add_part(self, index: int, row: int, key: dict[str, Any], facts: Any, arrays: dict[str, Array]) -> None:
        """Write a part that begins with row `row` of input file number `index`."""
        index += self._shard or 0
        path = os.path.join(self.folder, f"part-{index:06d}-{row:012d}")
        number = 0  # the end of a file, and the rows of the next one behind it, may begin a part of the same name
        while os.path.lexists(f"{path}-{number}.gdp"):
            number += 1
        write_part(f"{path}-{number}.gdp", key, facts, arrays)

    # -- the decision -----------------------------------------------------------------------------------------------

    def save_decision(self, key: dict[str, Any], facts: Any, arrays: dict[str, Array]) -> None:
        write_part(os.path.join(self.folder, DECISION), key, facts, arrays)

    def load_decision(self, key: dict[str, Any]) -> tuple[Any, dict[str, Array]] | None:
        """facts and arrays of a decision of this key, or None."""
        path = os.path.join(self.folder, DECISION)
        if not os.path.exists(path):
            return None
        try:
            part = PartFile(path)
            if part.key == key:
                return part.facts, {name: part.read(name) for name in part._arrays}
        except DamagedPartError:
            pass
        return None

    # -- outputs ----------------------------------------------------------------------------------------------------

    def note_written(self, files: Sequence[tuple[str, str]], key: dict[str, Any]) -> None:
        """Take down that output files are complete: (name below the output folder, where it is now)."""
        lines = [json.dumps({"rel": rel, **_sum(path), **key}, ensure_ascii=True) + "\n" for rel, path in files]
        target = os.path.join(self.folder, WRITTEN)
        try:
            for _, path in files:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            with open(target, "a", encoding="ascii") as file:
                file.write("".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(error, target, _OTHER) from error

    def was_written(self, key: dict[str, Any]) -> dict[str, tuple[int, int]]:
        """Size and XXH3-64 of each output file that an earlier start completed under this key."""
        out: dict[str, tuple[int, int]] = {}
        try:
            with open(os.path.join(self.folder, WRITTEN), encoding="ascii", errors="replace") as file:
                lines = file.readlines()
        except OSError:
            return out
        for line in lines:
            try:
                found = json.loads(line)
                if all(found[name] == value for name, value in key.items()):
                    out[found["rel"]] = int(found["size"]), int(found["xxh3"])
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a run that was killed
        return out

    # -- the end ----------------------------------------------------------------------------------------------------

    @property
    def worth_keeping(self) -> bool:
        """Whether the next start would find anything here."""
        return any(_PART.fullmatch(name) or name == DECISION for name in os.listdir(self.folder))

    @property
    def nbytes(self) -> int:
        """Bytes of the parts here."""
        return sum(entry.stat().st_size for entry in os.scandir(self.folder) if entry.is_file())

    def close(self, keep: bool) -> None:
        """Let go of the folder; without `keep` it is taken away."""
        if self._lock < 0:
            return
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _sum(path: str) -> dict[str, int]:
    """Size and XXH3-64 of a file."""
    hasher = xxhash.xxh3_64()
    size = 0
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(1 << 22):
                hasher.update(block)
                size += len(block)
    except OSError as error:
        raise disk_error(error, path) from error
    return {"size": size, "xxh3": hasher.intdigest()}


def same_file(path: str, size: int, digest: int) -> bool:
    """Whether the file is there with this size and sum."""
    try:
        if os.stat(path).st_size != size:
            return False
    except OSError:
        return False
    try:
        found = _sum(path)
    except OutputError:
        return False
    return found == {"size": size, "xxh3": digest}


def folder_of(work_dir: str, inputs: Iterable[str]) -> str:
    """The work folder below --work-dir: one for each input, so that other recipes on the same input find its parts."""
    names = "\0".join(inputs)
    return os.path.join(
        work_dir, "gpu-dedup-" + hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    )
