"""What a run over a corpus takes, before it begins: memory, disk and time, for `explain` and for the run itself.

Memory is `footprint`'s, the same numbers by which a run ends that asks for too much. Disk is what the work folder and
the output hold at once at most. Time is `RATES`, which are measurements and say on which machine. A corpus is counted,
given, or guessed from the beginnings of its files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_dedup import hamming
from gpu_dedup.backend import HostBackend, host_backend
from gpu_dedup.batch import ROW_TEXT
from gpu_dedup.bloom import shape_of
from gpu_dedup.errors import InputError, RunError, shown
from gpu_dedup.pipeline.footprint import LEAST_TABLES, SURE, Parts, least_memory, matches_text, parts_of, row_bytes
from gpu_dedup.progress import bytes_text, seconds_text
from gpu_dedup.read import Source, open_source
from gpu_dedup.recipe import STREAMED, WEIGHTS, Recipe
from gpu_dedup.run import Run
from gpu_dedup.weights import TABLE_BYTES

SAMPLE_FILES = 16  # files whose beginnings are read to guess the documents of a corpus
SAMPLE_BYTES = 16 << 20  # of all of them together
BRIEF_BYTES = 1 << 20  # the same where the run itself waits for the guess
BRIEF_FROM = 64 << 20  # bytes of input; a smaller one is read before its estimate is
MOST = hamming.MAX_VALUES  # different texts of a run: a pair of them is one uint64
LOG_BYTES = 14  # of removed.parquet for a row that goes; measured, benchmarks/large.py
PART_BYTES = 25 + 24  # of a part for a row: status, digest, length; and for a sketch: place, units, shingles


@dataclass(frozen=True)
class Rates:
    """Throughput of one core in its own CPU time, on English text in plain JSONL; see `machine`."""

    machine: str
    read: float  # bytes of text a second: extract, check, normalise, digest
    shingle: float  # bytes of text a second, for units and shingle hashes
    slots: float  # slot updates a second: slots x shingles
    fast: float  # shingles a second of the fast sketch, in texts of 500 and more, at some 120 slots
    prints: Mapping[str, float]  # bytes of text a second, for shingles and SimHash, by weights of the terms
    again: float  # bytes of candidates' text a second: read again, shingle sets, comparison
    write: float  # bytes of input a second: second pass, copying what stays


RATES = {
    "numba": Rates(
        "one core of an AMD EPYC with AVX-512 (Zen 5), 86 MB of English, Numba 0.68",
        700e6,
        1300e6,
        60e9,
        1e9,
        {"set": 755e6, "count": 1216e6, "tfidf": 243e6},
        190e6,
        1e9,
    ),
    "numpy": Rates(
        "one core of an AMD EPYC with AVX-512 (Zen 5), 2 MB of English, NumPy 2.4",
        4.5e6,
        15e6,
        0.3e9,
        0.7e6,
        dict.fromkeys(WEIGHTS, 5e6),
        3e6,
        300e6,
    ),
}
BYTES_PER_SHINGLE = {
    "item": 6,
    "token": 7,
    "word": 7,
    "code": 4,
    "char": 1,
    "byte": 1,
}  # of English; a Chinese token has 3 bytes


@dataclass(frozen=True)
class Corpus:
    """How much text there is: counted, given, or guessed from a sample."""

    documents: int
    text_bytes: int
    input_bytes: int
    guess: str = ""  # how the numbers were found, if by guessing

    @classmethod
    def of(cls, documents: int, mean_bytes: int) -> Corpus:
        if documents < 1 or mean_bytes < 1:
            raise RunError(f"a corpus of {documents} documents of {mean_bytes} bytes has no cost; give numbers above 0")
        return cls(documents, documents * mean_bytes, documents * mean_bytes)

    @property
    def counted(self) -> bool:
        """False where a sample has no text, so that nothing follows from it."""
        return self.text_bytes > 1


def look_at(sources: Sequence[Source], recipe: Recipe, run: Run, most: int = SAMPLE_BYTES) -> Corpus:
    """Guess the documents and bytes of text of files from the beginnings of some of them, `most` bytes in all."""
    total = sum(source.size for source in sources)
    step = -(-len(sources) // SAMPLE_FILES)
    rows = text = seen = 0
    backend = host_backend("numpy")
    fields = [*recipe.texts_from, recipe.id_field]
    chosen = sources[::step]
    batch = max(1, min(run.batch_bytes, most // 16))
    for index, source in enumerate(chosen):
        room = most // len(chosen)
        with open_source(source, batch, index, fields, backend=backend) as reader:
            for chunk in reader:
                parsed = chunk.rows(backend, recipe)
                rows += int((parsed.status == ROW_TEXT).sum())
                text += parsed.tape.nbytes
                seen += chunk.nbytes
                room -= parsed.tape.nbytes
                if room <= 0:
                    break
    if not seen or not rows:
        return Corpus(1, 1, max(1, total), f"no text found at the beginning of {files_text(len(sources))}")
    share = total / seen
    guess = f"guessed from {rows:,} rows, {bytes_text(seen)} of {bytes_text(total)} in {files_text(len(sources))}"
    if recipe.limit is not None:
        share = min(share, recipe.limit / rows)
        guess += f", at most {recipe.limit:,} rows by --limit"
    return Corpus(max(1, round(rows * share)), max(1, round(text * share)), max(1, round(seen * share)), guess)


def files_text(count: int) -> str:
    return f"{count:,} {'file' if count == 1 else 'files'}"


@dataclass(frozen=True)
class Line:
    """Bytes of memory or disk: what for, how many, and the words for the formula."""

    name: str
    bytes: int
    formula: str


def rates_of(run: Run) -> Rates:
    return RATES[_engine(run)]


def _engine(run: Run) -> str:
    return "numpy" if run.backend == "numpy" else "numba"


def held_bytes(recipe: Recipe) -> int:
    """Bytes beside program, batches and rows, whatever the rows: filters, and tables of document frequencies."""
    if recipe.method in STREAMED:
        shape, tables = shape_of(recipe)
        return shape.nbytes * tables
    return 2 * TABLE_BYTES if recipe.weighted else 0


@dataclass(frozen=True)
class Place:
    """Where a run writes; the folders need not be there yet.

    work    for tables, and for parts if they are kept
    kept    parts are kept
    there   bytes of them that an earlier start has left
    output  None where no files are written
    """

    work: str
    kept: bool
    there: int
    output: str | None


@dataclass(frozen=True)
class Memory:
    """Memory of a run at its worst moment, by part, and what goes to the work folder because it does not fit.

    spilled  bytes of tables in the work folder
    needed   bytes without tables: a run with less ends
    """

    lines: list[Line]
    spilled: int
    needed: int

    @property
    def bytes(self) -> int:
        return sum(line.bytes for line in self.lines)


ROW_TABLES = 16 + 8  # of a row: digest, length
NEAR_TABLES = 8 + 16 + 16  # of a different text beside its sketch: place of it; units, shingles; row and sketch by rank


def table_bytes(recipe: Recipe) -> tuple[int, int]:
    """Bytes of a different text in tables: (the largest of them, all the others)."""
    if recipe.method in STREAMED:
        return 0, 0
    keys = ROW_TABLES * recipe.keyed
    if not recipe.near:
        return 16, ROW_TABLES - 16 + keys
    rest = ROW_TABLES + keys + NEAR_TABLES + (8 if recipe.printed else 0) + 8 * (recipe.bands or 0) * recipe.banded
    return (4 * recipe.slots, rest) if recipe.banded else (16, rest - 16)


def memory_of(recipe: Recipe, run: Run, corpus: Corpus) -> Memory:
    """Memory of a run on a CPU."""
    n, held = corpus.documents, held_bytes(recipe)
    parts: Parts = parts_of(recipe, run, _engine(run))
    threads = run.thread_count
    each = sum(size for _, size in row_bytes(recipe))
    fields = ", ".join(f"{name} {size}" for name, size in row_bytes(recipe))
    lines = [Line("rows", each * n, f"{each} x {n:,} rows ({fields})")]
    if recipe.method in STREAMED:
        shape, tables = shape_of(recipe)
        lines.append(Line("filter", held, f"{tables} x {shape.blocks:,} blocks x 64, whatever the rows"))
    elif recipe.weighted:
        lines.append(Line("terms", held, "document frequencies and weights, 2 x 4 x 2^24 cells"))
    lines += [
        Line("batches", parts.batches, f"{parts.batches_text} ({threads} threads)"),
        Line("read ahead", parts.ahead, parts.ahead_text),
        Line("verify", parts.verify, "texts that are compared at a time, at most"),
        Line("program", parts.program, "interpreter, libraries, kernels, table of seen digests"),
    ]
    if recipe.method not in STREAMED:
        lines.append(Line("matches", 0, matches_text(recipe)))
    needed = sum(line.bytes for line in lines)
    large, small = (size * n for size in table_bytes(recipe))
    room = max(run.memory_bytes - needed, 0)
    # The largest table is the first that finds no room; what it had is then there for the others.
    inside = large + small if large + small <= room else small if small <= room else 0
    spilled = large + small - inside
    if recipe.method not in STREAMED:
        words = [str(ROW_TABLES + (NEAR_TABLES if recipe.near else 0))]
        words += [f"{ROW_TABLES} of a key"] if recipe.keyed else []
        if recipe.banded:
            words += [f"4 x {recipe.slots} slots", f"8 x {recipe.bands} band keys"]
        words += ["8 of a fingerprint"] if recipe.printed else []
        text = f"({' + '.join(words)}) x {n:,} different texts"
        if spilled:
            text += f", of which what --memory {bytes_text(run.memory_bytes)} leaves stays in memory"
        lines.insert(1, Line("tables", inside, text))
    if recipe.printed:
        reach = recipe.reach
        at_work = min(threads, hamming.plan(n, reach).tables)
        if run.memory is not None:  # no more than there is room for
            at_work = max(1, min(at_work, 1 + (room - inside) // (hamming.BYTES_PER_VALUE * n)))
        if at_work > 1:
            size = (at_work - 1) * hamming.BYTES_PER_VALUE * n
            formula = f"{hamming.BYTES_PER_VALUE} x {at_work - 1} more tables at work x {n:,}"
            lines.insert(2, Line("search", size, formula))
    return Memory(lines, spilled, needed)


def refusal(recipe: Recipe, run: Run, corpus: Corpus) -> str:
    """Why a run over this corpus would end; '' if nothing is known against it."""
    n = corpus.documents
    if recipe.near and n >= MOST:
        return f"{n:,} different texts are more than {MOST - 1:,}, and the run will stop; run on shards of the input"
    needed = memory_of(recipe, run, corpus).needed + LEAST_TABLES
    if run.memory is None or needed <= run.memory or recipe.method in STREAMED:  # filters say so themselves
        return ""
    least = least_memory(recipe, run, _engine(run), held_bytes(recipe), n)
    return f"--memory {bytes_text(run.memory)} is too little, and the run will stop; the least that works is {least}"


def disk_lines(recipe: Recipe, run: Run, corpus: Corpus, spilled: int, kept: bool = True) -> list[Line]:
    """Bytes of the work folder (all but the last line) and of the output (the last), at most.

    kept  parts of the first pass are kept for a next start
    """
    n = corpus.documents
    lines = []
    if kept and run.checkpoint and recipe.method not in STREAMED and corpus.input_bytes >= run.checkpoint:
        slots = 0
        if recipe.near and recipe.banded:
            slots = max(recipe.slots, recipe.num_perm if run.keep_work and recipe.sketch != "fast" else 0)
        each = PART_BYTES + 4 * slots + 8 * recipe.printed + ROW_TABLES * recipe.keyed
        lines.append(Line("parts", each * n, f"{each} x {n:,} texts, for the next start if this one is stopped"))
    if spilled:
        # Rows of a digest and heads of a band key come by parts then, which are tables too.
        spilled += n * max(32, 16 * run.thread_count * (recipe.bands is not None))
        lines.append(Line("tables", spilled, "digests, lengths, sketches and their parts that do not fit in memory"))
    if run.dry_run:
        lines.append(Line("output", 0, "none, --dry-run"))
    elif run.write == "mask":
        lines.append(Line("output", (LOG_BYTES + 1) * n, f"mask and log, {LOG_BYTES + 1} bytes a row at most"))
    else:
        much = " and what goes: as much as the input" if run.keep_removed else ", at most the input"
        lines.append(Line("output", corpus.input_bytes, f"what stays{much}"))
    return lines


def time_lines(recipe: Recipe, run: Run, corpus: Corpus) -> list[tuple[str, str, float]]:
    """Seconds of a run by part: (name, formula, seconds)."""
    rates = rates_of(run)
    threads = run.thread_count
    text = corpus.text_bytes
    lines = [
        ("read", f"{bytes_text(text)} of text at {bytes_text(rates.read)}/s", text / rates.read),
        ("write", f"{bytes_text(corpus.input_bytes)} at {bytes_text(rates.write)}/s", corpus.input_bytes / rates.write),
    ]
    if recipe.printed:
        prints = rates.prints[recipe.weights]
        lines[1:1] = [("simhash", f"{bytes_text(text)} at {bytes_text(prints)}/s", text / prints)]
        chosen = hamming.plan(corpus.documents, recipe.reach)
        seconds = chosen.compared / hamming.COMPARED_PER_SECOND
        if recipe.weighted:
            formula = f"{bytes_text(text)} read twice more at {bytes_text(rates.read)}/s, counted at "
            seconds_more = 2 * text / rates.read + text / prints
            lines.insert(2, ("terms", f"{formula}{bytes_text(prints)}/s", seconds_more))
        lines.append(("search", f"{chosen.tables:,} tables, {chosen.compared:.2g} comparisons or their worth", seconds))
    if recipe.banded:
        every = BYTES_PER_SHINGLE[recipe.spec.unit]
        count = text / every
        formula, seconds = f"x {recipe.slots} slots at {rates.slots:.2g}/s", count * recipe.slots / rates.slots
        if recipe.sketch == "fast":
            formula, seconds = f"at {rates.fast:.2g}/s", count / rates.fast
        lines[1:1] = [
            ("shingle", f"{bytes_text(text)} at {bytes_text(rates.shingle)}/s", text / rates.shingle),
            ("sketch", f"{count:.3g} shingles (one in {every} bytes) {formula}", seconds),
        ]
    return [(name, formula, seconds / threads) for name, formula, seconds in lines]


# ---- before a run ----------------------------------------------------------------------------------------------------


def free_bytes(path: str) -> tuple[int, int] | None:
    """Bytes that this user may still write where `path` is or will be, and the number of that disk; None: unknown."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, os.stat(path).st_dev
    except OSError:
        return None


def brief(
    sources: Sequence[Source], recipe: Recipe, run: Run, backend: HostBackend | None, size: int, place: Place
) -> list[str]:
    """Lines about a run that is about to begin: what it will take, and a warning where the disk has too little.

    backend  None for a GPU: neither its time nor its memory is known beforehand
    size     bytes of the input, decompressed by guess; of a small one nothing is said
    Raises RunError where the disk is too little for sure.
    """
    if size < BRIEF_FROM:
        return []
    try:
        corpus = look_at(sources, recipe, run, BRIEF_BYTES)
    except InputError:
        return []  # the first pass says what is wrong, or passes the file over if that was asked for
    if not corpus.counted:
        return []
    if backend is not None:
        run = replace(run, backend=backend.name)
    memory = memory_of(recipe, run, corpus)
    disk = disk_lines(recipe, run, corpus, memory.spilled, place.kept)
    in_work, out = sum(line.bytes for line in disk[:-1]), disk[-1].bytes if place.output is not None else 0
    text = f"estimate: {corpus.documents:,} rows, "
    if backend is not None:
        text += f"memory {bytes_text(memory.bytes)}, "
    text += f"disk {bytes_text(in_work + out)}"
    if backend is not None:
        seconds = sum(seconds for _, _, seconds in time_lines(recipe, run, corpus))
        text += f", {seconds_text(seconds)} by {run.thread_count} threads"
        text += " and verification" if recipe.near and recipe.verify in ("exact", "edit") else ""
    return [f"{text} ({corpus.guess})", *_disk_warnings(recipe, corpus, in_work, out, place)]


def _disk_warnings(recipe: Recipe, corpus: Corpus, in_work: int, out: int, place: Place) -> list[str]:
    """Where less is free than is needed at most; work and output together if they are on one disk."""
    needs = [(max(in_work - place.there, 0), place.work, "--work-dir")]
    if place.output is not None:
        needs.append((out, place.output, "-o"))
    found = [free_bytes(path) for _, path, _ in needs]
    if len(needs) == 2 and found[0] is not None and found[1] is not None and found[0][1] == found[1][1]:
        needs, found = [(needs[0][0] + out, place.work, "--work-dir or -o")], found[:1]
    # Whatever goes, the first pass keeps this of every row; all else depends on how many rows are copies.
    least = PART_BYTES // 2 * corpus.documents - place.there if place.kept else 0
    lines = []
    for (need, path, option), disk in zip(needs, found, strict=True):
        if disk is None or disk[0] >= need:
            continue
        words = f"{shown(path)}: {bytes_text(disk[0])} are free on this disk"
        if path == place.work and least > SURE * disk[0]:
            raise RunError(
                f"{words}, and the parts of the first pass take {bytes_text(least)} or more; make room, choose another "
                "disk with --work-dir, or pass --checkpoint 0"
            )
        lines.append(
            f"warning: {words}, and up to {bytes_text(need)} will be needed; make room, or choose another with {option}"
        )
    return lines
