"""Tables that grow by batches: in memory while a shared budget lasts, then in one file of the work folder.

`Table` has rows of one width, `RaggedTable` a run of items per document. Both are filled by one thread (`append`,
`finish`) and then read by any number of threads. On disk they are read by pread: pages of a mapped file count as
resident memory, and a fault on them cannot be reported.

A file is 64 bytes of head, then the rows as they came, little-endian, nothing in between:

    0   8 bytes   GDSPOOL and a NUL
    8   uint32    version
    12  uint32    bytes of an item
    16  16 bytes  dtype as NumPy spells it, ASCII, NUL-padded
    32  int64     items in a row; -1 for a table of plain items
    40  int64     rows; -1 until the table is finished
    48  uint64    XXH3-64 of all row bytes, in the order of the file
    56  8 bytes   0
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gpu_dedup.batch import I64, U64
from gpu_dedup.errors import InternalError, OutputError, disk_error

MAGIC = b"GDSPOOL\0"
VERSION = 1
HEAD = 64
_HEAD = struct.Struct("<8sII16sqqQ8x")
_OTHER = "another folder with --work-dir"

Array = npt.NDArray[Any]

HUGE = 16 << 20  # a larger table asks for pages of 2 MiB: a fault on each 4 KiB costs more than filling it
WRITE_BUFFER = 1 << 20  # bytes gathered before a write
READ_GAP = 16 << 10  # rows closer than this are fetched by one read: a read costs about as much as copying the gap
READ_SPAN = 4 << 20  # and no read is longer
MAX_PARTS = 256  # files that a partition may have open

_numbers = itertools.count()


class Budget:
    """Bytes that the tables of a run may hold in memory together. Safe between threads."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    @property
    def over(self) -> bool:
        """Whether more is there than may be, after `limit`."""
        return self._used > self.total

    def limit(self, total: int) -> None:
        """From now on so many bytes in all. What is there stays: a table over it moves when it grows next."""
        with self._lock:
            self.total = total

    def take(self, count: int) -> bool:
        """Reserve `count` bytes; False, and nothing reserved, if they are not there."""
        with self._lock:
            if self._used + count > self.total:
                return False
            self._used += count
            return True

    def give(self, count: int) -> None:
        """Give back what `take` reserved."""
        with self._lock:
            if count > self._used:
                raise InternalError(f"{count} bytes given back of {self._used} that were taken")
            self._used -= count


class Table:
    """Rows of one type and width.

    dtype   of the items; a fixed-size NumPy type
    width   items in a row: arrays are [m, width]; None for arrays [m]
    folder  asked for the folder of the file when the budget ends, not before
    budget  shared by the tables of a run

    OutputError where the disk refuses, with the path and the remedy.
    """

    def __init__(self, dtype: Any, width: int | None, folder: Callable[[], str], budget: Budget) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.width = width
        self._row: int = self.dtype.itemsize * (1 if width is None else width)
        self._folder = folder
        self._budget = budget
        self._rows = 0
        self._taken = 0
        self._memory: mmap.mmap | None = None
        self._file: _File | None = None
        self._finished = False
        self._closed = False

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, wherever they are."""
        return self._rows * self._row

    @property
    def path(self) -> str | None:
        """The file; None while the table is in memory."""
        return None if self._file is None else self._file.path

    # -- filling ----------------------------------------------------------------------------------------------------

    @property
    def spilled(self) -> int:
        """Bytes of rows that are on disk."""
        return 0 if self.path is None else self.nbytes

    def append(self, rows: Array) -> None:
        """Add rows [m] or [m, width] of the table's dtype; they are copied."""
        if self._finished or self._closed:
            raise InternalError("a table grows no more once it is finished")
        shape = rows.shape[1:]
        if rows.dtype != self.dtype or shape != self._shape(0)[1:]:
            raise InternalError(f"rows {rows.dtype}{rows.shape} do not fit a table of {self.dtype} x {self.width}")
        count = len(rows) * self._row
        if count:
            if self._file is None and self._reserve(count):
                self._view(self._rows, self._rows + len(rows))[...] = rows
            else:
                file = self._file or self._spill()
                file.add(np.ascontiguousarray(rows))
        self._rows += len(rows)

    @property
    def held(self) -> int:
        """Bytes of the budget that the rows in memory have."""
        return self._taken

    def move(self) -> None:
        """To disk with it, so that others have its memory: for tables that nobody reads at the moment. Arrays that were
        handed out stay good, and keep their memory."""
        if self._file is None and self._rows and not self._closed:
            self._spill()
            if self._finished and self._file is not None:
                self._file.finish(self._rows)

    def finish(self) -> None:
        """No more rows come; from here on the table can be read."""
        if not self._finished and self._file is not None:
            self._file.finish(self._rows)
        self._finished = True

    def _reserve(self, count: int) -> bool:
        """True if `count` more bytes may stay in memory and have their room there."""
        if not self._budget.take(count):
            return False
        self._taken += count
        try:
            self._grow(self._rows * self._row + count)
        except OSError:  # the system has less than the budget promised: the disk will do
            return False
        return True

    def _grow(self, size: int) -> None:
        """Room for `size` bytes. Pages are moved by address (mremap), not copied, and count once written to."""
        if self._memory is None:
            self._memory = mmap.mmap(-1, max(size, 1 << 16), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        elif size > len(self._memory):
            self._memory.resize(max(size, len(self._memory) + (len(self._memory) >> 2)))
        if len(self._memory) >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self._memory.madvise(mmap.MADV_HUGEPAGE)

    def _spill(self) -> _File:
        """Move what is in memory to a new file, and give the memory back."""
        file = self._file = _File(self._folder(), self.dtype, self.width)
        step = max(1, READ_SPAN // self._row)
        for start in range(0, self._rows, step):
            file.add(self._view(start, min(start + step, self._rows)))
        self._drop_memory()
        return file

    def _drop_memory(self) -> None:
        # Not closed: a caller may still hold an array over it, and the last of them frees it.
        self._memory = None
        self._budget.give(self._taken)
        self._taken = 0

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def array(self) -> Array | None:
        """All rows, [n] or [n, width], without a copy; None if they are on disk."""
        self._readable()
        return None if self._file is not None else self._view(0, self._rows)

    def slice(self, start: int, stop: int) -> Array:
        """Rows start <= i < stop. Without a copy in memory, read from the file otherwise."""
        self._readable()
        if not 0 <= start <= stop <= self._rows:
            raise InternalError(f"rows {start}:{stop} of a table of {self._rows}")
        if self._file is None:
            return self._view(start, stop)
        out = np.empty(self._shape(stop - start), self.dtype)
        self._file.read(start * self._row, out)
        return out

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """All rows in order, some megabytes at a time, each block with the number of its first row."""
        step = max(1, READ_SPAN // max(self._row, 1))
        for start in range(0, self._rows, step):
            yield start, self.slice(start, min(start + step, self._rows))

    def take(self, rows: I64) -> Array:
        """Rows in the order asked for, repeats allowed, as a new array.

        rows  int64[m], each 0 <= i < n
        """
        self._readable()
        rows = np.asarray(rows, np.int64)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._rows:
            raise InternalError(f"rows {int(rows.min())} to {int(rows.max())} of a table of {self._rows}")
        if self._file is None:
            return self._view(0, self._rows)[rows]
        if not len(rows) or not self._row:
            return np.empty(self._shape(len(rows)), self.dtype)
        if bool((rows[1:] > rows[:-1]).all()):
            return self._read_ascending(rows)
        unique, place = np.unique(rows, return_inverse=True)
        return self._read_ascending(unique)[place.reshape(-1)]

    def _read_ascending(self, rows: I64) -> Array:
        out = np.empty(self._shape(len(rows)), self.dtype)
        for first, last in _groups(rows, rows + 1, self._row):
            low = int(rows[first])
            out[first:last] = self.slice(low, int(rows[last - 1]) + 1)[rows[first:last] - low]
        return out

    def _shape(self, count: int) -> tuple[int, ...]:
        return (count,) if self.width is None else (count, self.width)

    def _view(self, start: int, stop: int) -> Array:
        if self._memory is None or not self._row:
            return np.empty(self._shape(stop - start), self.dtype)
        count = (stop - start) * (1 if self.width is None else self.width)
        flat = np.frombuffer(self._memory, self.dtype, count, start * self._row)
        return flat.reshape(self._shape(stop - start))

    def _readable(self) -> None:
        if not self._finished or self._closed:
            raise InternalError("a table is read after it is finished and before it is closed")

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the memory back, or delete the file. Arrays that were handed out stay good."""
        self._closed = True
        self._drop_memory()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Numbers:
    """int64[m], ascending or not, in a table; in no memory at all while entry i is i."""

    def __init__(self, table: Callable[[Any, int | None], Table]) -> None:
        """table: makes one, for a dtype and a width."""
        self._make = table
        self._table: Table | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def plain(self) -> bool:
        """Whether entry i is i throughout."""
        return self._table is None

    def append(self, numbers: I64) -> None:
        """Add the next entries."""
        if self._table is None and not np.array_equal(numbers, self._counting(len(numbers))):
            self._table = self._make(np.int64, None)
            step = READ_SPAN // 8
            for start in range(0, self._count, step):
                self._table.append(np.arange(start, min(start + step, self._count), dtype=np.int64))
        if self._table is not None:
            self._table.append(numbers)
        self._count += len(numbers)

    def _counting(self, count: int) -> I64:
        return np.arange(self._count, self._count + count, dtype=np.int64)

    def finish(self) -> None:
        """No more entries come; from here on they can be read."""
        if self._table is not None:
            self._table.finish()

    def slice(self, start: int, stop: int) -> I64:
        """Entries start <= i < stop."""
        return np.arange(start, stop, dtype=np.int64) if self._table is None else self._table.slice(start, stop)

    def take(self, places: I64) -> I64:
        """Entries in the order asked for; see `Table.take`."""
        return np.array(places, np.int64) if self._table is None else self._table.take(places)

    @property
    def array(self) -> I64:
        """All of them, in memory."""
        return self.slice(0, self._count)

    def blocks(self) -> Iterator[tuple[int, I64]]:
        """All entries in order, some megabytes at a time, each block with the number of its first entry."""
        step = READ_SPAN // 8
        for start in range(0, self._count, step):
            yield start, self.slice(start, min(start + step, self._count))


def partition(
    blocks: Iterable[tuple[U64, Array]], parts: int, width: int, table: Callable[[Any, int | None], Table]
) -> list[Table]:
    """Records in parts by the first bits of a key, so that records of one key are in one part, in the order they came.

    blocks  (uint64[k] keys, uint64[k, width] records)
    parts   a power of two, at most MAX_PARTS; some parts are larger where keys are not evenly spread
    table   makes one, for a dtype and a width; the caller closes those it gets
    """
    if parts & (parts - 1) or not 1 <= parts <= MAX_PARTS:
        raise InternalError(f"{parts} parts; a power of two up to {MAX_PARTS} is needed")
    out = [table(np.uint64, width) for _ in range(parts)]
    shift = np.uint64(64 - parts.bit_length() + 1)
    for keys, records in blocks:
        part = np.zeros(len(keys), np.uint16) if parts == 1 else (keys >> shift).astype(np.uint16)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=parts))
        for number, (first, last) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            if first < last:
                out[number].append(records[order[first:last]])
    for one in out:
        one.finish()
    return out


class RaggedTable:
    """A run of items for each document.

    dtype   of the items, uint64 or uint32 (any fixed-size type works)
    folder, budget  as for Table
    """

    def __init__(self, dtype: Any, folder: Callable[[], str], budget: Budget) -> None:
        self._items = Table(dtype, None, folder, budget)
        self._ends = Table(np.int64, None, folder, budget)  # of document i in items; it begins where i - 1 ends

    @classmethod
    def over(cls, items: Table, ends: Table) -> RaggedTable:
        """Of tables that were filled apart. ends: int64, where each document ends in items."""
        out = cls.__new__(cls)
        out._items, out._ends = items, ends
        return out

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def nbytes(self) -> int:
        """Bytes of all items and of their offsets, wherever they are."""
        return self._items.nbytes + self._ends.nbytes

    @property
    def held(self) -> int:
        """Bytes of the budget that what is in memory has."""
        return self._items.held + self._ends.held

    def move(self) -> None:
        """To disk with it; see `Table.move`."""
        self._items.move()
        self._ends.move()

    @property
    def spilled(self) -> int:
        """Bytes of items and ends that are on disk."""
        return self._items.spilled + self._ends.spilled

    def append(self, items: Array, offsets: I64) -> None:
        """Add k documents; document i is items[offsets[i]:offsets[i + 1]].

        items    [>= offsets[-1]] of the table's dtype
        offsets  int64[k + 1], non-decreasing; offsets[0] may be above 0
        """
        first, last = int(offsets[0]), int(offsets[-1])
        if not 0 <= first <= last <= len(items) or bool((offsets[1:] < offsets[:-1]).any()):
            raise InternalError(f"offsets {first} to {last} do not fit {len(items)} items")
        self._ends.append(np.asarray(offsets[1:], np.int64) - first + len(self._items))
        self._items.append(items[first:last])

    def finish(self) -> None:
        """No more documents come; from here on the table can be read."""
        self._items.finish()
        self._ends.finish()

    def whole(self) -> tuple[Array, I64] | None:
        """All items, without a copy, and offsets int64[n + 1]; None if they are on disk."""
        items, ends = self._items.array, self._ends.array
        return None if items is None or ends is None else (items, np.concatenate([np.zeros(1, np.int64), ends]))

    def lengths(self) -> I64:
        """int64[n]: items of each document."""
        return np.diff(self._ends.slice(0, len(self)), prepend=np.int64(0))

    def take(self, docs: I64) -> tuple[Array, I64]:
        """Documents in the order asked for, repeats allowed.

        docs     int64[m], each 0 <= i < n
        returns  items, offsets int64[m + 1]: document docs[j] is items[offsets[j]:offsets[j + 1]]
        """
        docs = np.asarray(docs, np.int64)
        ends = self._ends.take(docs)
        begins = np.zeros(len(docs), np.int64)
        later = docs > 0
        begins[later] = self._ends.take(docs[later] - 1)
        offsets = np.zeros(len(docs) + 1, np.int64)
        np.cumsum(ends - begins, out=offsets[1:])
        out = np.empty(int(offsets[-1]), self._items.dtype)
        whole = self._items.array
        if whole is not None:
            for first, last in _steps(offsets):
                out[offsets[first] : offsets[last]] = whole[_ranges(begins[first:last], ends[first:last])]
            return out, offsets
        order = np.argsort(begins, kind="stable")
        low, high = begins[order], ends[order]
        for first, last in _groups(low, high, self._items.dtype.itemsize):
            base = int(low[first])
            # A long document makes a group of its own, of any length.
            block = self._items.slice(base, int(high[first:last].max()))
            some = order[first:last]
            if last - first == 1:
                out[offsets[some[0]] : offsets[some[0] + 1]] = block
            else:
                to = _ranges(offsets[some], offsets[some + 1])
                out[to] = block[_ranges(low[first:last] - base, high[first:last] - base)]
        return out, offsets

    def close(self) -> None:
        """Give the memory back, or delete the files."""
        self._items.close()
        self._ends.close()

    def __enter__(self) -> RaggedTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _groups(low: I64, high: I64, size: int) -> Iterator[tuple[int, int]]:
    """Cut stretches low[i]:high[i] (items of `size` bytes, low ascending) into groups that one read fetches well.

    Yields (first, last), first <= i < last. A group has no gap over READ_GAP and, if it has two stretches, no more than
    READ_SPAN bytes in all, unless they overlap.
    """
    reach = np.maximum.accumulate(high)
    cuts = np.flatnonzero((low[1:] - reach[:-1]) * size > READ_GAP) + 1
    span = max(1, READ_SPAN // size)
    for start, stop in itertools.pairwise([0, *cuts.tolist(), len(low)]):
        while start < stop:
            end = start + int(np.searchsorted(reach[start:stop], int(low[start]) + span, side="right"))
            end = max(end, start + 1)
            yield start, end
            start = end


def _steps(offsets: I64) -> Iterator[tuple[int, int]]:
    """Cut documents into parts of about a million items, so that the index of a gather stays small."""
    first, n = 0, len(offsets) - 1
    while first < n:
        last = int(np.searchsorted(offsets, int(offsets[first]) + (1 << 20), side="right")) - 1
        last = min(max(last, first + 1), n)
        yield first, last
        first = last


def _ranges(begins: I64, ends: I64) -> I64:
    """begins[0], begins[0] + 1, ... ends[0] - 1, begins[1], ..."""
    lengths = ends - begins
    before = np.cumsum(lengths) - lengths
    return np.repeat(begins - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


class _File:
    """The file of a table: written once from front to back, then read anywhere."""

    def __init__(self, folder: str, dtype: np.dtype[Any], width: int | None) -> None:
        self.path = os.path.join(folder, f"table-{os.getpid()}-{next(_numbers)}.spool")
        self._dtype = dtype
        self._width = width
        self._hash = xxhash.xxh3_64()
        self._pending = bytearray()
        self._descriptor = -1
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise disk_error(error, self.path, _OTHER) from error
        self._write(self._head(-1, 0))

    def _head(self, rows: int, digest: int) -> bytes:
        width = -1 if self._width is None else self._width
        return _HEAD.pack(MAGIC, VERSION, self._dtype.itemsize, self._dtype.str.encode(), width, rows, digest)

    def add(self, rows: Array) -> None:
        data = rows.reshape(-1).view(np.uint8).data
        self._hash.update(data)
        if len(self._pending) + len(data) < WRITE_BUFFER:
            self._pending += data
            return
        self._flush()
        self._write(data)

    def finish(self, rows: int) -> None:
        self._flush()
        try:
            os.pwrite(self._descriptor, self._head(rows, self._hash.intdigest()), 0)
        except OSError as error:
            raise disk_error(error, self.path, _OTHER) from error

    def _flush(self) -> None:
        pending, self._pending = self._pending, bytearray()
        self._write(pending)

    def _write(self, data: Any) -> None:
        view = memoryview(data)
        try:
            while len(view):
                view = view[os.write(self._descriptor, view[: 1 << 30]) :]
        except OSError as error:
            raise disk_error(error, self.path, _OTHER) from error

    def read(self, start: int, out: Array) -> None:
        """Fill `out` from byte `start` of the rows on."""
        if not out.size:
            return
        view = out.reshape(-1).view(np.uint8).data
        at = HEAD + start
        while len(view):
            try:
                count = os.preadv(self._descriptor, [view[: 1 << 30]], at)
            except OSError as error:
                raise OutputError(f"{self.path}: cannot be read back ({error.strerror}); choose {_OTHER}") from error
            if not count:
                raise OutputError(
                    f"{self.path}: was cut short by another program; choose {_OTHER} that nobody else cleans"
                )
            view = view[count:]
            at += count

    def close(self) -> None:
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):  # already gone with its folder
            os.unlink(self.path)
        os.close(self._descriptor)
        self._descriptor = -1


def _read_head(file: Any, path: str) -> tuple[int, np.dtype[Any], int | None, int, int]:
    """Bytes of a row, dtype, width, rows and checksum of a finished table's file. Raises OutputError."""
    head = file.read(HEAD)
    if len(head) < HEAD or head[:8] != MAGIC:
        raise OutputError(f"{path}: is not a table of gpu-dedup; remove it and run again")
    _, version, item, name, width, rows, digest = _HEAD.unpack(head)
    if version != VERSION:
        raise OutputError(f"{path}: has version {version}, this program reads {VERSION}; remove it and run again")
    if rows < 0:
        raise OutputError(f"{path}: was not finished; remove it and run again")
    row = item * (1 if width < 0 else width)
    return row, np.dtype(name.rstrip(b"\0").decode()), None if width < 0 else width, rows, digest


def _damaged(path: str, count: int, wanted: int) -> OutputError:
    return OutputError(f"{path}: is damaged ({count} bytes of {wanted}, or other bytes); remove it and run again")


def check_file(path: str) -> tuple[np.dtype[Any], int | None, int]:
    """dtype, width and number of rows of a finished table's file, after its head and checksum were found right.

    Raises OutputError naming what does not fit. The running process trusts its own files; this is for one that finds
    them later.
    """
    try:
        with open(path, "rb") as file:
            row, dtype, width, rows, digest = _read_head(file, path)
            hasher = xxhash.xxh3_64()
            count = 0
            while block := file.read(WRITE_BUFFER):
                hasher.update(block)
                count += len(block)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror}); remove it and run again") from error
    if count != rows * row or hasher.intdigest() != digest:
        raise _damaged(path, count, rows * row)
    return dtype, width, rows


def read_blocks(path: str, dtype: Any, width: int | None, rows: int) -> Iterator[Array]:
    """The rows of a table that another process has finished, in order, some megabytes at a time.

    dtype, width, rows   as they must be
    Raises OutputError as `check_file` does, and for another table than this one. The checksum is known after the last
    block, so what was made of the blocks counts only once all were taken.
    """
    try:
        with open(path, "rb") as file:
            row, *found, digest = _read_head(file, path)
            wanted = [np.dtype(dtype).newbyteorder("<"), width, rows]
            if found != wanted:
                raise OutputError(f"{path}: holds {found[2]} rows of {found[0]} x {found[1]}, not {rows}; run again")
            step = max(1, READ_SPAN // max(row, 1))
            shape = () if width is None else (width,)
            hasher = xxhash.xxh3_64()
            for start in range(0, rows, step):
                block = np.empty((min(step, rows - start), *shape), wanted[0])
                data = block.reshape(-1).view(np.uint8).data
                count = file.readinto(data)
                if count != len(data):
                    raise _damaged(path, start * row + count, rows * row)
                hasher.update(data)
                yield block
            if file.read(1) or hasher.intdigest() != digest:
                raise _damaged(path, rows * row, rows * row)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror}); remove it and run again") from error
