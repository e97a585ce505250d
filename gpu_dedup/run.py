"""Run: all that must not change the answer - the machine, the memory, the guards."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gpu_dedup.errors import RunError, check_types

DEVICES = ("auto", "cpu", "gpu")
WRITE = ("rows", "mask")
BACKENDS = ("numpy", "numba", "cuda")
MIN_MEMORY = 256 * 10**6

_SIZES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


def parse_size(text: str) -> int:
    """Bytes of '8GB', '512MiB', '1.5g', '1000000'. Raises RunError with the forms that work."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise RunError(f"size {text!r} is not understood; give bytes or a form like 512MB, 8GB, 16GiB")
    return int(float(match[1]) * _SIZES[match[2] or ""])


def default_memory() -> int:
    """A quarter of the machine's memory, at least 1 GB."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        total = 4 << 30
    return max(10**9, total // 4)


def usable_cpus() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


@dataclass(frozen=True)
class Run:
    """How to run. No field of it changes a single bit of the result; tests hold that (`audit` adds a part to it, and
    the rows in the filter that `bloom` names are as much an input as files are)."""

    device: str = "auto"
    backend: str | None = None  # None: chosen from the device and the size of the input
    gpus: int | None = None  # so many GPUs, from 0 on, each in a process of its own; None: see `backend.count_gpus`
    threads: int | None = None  # None: one per usable core
    batch_bytes: int = 4 << 20  # raw bytes of input per batch
    memory: int | None = None  # bytes that the tables in memory may take before they go to the work folder
    work_dir: str | None = None  # None: inside the output folder
    checkpoint: int = 256_000_000  # bytes of input after which what was read is kept for the next start; 0: never
    keep_work: bool = False  # leave the sketches in the work folder for runs with another threshold, bands or keeper
    fresh: bool = False  # begin anew, whatever an earlier start has left
    audit: int | None = None  # so many rows that stay are compared with all others by brute force, for the report
    bloom: str | None = None  # file of a Bloom filter to go on from and to save; its rows count as seen
    again: bool = False  # files whose rows `bloom` holds already are no error
    on_full: str = "stop"  # or warn: what more different rows than the recipe's capacity do
    df_table: str | None = None  # a table of document frequencies; its checksum is the recipe's
    save_df_table: str | None = None  # where the table that this run counts goes
    max_removed_ppm: int = 900_000  # near removals over rows read, from 1,000 rows, that stop a run before it writes
    write: str = "rows"  # "mask": bits that tell which rows stay, and no rows
    keep_removed: bool = False  # store the rows that go, so that `undo` can put the input together again
    report: str | None = None  # folder for log and report where the rows go to standard output
    overwrite: bool = False
    dry_run: bool = False
    progress: bool | None = None  # None: a bar where standard error is a terminal

    def __post_init__(self) -> None:
        check_types(self, RunError)
        if self.device not in DEVICES:
            raise RunError(f"device {self.device!r} is unknown; choose one of {', '.join(DEVICES)}")
        if self.backend is not None and self.backend not in BACKENDS:
            raise RunError(f"backend {self.backend!r} is unknown; choose one of {', '.join(BACKENDS)}")
        if self.backend in ("numpy", "numba") and self.device == "gpu":
            raise RunError(f"backend {self.backend} runs on the CPU but device is gpu; drop one of the two options")
        if self.backend == "cuda" and self.device == "cpu":
            raise RunError("backend cuda runs on the GPU but device is cpu; drop one of the two options")
        if self.gpus is not None and not 1 <= self.gpus <= 1024:
            raise RunError(f"gpus {self.gpus} is outside 1 to 1024")
        if self.gpus is not None and (self.device == "cpu" or self.backend in ("numpy", "numba")):
            raise RunError(
                f"gpus {self.gpus} asks for GPUs but device or backend is a CPU's; drop one of the two options"
            )
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise RunError(f"threads {self.threads} is outside 1 to 1024")
        if not 1 <= self.batch_bytes <= 1 << 30:
            raise RunError(f"batch of {self.batch_bytes} bytes is outside 1 byte to 1 GiB")
        if self.memory is not None and self.memory < MIN_MEMORY:
            raise RunError(f"memory {self.memory} bytes is too little; the least that works is {MIN_MEMORY // 10**6}MB")
        if self.checkpoint < 0:
            raise RunError(f"checkpoint {self.checkpoint} is below 0; give bytes such as 256MB, or 0 for none")
        if self.keep_work and not self.checkpoint:
            raise RunError("keep-work keeps checkpoints, and checkpoint 0 makes none; drop one of the two options")
        if self.write not in WRITE:
            raise RunError(f"write {self.write!r} is unknown; choose one of {', '.join(WRITE)}")
        if self.write == "mask" and self.keep_removed:
            raise RunError("write mask leaves the input as it is, so keep-removed has nothing to store; drop one")
        if self.dry_run and (self.write == "mask" or self.keep_removed):
            raise RunError("dry-run writes nothing; drop it, or drop --write mask and --keep-removed")
        if self.report == "":
            raise RunError("report '': a folder without a name; name a new folder")
        if self.audit is not None and self.audit < 1:
            raise RunError(f"audit {self.audit} looks at no row; give the number of rows to look at, such as 1000")
        if self.bloom == "":
            raise RunError("bloom '': a file without a name; name one for the filter")
        if self.again and self.bloom is None:
            raise RunError("again is about files that a saved filter holds, and there is none; name it with bloom")
        if self.on_full not in ("stop", "warn"):
            raise RunError(f"on-full {self.on_full!r} is unknown; choose stop or warn")
        for name, value in (("df-table", self.df_table), ("save-df-table", self.save_df_table)):
            if value == "":
                raise RunError(f"{name} '' names no file")
        if self.df_table is not None and self.save_df_table is not None:
            raise RunError("df-table gives a table and save-df-table keeps one that is counted; drop one of the two")
        if self.save_df_table is not None and self.dry_run:
            raise RunError("save-df-table writes a file, and a dry run writes nothing; drop one of the two")
        if not 0 <= self.max_removed_ppm <= 1_000_000:
            raise RunError(f"max-removed {self.max_removed_ppm / 1e6:g} is outside 0 to 1")

    @property
    def thread_count(self) -> int:
        return self.threads or usable_cpus()

    @property
    def memory_bytes(self) -> int:
        return self.memory or default_memory()
