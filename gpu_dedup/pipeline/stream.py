"""Methods bloom and lshbloom: rows are decided as they pass by, in input order, by a filter of fixed size.

What stays of a row is a byte of verdict: digests and band keys go with their batch. Rows of a file reach the filter as
they come; where damaged files are left out, only once the file has come to its end, for no row can be taken out again.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import I64, ROW_BAD, ROW_TEXT, U8, U64, Bool
from gpu_dedup.bloom import BloomFilter, shape_of
from gpu_dedup.errors import GpuDedupError, RecipeError, RunError, disk_error, shown
from gpu_dedup.kernels.unicode import UNICODE_VERSION
from gpu_dedup.pipeline.outcome import BAD_ROW, BLOOM, Outcome
from gpu_dedup.pipeline.outcome import NO_TEXT as NO_TEXT_ROW
from gpu_dedup.progress import bytes_text
from gpu_dedup.recipe import DEFINITIONS, PPB, Recipe, ppb_text
from gpu_dedup.report import Filter
from gpu_dedup.run import Run

SEEN, NO_TEXT = 1, 2  # bits of a row's verdict


def what_keys_are(recipe: Recipe) -> dict[str, object]:
    """All of a recipe that the keys of its filter depend on, and nothing else: filters of equal keys go together."""
    values = recipe.as_dict()
    names = ["method", "normalize", "strip", "max_chars"]
    if recipe.method == "lshbloom":
        names += ["shingle", "stop_shingles", "sketch", "bands", "rows", "seed"]
    # Names of fields are left out, for two corpora may name theirs otherwise; what is in them is not: a URL among texts
    # would be no copy of anything, and the filter would be full of both.
    kind = "texts" if recipe.key_field is None else "key-field"
    kind = kind if recipe.pretokenized is None else "pretokenized"
    rest = {"kind": kind, "definitions": DEFINITIONS, "unicode": UNICODE_VERSION}
    return {**{name: values[name] for name in names}, **rest}


def open_filter(recipe: Recipe, run: Run, backend: Backend) -> BloomFilter:
    """The filter of a run: the one that --bloom names, or a new one.

    Raises RecipeError where it would not fit in --memory or where the saved one has other keys or another size,
    InputError where the file is no filter.
    """
    shape, tables = shape_of(recipe)
    size = shape.nbytes * tables
    if size > run.memory_bytes:
        raise RecipeError(
            f"capacity {recipe.capacity:,} with fp-rate {ppb_text(recipe.fp_rate_ppb)} takes {8 * size:,} bits, "
            f"{bytes_text(size)}, over --memory {bytes_text(run.memory_bytes)}; raise --memory if the machine has it, "
            "lower --capacity, or raise --fp-rate"
        )
    assert recipe.capacity is not None
    says = what_keys_are(recipe)
    keys = hashlib.sha256(json.dumps(says, sort_keys=True).encode()).hexdigest()[:32]
    # With several tables the recipe's rate is that of all together.
    each = recipe.fp_rate_ppb // tables
    if run.bloom is not None and not run.dry_run:
        _check_place(run.bloom)
    if run.bloom is not None and os.path.exists(run.bloom):
        loaded = BloomFilter.load(run.bloom, backend=backend, threads=run.thread_count)
        if (why := BloomFilter.plan(recipe.capacity, each, tables, keys, says).differs(loaded)) is not None:
            raise RecipeError(
                f"--bloom {shown(run.bloom)}: a filter of another kind ({why.replace(' and ', ' here, there ')}); give "
                "the options it was made with, or another file"
            )
        return loaded
    filter = BloomFilter(
        recipe.capacity, ppb_text(each), tables=tables, keys=keys, backend=backend, threads=run.thread_count
    )
    filter.says = says
    return filter


def _check_place(path: str) -> None:
    """Refuse before the work a file that could not be written after it. Raises RunError."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise RunError(f"--bloom {shown(path)}: there is no folder {shown(folder)}; make it, or name another file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(f"--bloom {shown(path)}: no permission to write in {shown(folder)}; name another file")


def finish_saving(path: str, hashes: Sequence[str | None]) -> bool:
    """Whether the filter at `path` holds inputs of these content hashes; one that a run has written, but was killed
    before it could give it its name, gets it now."""

    def held(file: str) -> dict[str, str] | None:
        try:
            return BloomFilter.load(file).inputs
        except (GpuDedupError, OSError):
            return None

    wanted = set(hashes)
    found = held(path)
    if found is not None and wanted <= set(found):
        return True
    for temporary in sorted(glob.glob(f"{glob.escape(os.path.abspath(path))}.*.tmp")):
        complete = held(temporary)
        if complete is not None and wanted | set(found or ()) <= set(complete):
            try:
                os.replace(temporary, path)
            except OSError as error:
                raise disk_error(error, path, "another file for the filter") from error
            return True
    return False


class Stream:
    """What the first pass gives its rows to, in input order; raises RunError where the run has to stop."""

    def __init__(self, recipe: Recipe, run: Run, filter: BloomFilter) -> None:
        self.recipe, self.run, self.filter = recipe, run, filter
        self.held = list(filter.counts)  # before this run
        self.before = dict(filter.inputs)
        self.short = 0
        self.asked = 0
        self._gauge = Gauge(filter)

    @property
    def eager(self) -> bool:
        """True if a batch may be taken before its file has come to its end."""
        return self.recipe.on_bad_file == "error"

    def take(
        self, status: U8, length: I64, digest: U64, select: I64, keys: U64 | None, units: I64 | None, kept: I64 | None,
        place: Callable[[int], str],
    ) -> U8:  # fmt: skip
        """uint8[n]: verdict of each row of a batch. place: name of a row of it, for messages."""
        verdict = np.zeros(len(status), np.uint8)
        text = status == ROW_TEXT
        verdict[text & (length == 0)] = NO_TEXT
        if keys is None:  # as method exact: empty texts are copies of each other
            rows = np.flatnonzero(text)
            own = digest[rows]
        else:
            assert units is not None
            assert kept is not None
            verdict[select[kept == 0]] = NO_TEXT
            self.short += int(np.count_nonzero((units > 0) & (units < self.recipe.spec.n)))
            rows = select[kept > 0]
            own = keys[kept > 0]
        self.asked += len(rows)
        start = list(self.filter.counts)
        new: Bool = np.zeros(len(own), np.bool_)
        at = 0
        while at < len(own):  # in pieces that end where the rate is measured, whatever the batch
            end = min(len(own), at + self._gauge.room)
            new[at:end] = self.filter.add_if_new(own[at:end])
            self._gauge.took(end - at, int(np.count_nonzero(new[at:end])))
            at = end
        verdict[rows[~new]] |= SEEN
        if self.filter.over_capacity and self.run.on_full == "stop":
            self._stop(start, rows, new, place)
        return verdict

    def _stop(self, start: Sequence[int], rows: I64, new: Bool, place: Callable[[int], str]) -> None:
        """The row with which the filter is over capacity. Of several tables, which is first is not asked: the batch's
        last new row will do, and the message does not count rows then."""
        filter = self.filter
        where = ""
        if filter.tables == 1:
            at = np.flatnonzero(new)[filter.capacity - start[0]]
            where = f"{place(int(rows[at]))}: "
        remedy = (
            "Give a capacity above the rows of all inputs, a larger --fp-rate if memory is short, or --on-full warn to "
            "go on"
        )
        if self.run.bloom is not None and filter.path is not None:
            remedy = (
                f"{shown(self.run.bloom)} is as large as it was made: make a new filter of a larger --capacity from "
                "all inputs, those that it holds too, or pass --on-full warn to go on"
            )
        raise RunError(
            f"{where}more than --capacity {filter.capacity:,} different rows have come, so that more and more new ones "
            f"would be taken for seen; nothing was written. {remedy}"
        )

    def end(self, name: str, content_hash: str | None, rows: int) -> None:
        """A file has come to its end. One without rows leaves nothing in the filter, and is like every other such."""
        if content_hash is None or self.run.bloom is None or not rows:
            return
        if content_hash in self.before and not self.run.again:
            raise RunError(
                f"{name}: --bloom {shown(self.run.bloom)} holds the rows of this file already (as "
                f"{self.before[content_hash]}), so all of them would go; leave it out, name another filter, or pass "
                "--again"
            )
        self.filter.inputs.setdefault(content_hash, os.path.basename(name))

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Around the end of a run: its filter is written before, and takes its name after."""
        if self.run.bloom is None or self.run.dry_run:
            yield
            return
        with self.filter.saving(self.run.bloom):
            yield

    def facts(self) -> Filter:
        """For the report."""
        filter, fill = self.filter, self.filter.fill()
        return Filter(
            capacity=filter.capacity,
            tables=filter.tables,
            hashes=filter.hashes,
            blocks=filter.shape.blocks,
            bytes=filter.nbytes,
            before=max(self.held),
            held=len(filter),
            asked=self.asked,
            new=self._gauge.new,
            fill=round(fill.share, 9),
            rate=float(f"{fill.rate:.6g}"),
            asked_rate=self.recipe.fp_rate_ppb / PPB,
            wrong=float(f"{self._gauge.wrong(fill.rate):.4g}"),
        )


class Gauge:
    """How many rows went by chance: the rate of a filter is counted from its bits as it fills.

    Of rows that came while the rate was r and that are like none before, a share 1 - r is found to be new. So a new
    ones say that a / (1 - r) came, and that a r / (1 - r) of them went. From a rate of a half on, few are left to say
    anything: such rows are taken to be as often like none before as those of the whole run are, by all that was found
    new (sum of a over sum of rows (1 - r)). Never more went than were called seen.

    Where the rate is counted depends on the number of rows asked about alone: 16 times while as many rows come as the
    filter is made for, and from 4 times as many on once for each sixty-fourth more.
    """

    def __init__(self, filter: BloomFilter) -> None:
        self._filter = filter
        self._rate = filter.fill().rate if len(filter) else 0.0  # where this piece began
        self._pieces: list[tuple[int, int, float]] = []  # rows, new ones, mean rate
        self._rows = self._new = 0  # of the piece that is under way
        self.asked = self.new = 0
        self._length = self._next()

    def _next(self) -> int:
        return max(16, self._filter.capacity // 16, self.asked // 64)

    @property
    def room(self) -> int:
        """Rows until the rate is counted again."""
        return self._length - self._rows

    def took(self, rows: int, new: int) -> None:
        """So many rows, at most `room`, were asked about, and so many of them were new."""
        self._rows += rows
        self._new += new
        self.asked += rows
        self.new += new
        if self._rows == self._length:
            rate = self._filter.fill().rate
            self._pieces.append((self._rows, self._new, (self._rate + rate) / 2))
            self._rate, self._rows, self._new = rate, 0, 0
            self._length = self._next()

    def wrong(self, rate: float) -> float:
        """Rows expected to have gone by chance; rate: of the filter now."""
        pieces = [*self._pieces, (self._rows, self._new, (self._rate + rate) / 2)]
        heard = sum(rows * (1.0 - r) for rows, _, r in pieces)
        share = min(1.0, self.new / heard) if heard > 0 else 1.0
        expected = 0.0
        for rows, new, r in pieces:
            went = new * r / (1.0 - r) if r < 0.5 else rows * share * r
            expected += min(went, float(rows - new))
        return expected


def stream_outcome(recipe: Recipe, status: U8, verdict: U8) -> tuple[Outcome, I64]:
    """Outcome of every row by its verdict, and the rows without a text to compare."""
    out = Outcome.nothing(len(status))
    out.reason[verdict & SEEN != 0] = BLOOM
    without_text = np.flatnonzero(verdict & NO_TEXT)
    if recipe.on_bad_row == "skip":
        out.reason[status == ROW_BAD] = BAD_ROW
    if recipe.on_no_text == "drop":
        out.reason[without_text] = NO_TEXT_ROW
    return out, without_text
