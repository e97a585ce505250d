"""The output folder: nothing under its final name until all of it is on disk, and the report last of all.

    DIR/                          the shards, under the names that the input has
    DIR/_gpu_dedup/               marks the folder as ours
        report.json               renamed into place last: its presence means done
        removed.parquet
        report.html               the report as a page for a browser
        keep.parquet              where the run was asked for a mask, or to keep what it removes
        removed/                  where it was asked to keep it: the rows that went, under the names that the input has
        outputs.json              names that this and earlier runs own; what --overwrite may replace or remove
        lock                      held while a run is at work
        tmp/                      unfinished files, and tables that outgrow the memory
        work/                     what a stopped run had finished, for the next start (`gpu_dedup.checkpoint`)

States that a run can find: nothing; only unfinished things of a run that was killed (taken away); outputs without a
report (a run that was killed while it renamed; needs --overwrite); a report (another run's output; needs --overwrite);
anything else (refused).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

from gpu_dedup.errors import InternalError, OutputError, disk_error, shown
from gpu_dedup.write.files import close, create, write_all

FOLDER = "_gpu_dedup"
REPORT = f"{FOLDER}/report.json"
LOG = f"{FOLDER}/removed.parquet"
REMOVED = f"{FOLDER}/removed"
OWNED = f"{FOLDER}/outputs.json"
LOCK = f"{FOLDER}/lock"
TEMP = f"{FOLDER}/tmp"
KEPT = f"{FOLDER}/work"
OWNED_FORMAT = "gpu-dedup outputs"
OWNED_VERSION = 1
MANY = 32  # from so many files on several are brought to the disk at once
SYNCS = 8
_PASSED_OVER = ("lost+found",)  # the root of a file system of its own has it from birth


class Report(Protocol):
    """What `commit` needs to know of a report."""

    def to_json(self) -> str: ...


class TempPath(str):
    """The name of an unfinished file; as a context, an error takes the file away."""

    _folder: OutputFolder
    _rel: str

    def __new__(cls, path: str, folder: OutputFolder, rel: str) -> TempPath:
        self = super().__new__(cls, path)
        self._folder, self._rel = folder, rel
        return self

    def __enter__(self) -> TempPath:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with contextlib.suppress(OutputError):
                self._folder.discard(self._rel)


class OutputFolder:
    """Where a run writes, from the first refusal to the last rename.

    path       the folder; made, with its parents, if it is not there; OutputError for one without a name
    rels       names below it that this run may write, '/' between parts
    overwrite  files of an earlier run of ours may be replaced; a foreign file never is

    As a context: `check` and `start` at the beginning, `abort` at the end unless `commit` came first.
    """

    def __init__(self, path: str, rels: Sequence[str], overwrite: bool = False) -> None:
        if not path:
            raise OutputError("'': an output folder without a name; name a new folder")
        if "://" in path:
            raise OutputError(f"{shown(path)}: is a URL, and this is written to a folder of this machine; name one")
        self.path = os.path.abspath(path)
        self.rels = list(rels)
        self._known = frozenset(self.rels)
        self.overwrite = overwrite
        self._sound()
        # Set by whoever keeps work for the next start: files below tmp/new stay after an error, and outputs of a run
        # that was stopped while it renamed may be taken up.
        self.goes_on = False
        self._temps: dict[str, None] = {}  # in the order of open_temp
        self._renaming = False
        self._made: list[str] = []  # folders that were not there before, outermost first
        self._lock: int | None = None
        self._started = False
        self._done = False

    def _sound(self) -> None:
        for rel in self.rels:
            if not _sound(rel) or rel.split("/")[0] == FOLDER:
                raise InternalError(f"output name {rel!r} leaves the output folder or belongs to the run itself")

    def expect(self, rels: Sequence[str]) -> None:
        """Name what will be written, where that was not known at the start. Raises OutputError as `check` does."""
        self.rels = list(rels)
        self._known = frozenset(self.rels)
        self._sound()
        if self._started:
            self.check()

    # -- before any work --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse what cannot work, before any work and without touching anything. Raises OutputError."""
        path = self.path
        if not os.path.lexists(path):
            parent = os.path.dirname(path)
            while not os.path.lexists(parent) and parent != os.path.dirname(parent):
                parent = os.path.dirname(parent)
            if not os.path.isdir(parent):
                raise OutputError(
                    f"{shown(path)}: cannot be made, {shown(parent)} is not a folder; choose another output folder"
                )
            self._check_writable(parent)
            return
        if not os.path.exists(path):
            raise OutputError(
                f"{shown(path)}: is a link to nothing; make what it points to, or choose another output folder"
            )
        if not os.path.isdir(path):
            raise OutputError(f"{shown(path)}: is a file; give a folder, new or empty")
        with _disk(path):
            entries = [name for name in os.listdir(path) if name not in _PASSED_OVER]
        if FOLDER not in entries:
            if entries:
                raise OutputError(
                    f"{shown(path)}: is not empty ({_some(entries)}) and not an output of gpu-dedup; "
                    "choose a new or an empty folder"
                )
            self._check_writable(path)
            return
        marker = self._final(FOLDER)
        if os.path.islink(marker) or not os.path.isdir(marker):
            raise OutputError(f"{shown(marker)}: is not a folder; move it, or choose another output folder")
        self._check_lock()
        owned = self._owned()
        if not self.overwrite:
            if os.path.lexists(self._final(REPORT)):
                raise OutputError(
                    f"{shown(path)}: holds the output of another run; "
                    "choose another folder, or pass --overwrite to replace it"
                )
            if not self.goes_on and any(
                os.path.lexists(self._final(rel)) for rel in owned if rel.split("/")[0] != FOLDER
            ):
                raise OutputError(
                    f"{shown(path)}: holds part of the output of a run that did not finish; "
                    "choose another folder, or pass --overwrite to replace it"
                )
            mine = {rel.split("/")[0] for rel in owned} if self.goes_on else set()
            entries = [name for name in entries if name != FOLDER and name not in mine]
            if entries:
                raise OutputError(f"{shown(path)}: is not empty ({_some(entries)}); choose a new or an empty folder")
        for rel in self.rels:
            self._check_way(rel, owned)
        self._check_writable(path)
        self._check_writable(os.path.join(path, FOLDER))

    def _check_way(self, rel: str, owned: set[str]) -> None:
        """A rename to DIR/rel must be possible, and must not replace what is not ours."""
        parts = rel.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            folder = self._final(above)
            if not os.path.lexists(folder) or above in owned:
                return
            if not os.path.isdir(folder):
                raise self._in_the_way(folder)
            if os.stat(folder).st_dev != os.stat(self.path).st_dev:
                raise OutputError(f"{shown(folder)}: is on another file system; choose another output folder")
            self._check_writable(folder)
        final = self._final(rel)
        if rel not in owned and os.path.lexists(final) and not self._all_owned(rel, owned):
            raise self._in_the_way(final)

    def _in_the_way(self, path: str) -> OutputError:
        return OutputError(
            f"{shown(path)}: is in the way and was not written by gpu-dedup; move it, or choose another output folder"
        )

    def _all_owned(self, rel: str, owned: set[str]) -> bool:
        """True for a folder with nothing in it but files of an earlier run: a file of this run may take its place."""
        root = self._final(rel)
        if os.path.islink(root) or not os.path.isdir(root):
            return False
        return all(
            os.path.relpath(os.path.join(folder, name), self.path) in owned
            for folder, folders, files in os.walk(root)
            for name in files + [inner for inner in folders if os.path.islink(os.path.join(folder, inner))]
        )

    def _check_writable(self, folder: str) -> None:
        if not os.path.isdir(folder):
            raise OutputError(f"{shown(folder)}: is a file; move it, or choose another output folder")
        # access() knows of read-only file systems; it also says yes to root, whom permissions do not bind.
        if not os.access(folder, os.W_OK | os.X_OK):
            read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            raise disk_error(OSError(errno.EROFS if read_only else errno.EACCES, ""), folder)

    def _check_lock(self) -> None:
        if self._lock is not None:
            return
        try:
            descriptor = os.open(self._final(LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # nobody is at work; or not ours to open, which is found when it is made
        try:
            self._flock(descriptor)
        finally:
            os.close(descriptor)

    def _flock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"{shown(self.path)}: another run is at work here; wait for its end, or choose another output folder"
            ) from None
        except OSError as error:
            # File systems without locks (Lustre, NFS, by mount option): one run at a time is then up to the user.
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise disk_error(error, self._final(LOCK)) from error

    def _owned(self) -> set[str]:
        """Names that earlier runs wrote; empty if none came so far as to rename."""
        try:
            with open(self._final(OWNED), encoding="utf-8") as file:
                content = json.load(file)
            if content["format"] != OWNED_FORMAT or content["version"] > OWNED_VERSION:
                raise ValueError("made by a newer version")
            names = content["files"]
            if not all(isinstance(name, str) and _sound(name) for name in names):
                raise ValueError("a name in it leaves the folder")
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{shown(self._final(OWNED))}: cannot be read ({error}), so what is of the earlier run is unknown; "
                "remove the folder, or choose another output folder"
            ) from None
        return set(names)

    # -- at work ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the folder, lock it, and take away what a killed run left. Raises OutputError."""
        if self._started:
            return
        self.check()
        try:
            self._make(self.path)
            self._take_lock()
            self.check()  # again, now that nobody else can change the answer
            with _disk(self._final(TEMP)):
                if os.path.lexists(self._final(TEMP)):
                    self._clear_temp()
            self._make(self._final(TEMP))
        except BaseException:
            self.abort()
            raise
        self._started = True

    def _take_lock(self) -> None:
        path = self._final(LOCK)
        while True:
            self._make(self._final(FOLDER))
            with _disk(path):
                try:
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                except FileNotFoundError:  # another run ended at this moment and took its empty folder with it
                    continue
            try:
                self._flock(descriptor)
                with contextlib.suppress(OSError):
                    # The run before removes the file as it lets go: a lock on a removed file locks nothing.
                    if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                        self._lock = descriptor
                        return
            finally:
                if self._lock is None:
                    os.close(descriptor)

    def open_temp(self, rel: str) -> TempPath:
        """Where to write what will be DIR/rel: a name in the same file system, its folder made, no file there yet.

        rel  one of the names given at the start, or a name below _gpu_dedup
        As a context, an error on its way out removes the file and forgets the name. Raises OutputError.
        """
        self.start()
        if self._done:
            raise InternalError(f"{rel}: opened after the output was complete")
        if not _sound(rel) or (rel not in self._known and not rel.startswith(f"{FOLDER}/")):
            raise InternalError(f"output name {rel!r} was not announced")
        temp = self._temp(rel)
        with _disk(temp):
            os.makedirs(os.path.dirname(temp), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temp)
        self._temps[rel] = None
        return TempPath(temp, self, rel)

    def adopt(self, rel: str, same: Callable[[str], bool]) -> bool:
        """Take DIR/rel as written where an earlier, stopped run left it whole, under its unfinished or its own name.

        same  whether the file at a path is what it should be
        """
        self.start()
        temp, final = self._temp(rel), self._final(rel)
        if not same(temp):
            if not same(final):
                return False
            with _disk(temp):
                os.makedirs(os.path.dirname(temp), exist_ok=True)
                os.rename(final, temp)
        self._temps[rel] = None
        return True

    def log_path(self) -> TempPath:
        """Where to write the removal log."""
        return self.open_temp(LOG)

    def write_text(self, rel: str, text: str) -> None:
        """Write what will be DIR/rel. Raises OutputError."""
        temp = self.open_temp(rel)
        descriptor = create(temp)
        try:
            write_all(descriptor, text.encode(), temp)
        finally:
            close(descriptor, temp)

    def discard(self, rel: str) -> None:
        """Forget what `open_temp` gave for rel (its input turned out to be bad) and remove it."""
        self._temps.pop(rel, None)
        with _disk(self._temp(rel)), contextlib.suppress(FileNotFoundError):
            os.unlink(self._temp(rel))

    def kept_folder(self) -> str:
        """The name of a folder for what outlives a run that was stopped; made by whoever wants it."""
        return self._final(KEPT)

    def work_folder(self) -> str:
        """A folder for tables that outgrow the memory; goes at the end of the run. Raises OutputError."""
        self.start()
        work = os.path.join(self._final(TEMP), "work")
        with _disk(work, "another folder with --work-dir"):
            os.makedirs(work, exist_ok=True)
        return work

    # -- at the end -------------------------------------------------------------------------------------------------

    def commit(self, report: Report | None = None) -> None:
        """Bring everything to the disk and to its name, in the order it was opened, the report last.

        report  gives report.json; None if it was written through open_temp
        Raises OutputError; the caller's `abort` then takes away what already has its name.
        """
        if report is not None:
            self.write_text(REPORT, report.to_json())
        if REPORT not in self._temps:
            raise InternalError("commit without a report")
        rels = [rel for rel in self._temps if rel != REPORT]
        self._sync_all([self._temp(rel) for rel in [*rels, REPORT]])
        owned = self._owned()
        self._write_owned(owned | set(rels))  # before the first rename: a kill from here on leaves nothing nameless
        self._remove(REPORT)  # from here on the earlier run is no longer a finished one
        self._sync(self._final(FOLDER))
        self._remove_earlier(owned - set(rels))
        self._renaming = True
        for rel in rels:
            self._rename(rel)
        for folder in self._folders_of(rels):
            self._sync(folder)
        self._write_owned(set(rels))
        self._sync(self._final(FOLDER))
        self._rename(REPORT)
        self._done = True
        self._sync(self._final(FOLDER))
        self._let_go()

    def abort(self) -> None:
        """Take away every unfinished file, what already has its name, and the folders that this run made.

        Never raises for the disk (it runs while another error is on its way); after `commit` it does nothing.
        """
        if self._renaming and not self._done:
            # Ctrl-C may come between a rename and any note of it, so the disk is asked: commit saw every unfinished
            # file just before the renames, and one that is gone has its name now.
            placed = [rel for rel in self._temps if not os.path.lexists(self._temp(rel))]
            if REPORT in placed:
                self._done = True
            else:
                for rel in placed:
                    with contextlib.suppress(OSError):
                        os.unlink(self._final(rel))
        self._let_go()

    def __enter__(self) -> OutputFolder:
        self.check()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def tidy(self) -> None:
        """Take away what is unfinished beside a finished output, unless a run is at work there."""
        try:
            self._check_lock()
        except OutputError:
            return
        shutil.rmtree(self._final(TEMP), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(self._final(LOCK))

    # -- the parts --------------------------------------------------------------------------------------------------

    def _final(self, rel: str) -> str:
        return os.path.join(self.path, rel)

    def _temp(self, rel: str) -> str:
        return os.path.join(self.path, TEMP, "new", rel)

    def _make(self, path: str) -> None:
        """Make a folder and its parents, and remember those that were not there."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            with _disk(folder):
                try:
                    os.mkdir(folder)
                except FileExistsError:
                    if os.path.isdir(folder):  # somebody else made it at the same moment
                        continue
                    raise
            self._made.append(folder)

    def _sync_all(self, paths: Sequence[str]) -> None:
        """The first error is that of the first file. Of many files the disk does several at once."""
        if len(paths) < MANY:
            for path in paths:
                self._sync(path)
            return
        with ThreadPoolExecutor(SYNCS, thread_name_prefix="gpu-dedup-sync") as executor:
            try:
                for _ in executor.map(self._sync, paths):
                    pass
            finally:
                executor.shutdown(wait=True, cancel_futures=True)

    def _sync(self, path: str) -> None:
        with _disk(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync a folder
                    raise
            finally:
                os.close(descriptor)

    def _rename(self, rel: str) -> None:
        final = self._final(rel)
        self._make(os.path.dirname(final))
        with _disk(final):
            if os.path.isdir(final) and not os.path.islink(final):
                os.rmdir(final)
            try:
                os.rename(self._temp(rel), final)
            except OSError as error:
                if error.errno == errno.EXDEV:
                    raise OutputError(
                        f"{shown(os.path.dirname(final))}: is on another file system; choose another output folder"
                    ) from None
                raise

    def _folders_of(self, rels: Sequence[str]) -> list[str]:
        """Every folder whose entries the renames changed, the deepest first."""
        folders = {os.path.dirname(self.path)} if self._made else set()
        for rel in rels:
            folder = self._final(rel)
            while folder != self.path:
                folder = os.path.dirname(folder)
                folders.add(folder)
        return sorted(folders, key=lambda folder: (-folder.count("/"), folder))

    def _remove(self, rel: str) -> None:
        """Unlink DIR/rel; what is gone, or has become a folder since, is left alone."""
        gone = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
        with _disk(self._final(rel)), contextlib.suppress(*gone):
            os.unlink(self._final(rel))

    def _remove_earlier(self, rels: Iterable[str]) -> None:
        """Files of an earlier run that this one does not have, then the folders that are left empty."""
        root = os.path.realpath(self.path)
        for rel in sorted(rels):
            folder = os.path.dirname(self._final(rel))
            if os.path.commonpath([root, os.path.realpath(folder)]) != root:
                continue  # a folder became a link to somewhere else since: not ours any more
            self._remove(rel)
            while folder not in (self.path, self._final(FOLDER)):
                try:
                    os.rmdir(folder)
                except OSError:
                    break
                folder = os.path.dirname(folder)

    def _write_owned(self, rels: set[str]) -> None:
        # Names are bytes; one that is not UTF-8 holds lone surrogates, which ASCII JSON carries there and back.
        content = {"format": OWNED_FORMAT, "version": OWNED_VERSION, "files": sorted(rels)}
        temp = os.path.join(self._final(TEMP), "outputs.json")
        descriptor = create(temp)
        try:
            write_all(descriptor, (json.dumps(content, indent=1, ensure_ascii=True) + "\n").encode("ascii"), temp)
        finally:
            close(descriptor, temp)
        self._sync(temp)
        with _disk(self._final(OWNED)):
            os.rename(temp, self._final(OWNED))

    def _let_go(self) -> None:
        """Remove unfinished files, the lock and, without a result, the folders that were made."""
        if self._lock is None:  # never started, or already let go: whatever lies there belongs to another run
            self._remove_made()
            return
        if not self._done:
            self._made.insert(0, self._final(FOLDER))  # goes if nothing is in it, whoever made it
        with contextlib.suppress(OSError):
            self._clear_temp()
        if not self._done:
            self._drop_owned()
        with contextlib.suppress(OSError):
            os.unlink(self._final(LOCK))
        os.close(self._lock)
        self._lock = None
        self._started = self._done
        self._remove_made()

    def _clear_temp(self) -> None:
        """Remove what is unfinished; complete files stay for a run that goes on from here."""
        temp = self._final(TEMP)
        if not self.goes_on or self._done:
            shutil.rmtree(temp)
            return
        for name in os.listdir(temp):
            path = os.path.join(temp, name)
            if name != "new":
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(temp)

    def _drop_owned(self) -> None:
        """Forget the list of outputs if none of them is there (an aborted first run leaves the folder as it was)."""
        with contextlib.suppress(OSError, OutputError):
            if not any(os.path.lexists(self._final(rel)) for rel in self._owned()):
                os.unlink(self._final(OWNED))

    def _remove_made(self) -> None:
        if not self._done:
            for folder in sorted(self._made, key=len, reverse=True):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)  # only if it is empty
        self._made.clear()


def _sound(rel: str) -> bool:
    """True for a plain relative name: no way out of the folder."""
    return bool(rel) and "\0" not in rel and all(part not in ("", ".", "..") for part in rel.split("/"))


def _some(names: list[str]) -> str:
    names = sorted(names)
    first = ", ".join(shown(name) for name in names[:3])
    return first + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@contextlib.contextmanager
def _disk(path: str, other: str = "another output folder") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(error, path, other) from error
