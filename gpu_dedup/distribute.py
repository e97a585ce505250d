"""Work in processes of their own, side by side: one for each GPU, started by exec, watched, and ended together.

    start   a new interpreter, never a fork: nothing of CUDA, no thread and no lock of this process comes along. Unlike
            multiprocessing it does not import the caller's main module again, so that scripts need no guard for it
    talk    one socket for each process: the work goes down, progress, notes and a small answer come back. What is large
            travels as files
    end     a process ends when the one that started it does, however that ended: the socket is closed then. Ctrl-C is
            the parent's alone (SIGINT is blocked in the others); it ends them all at once
    errors  an error in a process is the same error here, its traceback below it. A process that dies is one line, and
            another is started for its work, once; if that dies too it is the end

What the work is, is the caller's: a function at the top of a module, its argument, and answers that pickle.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from gpu_dedup.errors import GpuDedupError, InternalError, RunError

Answer = TypeVar("Answer")

EVERY_SECONDS = 0.1  # between two messages of progress
LAST_SECONDS = 2.0  # that an ended process may take until it is gone
# No import before the paths are the parent's: the current folder may hold a module of any name.
BOOT = "import sys; sys.path[:] = sys.argv[2:]; from gpu_dedup.distribute import serve; serve(int(sys.argv[1]))"
REMEDY = "if memory had run out (dmesg tells), lower --threads or --batch-bytes, or give --gpus 1"


@dataclass(frozen=True)
class Job:
    """The work of one process.

    name      of the process, for messages: 'GPU 1'
    argument  of the work; pickled
    place     what it was at, in words, when it had advanced so far
    again     gives the argument for a second process, if the first one dies; None: that is the end
    kept      where what it has finished is found by the next start, in words
    """

    name: str
    argument: Any
    place: Callable[[int], str]
    again: Callable[[], Any] | None = None
    kept: str = ""


class _DiedError(RunError):
    """A process is no more, or talks no more. what: so much in words, without a remedy."""

    what = ""


class Channel:
    """What the work may tell while it runs, from any of its threads."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting = 0
        self._sent = 0.0

    def advance(self, count: int) -> None:
        """So much more is done."""
        with self._lock:
            self._waiting += count
            if time.monotonic() - self._sent >= EVERY_SECONDS:
                self._send_progress()

    def note(self, text: str) -> None:
        """One line for the reader."""
        with self._lock:
            self._connection.send(("note", text))

    def _end(self, message: tuple[Any, ...]) -> None:
        with self._lock:
            self._send_progress()
            self._connection.send(message)

    def _send_progress(self) -> None:
        if self._waiting:
            self._connection.send(("advance", self._waiting))
            self._waiting, self._sent = 0, time.monotonic()


def run(
    work: Callable[[Any, Channel], Answer],
    jobs: Sequence[Job],
    folder: str,
    advance: Callable[[int], None],
    note: Callable[[str], None],
    failed: Callable[[Answer], bool],
) -> list[Answer]:
    """`work(argument, channel)` in a process for each job; the answers in the order of the jobs.

    folder   for what the processes say on standard error; only the last line of one that died is shown
    failed   True for an answer that makes those of later jobs worthless: these are ended, earlier ones are waited for,
             and it is the last one given back. So the first failure, in the order of the jobs, is the same on every run

    Raises what the work raised, at once, and RunError for a process that died and could not be started again, or died
    again. No process is left in any case.
    """
    children: list[_Child] = []
    gone: list[_Child] = []
    try:
        for number, job in enumerate(jobs):
            children.append(_Child(work, job, os.path.join(folder, f"process-{number}.err")))
        answers: list[Any] = [None] * len(jobs)
        needed = set(range(len(jobs)))
        while needed:
            open_ones = {children[i].connection: i for i in needed}
            for connection in wait(list(open_ones)):
                i = open_ones[connection]  # type: ignore[index]
                if i not in needed:
                    continue
                try:
                    kind, value = children[i].receive()
                except _DiedError as death:
                    job = children[i].job
                    if job.again is None:
                        raise
                    children[i].kill()
                    gone.append(children[i])
                    gone[-1].close()
                    note(f"{death.what}; its work is given to another one")
                    second = replace(job, argument=job.again(), again=None)
                    children[i] = _Child(work, second, os.path.join(folder, f"process-{i}-again.err"), gone[-1])
                    continue
                if kind == "advance":
                    if (more := children[i].advance(value)) > 0:
                        advance(more)
                elif kind == "note":
                    note(value)
                elif kind == "error":
                    raise value
                else:
                    answers[i] = value
                    needed.discard(i)
                    if failed(value):
                        needed = {j for j in needed if j < i}
                        for later in children[i + 1 :]:
                            later.kill()
                        del answers[i + 1 :]
        return answers
    finally:
        for child in children:
            child.kill()
        for child in children:
            if child not in gone:
                child.close()


class _Child:
    """One process, seen from the one that started it."""

    def __init__(self, work: Callable[..., Any], job: Job, errors: str, before: _Child | None = None) -> None:
        """before: the one that has died over the same work."""
        self.job = job
        self.advanced = 0
        self._told: int = (
            0 if before is None else max(before.advanced, before._told)
        )  # what was told of this work already
        self._times = "" if before is None else ", after another one before it"
        self._errors = errors
        ours, theirs = socket.socketpair()
        paths = [os.fspath(path) for path in sys.path if isinstance(path, (str, os.PathLike))]
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # as multiprocessing does
        try:
            with open(errors, "wb") as file, _no_ctrl_c():
                self._process = subprocess.Popen(
                    [sys.executable, *flags, "-c", BOOT, str(theirs.fileno()), *paths],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, pass_fds=[theirs.fileno()],
                )  # fmt: skip
        except OSError as error:
            ours.close()
            reason = error.strerror or type(error).__name__
            raise RunError(f"no process for {job.name} could be started ({reason}); {REMEDY}") from error
        finally:
            theirs.close()
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        # One that died this early is found by `receive`.
        with contextlib.suppress(OSError):
            self.connection.send((work, job.argument))

    def advance(self, count: int) -> int:
        """So much more is done; what of it was not told before."""
        before = max(self.advanced, self._told)
        self.advanced += count
        return max(self.advanced, self._told) - before

    def receive(self) -> tuple[str, Any]:
        """The next message. Raises RunError if there will be none."""
        try:
            kind, value, *trace = self.connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if trace:
            value.__cause__ = _ThereError(f"in the process for {self.job.name}:\n{trace[0]}")
        return kind, value

    def _death(self) -> _DiedError:
        place = self.job.place(self.advanced)
        try:
            code = self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:  # it has closed its socket and lives on: nothing of ours does that
            return self._died(f"the process for {self.job.name} talks no more, {place}")
        names = {number.value: f" ({number.name})" for number in signal.Signals}
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}{names.get(-code, '')}"
        last = self._last_words()
        said = f" (it said: {last})" if last else ""
        return self._died(f"the process for {self.job.name} {how}{said} {place}")

    def _died(self, what: str) -> _DiedError:
        kept = f"; {self.job.kept}" if self.job.kept else ""
        error = _DiedError(f"{what}{self._times}{kept}; {REMEDY}")
        error.what = what
        return error

    def _last_words(self) -> str:
        try:
            with open(self._errors, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        except OSError:
            return ""
        return "".join(c if c.isprintable() else " " for c in lines[-1])[:200] if lines else ""

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """After `kill`: wait until it is gone, so that it makes no more files."""
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_SECONDS)


class _ThereError(Exception):
    """The traceback in another process, for the one that prints tracebacks here."""


@contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """A process that is started in here never sees SIGINT; one that comes meanwhile reaches this process afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the other process --------------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """The life of a process: take the work, do it, answer. Does not return."""
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        work, argument = connection.recv()
        threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
        channel = Channel(connection)
        message: tuple[Any, ...]
        try:
            message = ("answer", work(argument, channel))
        except BaseException as error:
            message = ("error", _portable(error), traceback.format_exc())
        channel._end(message)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # nobody waits any more
    # Threads may still be in a kernel: nobody wants their results.
    os._exit(0)


def _end_with_parent(connection: Connection[Any, Any]) -> None:
    """Nothing more comes down the socket: what ends this wait is its end."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """The error itself where it is of a kind that the parent knows and can rebuild; else one that says what it was."""
    if isinstance(error, GpuDedupError):
        with contextlib.suppress(Exception):
            if str(pickle.loads(pickle.dumps(error))) == str(error):
                return error
    if isinstance(error, MemoryError):
        return MemoryError(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    return InternalError(f"{type(error).__name__}: {error}")
