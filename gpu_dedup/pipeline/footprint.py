"""--memory as a promise: what is in memory beside tables is known beforehand, and tables get what is left.

    memory = program + batches in flight + what was read ahead + what is verified at a time
             + rows x bytes of a row + tables

Rows are counted as they come, and what they take is taken from the tables, which move to the work folder when theirs is
used up. So a corpus of more rows than expected costs disk, not memory, until the rows alone are too many: then the run
ends with the least memory that works, as soon as that can be told. (What a run has done by then stays in its parts.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_dedup.errors import RunError
from gpu_dedup.hamming import BYTES_PER_VALUE
from gpu_dedup.progress import bytes_text
from gpu_dedup.recipe import STREAMED, Recipe
from gpu_dedup.run import MIN_MEMORY, Run
from gpu_dedup.spool import MAX_PARTS, Budget

# Bytes of a process that has imported and compiled all, with the table of seen digests; measured, x86-64, Python 3.11.
PROGRAM = {"numpy": 200 << 20, "numba": 390 << 20}
SEEN_KEYS = 32 << 20  # the table of seen keys, beside that of digests
BATCH_COPIES = 8  # bytes in memory for each byte of a batch: itself, texts, their normalised form, shingles, sketches
VERIFY = 256 << 20  # more does not make verification faster, only components larger than this slower
VERIFY_SHARE = 8  # ... and no more than such a part of the memory
LEAST_BATCHES = 512  # batches are no larger than such a part of the memory
AHEAD_SHARE = 32  # what is read ahead takes no more than such a part of the memory
MOST_READERS = 16  # files open at once
IN_HAND = 2 << 20  # of each reader beside its batch: a block of the file, the state of its codec
LEAST_TABLES = 32 << 20
COLLIDE = 80  # bytes that a thread takes for a text while buckets are found: its key and rank, and `buckets` itself
SEARCH = BYTES_PER_VALUE  # ... and while near fingerprints are
# Bytes of what is met on the way, known when it is there. All of them at the worst moment: arrays of int64, mostly.
CANDIDATE, CANDIDATE_CONNECTED = 150, 56  # a text that is in a pair to verify: its places, component, part, decision
PAIR = 80  # such a pair: its sides as they were found and as they are numbered, component, part, task
# A row that goes: head, witness and numbers, twice while they are put in order.
GONE, GONE_CONNECTED, GONE_PRINTED, GONE_LEVELED = 80, 48, 24, 48

SAMPLE_SHARE = 50  # rows are extrapolated once a fiftieth of the input was read
SAMPLE_BYTES = 256 << 20  # ... or so many bytes of it
SURE = 1.3  # an extrapolation ends a run only where it is so far beyond what fits


def row_bytes(recipe: Recipe) -> list[tuple[str, int]]:
    """Bytes in memory for every row at the worst moment of a run, by what they are; tables aside."""
    if recipe.method in STREAMED:
        return [("status", 1), ("verdict", 1), ("outcome", 1), ("mask", 1)]
    parts = [("status", 1), ("marks", 5)]
    if recipe.printed:
        parts += [("fingerprint and group", 40), ("search or verification", SEARCH), ("decision", 32)]
        if recipe.cluster == "connected":
            parts.append(("neighbour", 48))
    if recipe.keyed:
        parts.append(("marks of keys", 5))
    if recipe.keyed or recipe.leveled:
        parts.append(("filter of keys or digests", 4))
    if recipe.leveled:
        parts.append(("level, edit similarity", 34))
    if recipe.keep not in ("first", "none"):
        parts.append(("place in keeper order", 24))
    if recipe.keep_field is not None:
        parts.append((f"field {recipe.keep_field}, if a number", 9))
    if recipe.on_bad_file == "skip":
        parts.append(("digest and length until its file is read", 32))
    return parts


def gone_bytes(recipe: Recipe) -> int:
    """Bytes for a row that goes, from the search for copies to the log: its outcome, and the place of ids."""
    more = GONE_CONNECTED * (recipe.cluster == "connected") + GONE_PRINTED * recipe.printed
    return GONE + more + GONE_LEVELED * recipe.leveled


def matches_bytes(recipe: Recipe, texts: int, pairs: int) -> int:
    """Bytes of candidates while they are verified: different texts that are in one, and pairs."""
    return (CANDIDATE + CANDIDATE_CONNECTED * (recipe.cluster == "connected")) * texts + PAIR * pairs


def matches_text(recipe: Recipe) -> str:
    """What is to come on top of rows, in words: nobody knows beforehand how many copies there are."""
    text = f"and {gone_bytes(recipe)} of each row that goes"
    if recipe.near and not recipe.printed:
        text += f", or {matches_bytes(recipe, 1, 0)} of a text in a pair that meets and {matches_bytes(recipe, 0, 1)} "
        text += "of the pair: known when they are met"
    return text


def batch_of(run: Run) -> int:
    """Bytes of input in a batch."""
    return run.batch_bytes if run.memory is None else min(run.batch_bytes, run.memory // LEAST_BATCHES)


def ahead_of(run: Run) -> int:
    """Bytes of input that were read and wait for their turn."""
    return min(4 * run.thread_count * batch_of(run), run.memory_bytes // AHEAD_SHARE)


def readers_of(run: Run) -> int:
    """Files that are read at once."""
    return max(1, min(run.thread_count, MOST_READERS, ahead_of(run) // (3 * batch_of(run))))


def reading_of(run: Run) -> int:
    """Bytes that reading ahead takes, those in the hands of readers too."""
    return ahead_of(run) + readers_of(run) * (batch_of(run) + IN_HAND)


def verify_of(run: Run) -> int:
    """Bytes that verification holds at a time."""
    return min(run.memory_bytes // VERIFY_SHARE, VERIFY)


@dataclass(frozen=True)
class Parts:
    """Bytes of a run beside rows, filters and tables. The texts say how those of batches are worked out."""

    program: int
    batches: int
    ahead: int
    verify: int
    batches_text: str
    ahead_text: str

    @property
    def bytes(self) -> int:
        return self.program + self.batches + self.ahead + self.verify


def parts_of(recipe: Recipe, run: Run, backend: str) -> Parts:
    """What a run takes whatever the rows; batches and verification take more of a larger memory."""
    count, size = 2 * run.thread_count + 2, batch_of(run)
    text = f"{BATCH_COPIES} x {count} in flight x {bytes_text(size)}"
    readers = readers_of(run)
    ahead_text = f"{bytes_text(ahead_of(run))} that wait, and {readers} in the hands of readers"
    verify = verify_of(run) if recipe.near else 0
    program = PROGRAM[backend] + (SEEN_KEYS if recipe.keyed else 0)
    return Parts(program, count * size * BATCH_COPIES, reading_of(run), verify, text, ahead_text)


def least_memory(recipe: Recipe, run: Run, backend: str, held: int, rows: int) -> str:
    """The least memory for so many rows, in words: a little more, so that rounding takes nothing off."""
    memory, per_row = MIN_MEMORY, sum(size for _, size in row_bytes(recipe))

    def need() -> int:
        return parts_of(recipe, replace(run, memory=memory), backend).bytes + held + LEAST_TABLES + rows * per_row

    while (more := need()) > memory:
        memory = more
    return bytes_text(memory * 101 // 100)


class Footprint:
    """Memory of a run on a CPU, against what it may take.

    strict  the memory was asked for: what does not fit ends the run. Otherwise it is a guide for the tables alone
    held    bytes that are there whatever the rows, beside program and batches: filters, document frequencies
    """

    def __init__(self, recipe: Recipe, run: Run, backend: str, input_bytes: int, budget: Budget, held: int = 0) -> None:
        self.memory, self.strict, self.budget = run.memory_bytes, run.memory is not None, budget
        self.per_row = sum(size for _, size in row_bytes(recipe))
        self._recipe, self._run, self._backend, self._held = recipe, run, backend, held
        self.fixed = self._fixed(run)
        self.input_bytes = input_bytes
        self.rows = self.bytes = 0
        self._met: dict[str, tuple[int, str]] = {}
        self._first_rows = self._first_bytes = 0  # in input order
        self._judged = False
        if self.strict and self.room < LEAST_TABLES:
            raise RunError(
                f"memory {bytes_text(self.memory)} is too little for {run.thread_count} threads; the least that works "
                f"is {self._least(0)}, or lower --threads or --batch-bytes"
            )
        self._limit()

    @property
    def room(self) -> int:
        """Bytes left for tables beside the rows that were met, and what was met among them."""
        return self.memory - self.fixed - self.rows * self.per_row - self._met_bytes

    @property
    def _met_bytes(self) -> int:
        return sum(nbytes for nbytes, _ in self._met.values())

    def _fixed(self, run: Run) -> int:
        """Bytes beside rows and tables."""
        return parts_of(self._recipe, run, self._backend).bytes + self._held

    def _least(self, rows: int, more: int = 0) -> str:
        return least_memory(self._recipe, self._run, self._backend, self._held + more, rows)

    def _limit(self) -> None:
        self.budget.limit(max(self.room, 0))

    def met(self, rows: int, nbytes: int) -> None:
        """So many rows were read, of so many bytes of input. Raises RunError where all of them will not fit."""
        self.rows += rows
        self.bytes += nbytes
        self._limit()
        if not self.strict:
            return
        if self.room < 0:
            expected = self.rows * self.input_bytes // max(self.bytes, 1)
            raise self._too_many(max(expected, self.rows))

    def in_turn(self, rows: int, nbytes: int) -> None:
        """The same rows in input order, so that what is extrapolated is the same on every run. Raises RunError."""
        self._first_rows += rows
        self._first_bytes += nbytes
        if not self.strict or self._judged:
            return
        if self._first_bytes >= min(self.input_bytes // SAMPLE_SHARE, SAMPLE_BYTES):
            self._judged = True
            expected = self._first_rows * self.input_bytes // max(self._first_bytes, 1)
            if expected * self.per_row > SURE * (self.memory - self.fixed - LEAST_TABLES):
                raise self._too_many(expected)

    def _too_many(self, rows: int) -> RunError:
        about = "" if self.bytes >= self.input_bytes else "about "
        return RunError(
            f"memory {bytes_text(self.memory)} is too little for {about}{rows:,} rows, {self.per_row} bytes each; the "
            f"least that works is {about}{self._least(rows)}; raise --memory, or run on shards of the input"
        )

    def search_threads(self, heads: int, threads: int) -> int:
        """Threads that may search near fingerprints at once; the memory of one of them is in that of the rows."""
        return max(1, min(threads, 1 + self._left // (SEARCH * max(heads, 1))))

    def search_memory(self, heads: int) -> int:
        """Bytes that the search for near fingerprints may take: those of the rows for it, and what is left."""
        return SEARCH * heads + max(self._left, 0)

    @property
    def _left(self) -> int:
        return self.room - self.budget.used

    @property
    def work(self) -> int:
        """Bytes that a stage may take that neither reads nor verifies: what these would, and what tables have left."""
        parts = parts_of(self._recipe, self._run, self._backend)
        return parts.batches + parts.ahead + parts.verify + max(self._left, 0)

    def holds(self, name: str, nbytes: int, words: str) -> None:
        """From now on `name` takes so many bytes (instead of those said before): what was met among the rows, in
        words. Raises RunError where that is too much."""
        self._met[name] = (nbytes, words)
        self._limit()
        if self.strict and self.room < 0:
            every = " and ".join(words for nbytes, words in self._met.values() if nbytes)
            raise RunError(
                f"memory {bytes_text(self.memory)} is too little for {self.rows:,} rows with {every}; the least that "
                f"works is {self._least(self.rows, self._met_bytes)}; raise --memory, or run on shards of the input"
            )

    def collide(self, heads: int, threads: int) -> tuple[int, int]:
        """Threads that may look for buckets at once, and in how many parts of the heads, a power of two.

        As many threads as there are, in parts where that takes it, as long as the parts of all of them are few files.
        """
        while True:
            parts = 1
            # part by part some are larger, and keys are of one kind only in theory
            while parts < MAX_PARTS and heads * COLLIDE * threads > (parts if parts == 1 else parts // 2) * self.work:
                parts *= 2
            if threads == 1 or parts * threads <= MAX_PARTS:
                return threads, parts
            threads = max(1, MAX_PARTS // parts)
