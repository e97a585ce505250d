"""What all stages of one call share, and what is handed from one to the next."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from typing import Any

from gpu_dedup.backend import Backend
from gpu_dedup.batch import I64
from gpu_dedup.cluster import Gone
from gpu_dedup.collide import Candidates
from gpu_dedup.errors import RunError
from gpu_dedup.hamming import Near
from gpu_dedup.pipeline.exact import SORT
from gpu_dedup.pipeline.footprint import Footprint, gone_bytes
from gpu_dedup.pipeline.near import Heads, Layers
from gpu_dedup.pipeline.outcome import Outcome
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.stream import Stream
from gpu_dedup.pipeline.survey import Sketcher, Survey
from gpu_dedup.progress import Progress
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import Audit, HeavyBucket, Level
from gpu_dedup.run import Run
from gpu_dedup.spool import Budget, RaggedTable, Table
from gpu_dedup.write import OutputFolder


def private_folder(work_dir: str | None) -> str:
    """A new folder below the work folder, or the system's temporary one."""
    try:
        if work_dir is not None:
            os.makedirs(work_dir, exist_ok=True)
        return tempfile.mkdtemp(prefix="gpu-dedup-", dir=work_dir)
    except OSError as error:
        raise RunError(
            f"{work_dir or tempfile.gettempdir()}: cannot be used as work folder ({error.strerror}); "
            "name another with --work-dir"
        ) from None


class Job:
    """What all stages of one call share."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        backend: Backend,
        pool: Pool,
        progress: Progress,
        budget: Budget,
        folder: OutputFolder | None,
    ) -> None:
        self.recipe = recipe
        self.run = run
        self.backend = backend
        self.pool = pool
        self.progress = progress
        self.budget = budget
        self._folder = folder
        self.footprint: Footprint | None = None  # of a CPU
        self._work: str | None = None
        self._lock = threading.Lock()
        self._tables: list[Table | RaggedTable] = []

    def work_folder(self) -> str:
        """A folder for tables that outgrow the memory; made at the first need, removed at the end."""
        with self._lock:  # threads have tables of their own
            if self._work is None:
                if self.run.work_dir is not None:
                    self._work = private_folder(self.run.work_dir)
                elif self._folder is not None:
                    self._work = self._folder.work_folder()
                else:
                    self._work = private_folder(None)
            return self._work

    def table(self, dtype: Any, width: int | None) -> Table:
        table = Table(dtype, width, self.work_folder, self.budget)
        self._tables.append(table)
        return table

    def ragged(self, dtype: Any) -> RaggedTable:
        table = RaggedTable(dtype, self.work_folder, self.budget)
        self._tables.append(table)
        return table

    @property
    def sorted_rows(self) -> int:
        """Rows of the input that may be sorted at a time."""
        return 1 << 62 if self.footprint is None else max(1, self.footprint.work // SORT)

    def holds(self, name: str, nbytes: int, words: str) -> None:
        """See `Footprint.holds`; tables move to disk where they have no more room, the largest first."""
        if self.footprint is None:
            return
        self.footprint.holds(name, nbytes, words)
        for table in sorted(self._tables, key=lambda table: -table.held):
            if not self.budget.over:
                break
            table.move()

    def met_copies(self, count: int, by: str = "text") -> None:
        """So many rows were found to be copies."""
        name = "gone" if by == "text" else by
        self.holds(name, count * gone_bytes(self.recipe), f"{count:,} copies by {by}")

    def collide(self, heads: int) -> tuple[int, int]:
        """Threads that may look for buckets at once, and in how many parts of the heads."""
        threads = self.pool.threads
        return (threads, 1) if self.footprint is None else self.footprint.collide(heads, threads)

    @property
    def spilled(self) -> int:
        """Bytes of tables that outgrew the memory."""
        return sum(table.spilled for table in self._tables)

    def clean(self) -> None:
        for table in self._tables:
            table.close()
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)


@dataclass
class Found:
    """What the middle of the road knows."""

    outcome: Outcome
    sketcher: Sketcher  # with all that sketches take
    decision: Gone | None
    candidates: Candidates | Near | Layers | None
    ranked: Heads | None  # the heads that decision is about
    without_text: I64
    short_texts: int
    heavy: list[HeavyBucket]
    level0: Level | None = None
    frequencies: dict[str, Any] | None = None  # of SimHash's terms


@dataclass
class Searched:
    """The road up to the outcome of every row. gpus: that took part; why: the reason for the backend, in words."""

    sketcher: Sketcher
    survey: Survey
    found: Found
    audit: Audit | None
    gpus: int
    why: str
    stream: Stream | None
