"""The CUDA backend: the same functions as the others, arrays in and out on the host, the work on one GPU.

    text       JSON, UTF-8 and normalising stay on the host (numba kernels). A normalised tape goes up once, whole,
               at its first use; digest, sketch and shingle sets of the batch are made from that copy
    tables     signatures, buckets and sets that several calls look at stay on the device while their host arrays live.
               Such an array is marked read-only: a change would not reach the copy
    memory     a budget of the memory that was free at the start. Work is cut by bytes to fit in it; where the device
               runs out all the same, the pool is emptied and the batch halved, for good, and that is said once
    threads    one at a time, by a lock, on a stream of its own. Everything a call queued is done when it returns

Called from any thread of this process, never after a fork: a process of its own for each GPU.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpu_dedup.backend import AuditIndex, Extracted, Fingerprints, Sketches, host_backend
from gpu_dedup.backend.cuda_device import (
    ON_CPU,
    GpuFacts,
    check,
    compile_one,
    count_devices,
    facts,
    first_line,
    load_cupy,
)
from gpu_dedup.batch import I64, U8, U32, U64, Bool, Tape
from gpu_dedup.errors import GpuDedupError, RunError

T = TypeVar("T")
Array = npt.NDArray[Any]

LEAST_BUDGET = 8 << 20  # bytes; a batch that does not fit in so much is not cut further
RESERVE_SHARE = 8  # one part in so many of the free memory is left to others: the driver, CuPy's own scratch
GATHER_PAIRS = 1 << 16  # pairs at a time whose sets are brought up for them alone
INDEX = 1 << 31  # device arrays are shorter


@dataclass(frozen=True, eq=False)
class DeviceTape(Tape):
    """A tape with a place for its copy on a device; see `CudaBackend.normalise`."""

    copy: list[Any] = field(default_factory=list, repr=False)


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """The table of a Bloom filter on the device, uint64[blocks, 8]; see `CudaBackend.bloom_table`."""

    words: Any


class Residents:
    """Device copies of host arrays, for as long as these live, within a number of bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.used = 0
        # An RLock: the collector may take an array away, and so call `_gone`, in the middle of any of these methods.
        self._lock = threading.RLock()
        self._held: dict[int, tuple[weakref.ref[Array], Any, int]] = {}

    def get(self, array: Array) -> Any:
        """The copy of this very array object; None if there is none."""
        with self._lock:
            found = self._held.get(id(array))
            return found[1] if found is not None and found[0]() is array else None

    def keep(self, array: Array, copy: Any) -> bool:
        """Keep a copy, if there is room for it. The array is read-only from then on."""
        key, size = id(array), int(copy.nbytes)
        with self._lock:
            if self.used + size > self.room:
                return False
            array.flags.writeable = False
            before = self._take(key)
            self._held[key] = (weakref.ref(array, lambda gone: self._gone(key, gone)), copy, size)
            self.used += size
        del before
        return True

    def clear(self) -> None:
        with self._lock:
            before, self._held = self._held, {}
            self.used = 0
        del before

    def _gone(self, key: int, reference: weakref.ref[Array]) -> None:
        before = None
        with self._lock:
            held = self._held.get(key)
            if held is not None and held[0] is reference:  # the number of a dead object may be another's by now
                before = self._take(key)
            del held
        del before

    def _take(self, key: int) -> Any:
        """Out with a copy; the caller lets go of it only after the lock, as giving memory back takes CuPy's own."""
        held = self._held.pop(key, None)
        if held is not None:
            self.used -= held[2]
        return held


class CudaBackend:
    """See the head of this file; the methods are those of `gpu_dedup.backend.Backend`."""

    name = "cuda"

    def __init__(self, cupy: Any, found: GpuFacts) -> None:
        """cupy: the module. found: a device that has passed `cuda_device.check`."""
        self.facts = found
        self.host = host_backend("numba")
        self.warmed: set[tuple[bool, ...]] = set()
        self.note: Callable[[str], None] = lambda text: None
        self._cupy = cupy
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._tables = 0  # bytes of Bloom filters on the device
        self._said = False  # that the device ran out of memory
        with cupy.cuda.Device(found.index):
            self._stream = cupy.cuda.Stream(non_blocking=True)
        free = found.free - found.free // RESERVE_SHARE
        # Copies that stay take up to half; the rest is for the batch at work.
        self._residents = Residents(free // 2)
        self._budget = free // 2

    @property
    def device(self) -> str:
        """The device in words, for the report."""
        return f"{self.facts}, {self.facts.free / 1e9:.1f} GB free"

    def visible(self) -> int:
        """GPUs that this process could use."""
        return count_devices(self._cupy)

    # ---- how the device is used --------------------------------------------------------------------------------------

    @contextmanager
    def _here(self) -> Iterator[None]:
        """This device and stream, for this thread alone."""
        if os.getpid() != self._process:
            raise RunError("a GPU that was opened before a fork does not work after it; start processes by spawn")
        with self._lock, self._cupy.cuda.Device(self.facts.index), self._stream:
            yield

    def _do(self, work: Callable[[int], T]) -> T:
        """work(budget in bytes) on the device. Out of memory: empty the pool, halve the budget, once more.

        Raises RunError for any other fault of the device, and where the least budget does not help.
        """
        with self._here():
            while True:
                try:
                    return work(self._budget)
                except MemoryError as error:  # CuPy's own kind, what its sorts throw, and sorts that went wrong
                    if type(error).__module__.startswith("numpy"):
                        raise  # it is the host that is full
                    text = first_line(error)
                except GpuDedupError:
                    raise
                except RuntimeError as error:  # CuPy's kinds are, and so are the checks of sums
                    raise RunError(
                        f"{self.facts}: {first_line(error)}; look at its memory and health (nvidia-smi), {ON_CPU}"
                    ) from error
                # Only here, when the error and with it the frames that hold arrays are gone, can memory come back.
                self._halve(text)

    def _halve(self, text: str) -> None:
        if self._budget <= LEAST_BUDGET:
            raise RunError(
                f"{self.facts} has too little memory ({text}) even for batches of {self._budget >> 20} MiB; "
                f"end what else runs on it, split the longest texts, {ON_CPU}"
            )
        self._residents.clear()
        self._residents.room //= 2
        self._budget = max(self._budget // 2, LEAST_BUDGET)
        self._cupy.get_default_memory_pool().free_all_blocks()
        if not self._said:
            self._said = True
            self.note(f"{self.facts} ran out of memory; smaller batches from here on (the answer is the same)")

    def _up(self, array: Array, dtype: npt.DTypeLike) -> Any:
        """Device copy of a host array: the one that is kept, or a new one for this call."""
        found = self._residents.get(array)
        return found if found is not None else self._cupy.asarray(np.ascontiguousarray(array, dtype))

    def _up_to_stay(self, array: Array, dtype: npt.DTypeLike) -> Any:
        """The same, and the new one is kept for later calls."""
        found = self._residents.get(array)
        if found is None:
            found = self._up(array, dtype)
            if array.dtype == dtype and array.flags.c_contiguous:
                self._residents.keep(array, found)
        return found

    def _down(self, copy: Any, keep: bool = False) -> Array:
        """A device array on the host; `keep` its copy, too."""
        out: Array = copy.get()
        if keep:
            self._residents.keep(out, copy)
        return out

    # ---- text --------------------------------------------------------------------------------------------------------

    def extract_jsonl(
        self, data: U8, size: int, fields: Sequence[str], extra: Sequence[str], want: Bool | None
    ) -> Extracted:
        return self.host.extract_jsonl(data, size, fields, extra, want)

    def scan_csv(self, data: U8, size: int, delimiter: int) -> tuple[I64, int]:
        return self.host.scan_csv(data, size, delimiter)

    def split_csv(self, data: U8, starts: I64, delimiter: int, columns: I64, want: Bool | None) -> tuple[I64, I64, U8]:
        return self.host.split_csv(data, starts, delimiter, columns, want)

    def csv_texts(self, data: U8, spans: I64, kinds: U8, good: Bool) -> Tape:
        return self.host.csv_texts(data, spans, kinds, good)

    def valid_utf8(self, tape: Tape) -> Bool:
        return self.host.valid_utf8(tape)

    def code_points(self, tape: Tape) -> I64:
        return self.host.code_points(tape)

    def decode(self, tape: Tape) -> tuple[U32, I64]:
        return self.host.decode(tape)

    def normalise(self, tape: Tape, steps: int) -> Tape:
        made = self.host.normalise(tape, steps)
        return DeviceTape(made.blob, made.offsets)

    def trim(self, tape: Tape, words: Tape, blank: bool, most: int) -> Tape:
        made = self.host.trim(tape, words, blank, most)
        return tape if made.blob is tape.blob else DeviceTape(made.blob, made.offsets)

    def _pieces(self, tape: Tape, select: I64, room: int) -> Iterator[tuple[int, int, Any, I64, I64]]:
        """(first, last, blob on the device, offsets, select) for runs select[first:last] whose texts can be up at once.

        Usually one: the whole tape, whose copy stays with it. `room`: bytes of text."""
        from gpu_dedup.kernels.tape_cuda import batches

        if tape.nbytes <= room:
            copy = tape.copy if isinstance(tape, DeviceTape) else []
            if not copy:
                copy.append(self._cupy.asarray(tape.blob[tape.offsets[0] : tape.offsets[-1]]))
            yield 0, len(select), copy[0], tape.offsets - tape.offsets[0], select
            return
        if isinstance(tape, DeviceTape):
            tape.copy.clear()
        for first, last in batches(tape.offsets, select, room):
            some = select[first:last]
            starts, ends = tape.offsets[some], tape.offsets[some + 1]
            offsets = np.zeros(last - first + 1, np.int64)
            np.cumsum(ends - starts, out=offsets[1:])
            blob = np.empty(int(offsets[-1]), np.uint8)
            for i in range(last - first):
                blob[offsets[i] : offsets[i + 1]] = tape.blob[starts[i] : ends[i]]
            yield first, last, self._cupy.asarray(blob), offsets, np.arange(last - first, dtype=np.int64)

    def _too_long(self, tape: Tape, select: I64) -> None:
        from gpu_dedup.kernels.tape_cuda import LARGEST

        longest = int((tape.offsets[select + 1] - tape.offsets[select]).max(initial=0))
        if longest > LARGEST:
            raise RunError(f"a text of {longest} bytes is over the {LARGEST} that a GPU takes; split it, {ON_CPU}")

    def digest(self, tape: Tape) -> U64:
        from gpu_dedup.kernels.digest_cuda import BATCH, digest
        from gpu_dedup.kernels.digest_ref import check as check_text

        check_text(tape.blob, tape.offsets)
        every = np.arange(len(tape), dtype=np.int64)
        self._too_long(tape, every)

        def work(budget: int) -> U64:
            out = np.empty((len(tape), 2), np.uint64)
            room = budget // 4  # the text twice, offsets, chunk hashes
            for first, last, blob, offsets, _ in self._pieces(tape, every, room):
                out[first:last] = digest(blob, offsets, min(room, BATCH)).get()
            return out

        return self._do(work)

    def sketch(self, tape: Tape, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32) -> Sketches:
        from gpu_dedup.kernels.sketch_cuda import sketch

        return self._sketch(sketch, len(a), tape, select, unit, n, stop, a, b)

    def fast_sketch(self, tape: Tape, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32) -> Sketches:
        from gpu_dedup.kernels.fastsketch_cuda import fast_sketch
        from gpu_dedup.kernels.fastsketch_ref import check_slots

        return self._sketch(fast_sketch, check_slots(a, b), tape, select, unit, n, stop, a, b)

    def _sketch(
        self, sketch: Callable[..., tuple[Any, Any, Any]], slots: int, tape: Tape, select: I64, unit: int, n: int,
        stop: U64, a: U32, b: U32,
    ) -> Sketches:  # fmt: skip
        """Sketches of so many slots by one of the fused kernels, in parts that fit."""
        from gpu_dedup.kernels.sketch_cuda import BATCH, PEAK, PEAK_WITH_STOPS
        from gpu_dedup.kernels.units_ref import check as check_text

        check_text(tape.blob, tape.offsets, select, unit, n)
        self._too_long(tape, select)

        def work(budget: int) -> Sketches:
            room = budget // (2 * (PEAK_WITH_STOPS if len(stop) else PEAK))
            signatures = np.empty((len(select), slots), np.uint32)
            units, kept = np.empty(len(select), np.int64), np.empty(len(select), np.int64)
            step = max(1, min(budget // 4 // (4 * slots + 64), (INDEX - 1) // max(slots, 1)))  # rows whose sketches fit
            for first, last, blob, offsets, some in self._pieces(tape, select, room):
                for begin in range(0, last - first, step):
                    part = np.ascontiguousarray(some[begin : begin + step])
                    made = sketch(blob, offsets, part, unit, n, stop, a, b, min(room, BATCH))
                    to = slice(first + begin, first + begin + len(part))
                    if len(part) == len(select):
                        signatures = self._down(made[0], keep=True)
                    else:
                        signatures[to] = made[0].get()
                    units[to], kept[to] = made[1].get(), made[2].get()
            return Sketches(signatures, units, kept)

        return self._do(work)

    def fingerprints(
        self, tape: Tape, select: I64, unit: int, n: int, stop: U64, rule: int, idf: U32, top: int
    ) -> Fingerprints:
        from gpu_dedup.kernels.simhash_cuda import BATCH, PEAK, PEAK_TFIDF, fingerprints
        from gpu_dedup.kernels.simhash_ref import check_rule
        from gpu_dedup.kernels.units_ref import check as check_text

        check_text(tape.blob, tape.offsets, select, unit, n)
        check_rule(rule, idf, top)
        self._too_long(tape, select)

        def work(budget: int) -> Fingerprints:
            room = min(budget // (PEAK_TFIDF if len(idf) else PEAK), BATCH)
            weights = self._up_to_stay(idf, np.uint32) if len(idf) else None
            values = np.empty(len(select), np.uint64)
            units, kept = np.empty(len(select), np.int64), np.empty(len(select), np.int64)
            for first, last, blob, offsets, some in self._pieces(tape, select, room):
                made = fingerprints(blob, offsets, some, unit, n, stop, rule, weights, top, room)
                values[first:last], units[first:last], kept[first:last] = (array.get() for array in made)
            return Fingerprints(values, units, kept)

        return self._do(work)

    def cells(self, tape: Tape, select: I64, unit: int, n: int, stop: U64) -> tuple[U32, int]:
        from gpu_dedup.kernels.shingle_cuda import shingle_staged, stops
        from gpu_dedup.kernels.simhash_cuda import BATCH, PEAK
        from gpu_dedup.kernels.tape_cuda import batches, stage
        from gpu_dedup.kernels.units_ref import check as check_text
        from gpu_dedup.kernels.weights_cuda import cells

        check_text(tape.blob, tape.offsets, select, unit, n)
        self._too_long(tape, select)

        def work(budget: int) -> tuple[U32, int]:
            room = min(budget // PEAK, BATCH)
            parts: list[U32] = [np.zeros(0, np.uint32)]
            documents = 0
            stop_d = stops(stop)
            for _, _, blob, offsets, some in self._pieces(tape, select, room):
                for begin, end in batches(offsets, some, room):
                    made = shingle_staged(stage(blob, offsets, some[begin:end]), unit, n, stop_d)
                    documents += int(np.count_nonzero(np.diff(made.rows_at.get())))
                    parts.append(cells(made.hashes, made.rows_at, made.total).get())
            return np.concatenate(parts), documents

        return self._do(work)

    def add_cells(self, table: U32, cells: U32) -> None:
        self.host.add_cells(table, cells)

    def shingle_sets(self, tape: Tape, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64]:
        from gpu_dedup.kernels.ranks_cuda import PEAK as SORT_PEAK
        from gpu_dedup.kernels.shingle_cuda import shingle_staged, stops
        from gpu_dedup.kernels.shingle_sets_cuda import unique_rows
        from gpu_dedup.kernels.sketch_cuda import BATCH, PEAK
        from gpu_dedup.kernels.tape_cuda import batches, stage
        from gpu_dedup.kernels.units_ref import check as check_text

        check_text(tape.blob, tape.offsets, select, unit, n)
        self._too_long(tape, select)

        def work(budget: int) -> tuple[U64, I64]:
            room = min(budget // (PEAK + SORT_PEAK + 8), BATCH)
            sizes = np.zeros(len(select) + 1, np.int64)
            parts: list[U64] = [np.zeros(0, np.uint64)]
            stop_d = stops(stop)
            for first, _, blob, offsets, some in self._pieces(tape, select, room):
                for begin, end in batches(offsets, some, room):
                    made = shingle_staged(stage(blob, offsets, some[begin:end]), unit, n, stop_d)
                    items, rows = unique_rows(made.hashes, made.rows_at, made.total)
                    del made
                    parts.append(items.get())
                    sizes[first + begin + 1 : first + end + 1] = np.diff(rows.get())
            return np.concatenate(parts), np.cumsum(sizes)

        return self._do(work)

    # ---- keys and collisions -----------------------------------------------------------------------------------------

    def _rows(self, signatures: U32, room: int) -> Iterator[tuple[int, int, Any]]:
        """(first, last, signatures[first:last] on the device), all at once where they are there or fit."""
        row = max(4 * signatures.shape[1], 1)
        if self._residents.get(signatures) is not None or (signatures.nbytes <= room and signatures.size < INDEX):
            yield 0, len(signatures), self._up_to_stay(signatures, np.uint32)
            return
        step = max(1, min(room // row, (INDEX - 1) * 4 // row))
        for first in range(0, len(signatures), step):
            last = min(first + step, len(signatures))
            yield first, last, self._up(signatures[first:last], np.uint32)

    def band_keys(self, signatures: U32, bands: int, rows: int) -> U64:
        from gpu_dedup.kernels.bandkeys_cuda import band_keys
        from gpu_dedup.kernels.bandkeys_ref import check_bands

        check_bands(signatures, bands, rows)

        def work(budget: int) -> U64:
            out = np.empty((len(signatures), bands), np.uint64)
            for first, last, part in self._rows(signatures, budget // 4):
                step = max(1, min(budget // 4 // (8 * bands), (INDEX - 1) // bands))
                slots = signatures.shape[1]
                for begin in range(0, last - first, step):
                    end = min(begin + step, last - first)
                    some = part.reshape((part.size,))[begin * slots : end * slots].reshape((end - begin, slots))
                    out[first + begin : first + end] = band_keys(some, bands, rows).get()
            return out

        return self._do(work)

    def slot_keys(self, signatures: U32, slots: I64, start: int) -> U64:
        from gpu_dedup.kernels.bandkeys_cuda import slot_keys
        from gpu_dedup.kernels.bandkeys_ref import check_slots

        check_slots(signatures, slots, start)

        def work(budget: int) -> U64:
            out = np.empty(len(signatures), np.uint64)
            for first, last, part in self._rows(signatures, budget // 4):
                out[first:last] = slot_keys(part, slots, start).get()
            return out

        return self._do(work)

    def buckets(self, keys: U64, segments: I64) -> tuple[I64, I64]:
        from gpu_dedup.kernels.collide_cuda import PEAK, buckets
        from gpu_dedup.kernels.collide_ref import check_segments

        check_segments(segments, len(keys))

        def work(budget: int) -> tuple[I64, I64]:
            most = min(budget // PEAK, INDEX - 1)
            if len(keys) > most:
                return self._buckets_in_parts(keys, segments, most)
            members, starts = buckets(self._up(keys, np.uint64), segments)
            return self._down(members, keep=True), self._down(starts, keep=True)

        return self._do(work)

    def _buckets_in_parts(self, keys: U64, segments: I64, most: int) -> tuple[I64, I64]:
        """Buckets of more keys than the device holds: keys are dealt out by their value, so that a bucket stays whole.

        A part that is too large all the same (a key that half the corpus has) is for the host."""
        from gpu_dedup.kernels.collide_cuda import buckets

        parts = min(2 * -(-len(keys) // most), 1 << 16)
        part_of = ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)).astype(np.int64) * parts >> 16
        members: list[I64] = []
        sizes: list[I64] = []
        for part in range(parts):
            at = np.flatnonzero(part_of == part)
            cuts = np.searchsorted(at, segments).astype(np.int64)
            if len(at) > most:
                found, starts = self.host.buckets(keys[at], cuts)
            else:
                found_d, starts_d = buckets(self._cupy.asarray(keys[at]), cuts)
                found, starts = found_d.get(), starts_d.get()
            members.append(at[found])
            sizes.append(np.diff(starts))
        every, size = np.concatenate(members), np.concatenate(sizes)
        begin = np.cumsum(size) - size
        order = np.argsort(every[begin], kind="stable")
        out_starts = np.zeros(len(size) + 1, np.int64)
        np.cumsum(size[order], out=out_starts[1:])
        place = np.repeat(begin[order] - out_starts[:-1], size[order]) + np.arange(out_starts[-1])
        return every[place], out_starts

    def pair_offsets(self, starts: I64, cap: int, lowest: int) -> I64:
        from gpu_dedup.kernels.collide_cuda import pair_offsets

        members = int(starts[-1])
        if self._residents.get(starts) is None:  # not worth a way up and down
            return self.host.pair_offsets(starts, cap, lowest)

        def work(budget: int) -> I64:
            starts_d = self._residents.get(starts)
            if starts_d is None or members > min(budget // 32, INDEX - 2):
                return self.host.pair_offsets(starts, cap, lowest)
            return self._down(pair_offsets(starts_d, members, cap, lowest)[0], keep=True)

        return self._do(work)

    def bucket_pairs(self, members: I64, starts: I64, offsets: I64, first: int, last: int) -> tuple[I64, I64]:
        from gpu_dedup.kernels.collide_cuda import bucket_pairs

        if not 0 <= first <= last <= len(members):
            raise IndexError(f"members {first} to {last} of {len(members)}")
        base = int(offsets[first])
        count = int(offsets[last]) - base

        def work(budget: int) -> tuple[I64, I64]:
            copies = [self._residents.get(array) for array in (members, starts, offsets)]
            if any(copy is None for copy in copies) or 32 * count > budget or count >= INDEX:
                return self.host.bucket_pairs(members, starts, offsets, first, last)
            high, low = bucket_pairs(copies[0], copies[1], copies[2], first, last, base, count)
            return self._down(high, keep=True), self._down(low, keep=True)

        return self._do(work)

    def agreements(self, signatures: U32, left: I64, right: I64) -> I64:
        from gpu_dedup.kernels.collide_cuda import agreements
        from gpu_dedup.kernels.collide_ref import check_rows

        if len(left) != len(right):
            raise ValueError(f"{len(left)} left rows but {len(right)} right rows")
        check_rows(signatures, left)
        check_rows(signatures, right)
        row = max(4 * signatures.shape[1], 1)

        def work(budget: int) -> I64:
            whole = self._residents.get(signatures) is not None or (
                signatures.nbytes <= self._residents.room - self._residents.used and signatures.size < INDEX
            )
            out = np.empty(len(left), np.int64)
            step = min(budget // 48, INDEX - 1)
            if not whole:
                step = max(1, min(step, budget // (4 * row), (INDEX - 1) * 2 // row))
            for begin in range(0, len(left), step):
                part = slice(begin, begin + step)
                if whole and step >= len(left):
                    table, one, other = self._up_to_stay(signatures, np.uint32), left, right
                elif whole:
                    table, one, other = self._up_to_stay(signatures, np.uint32), left[part], right[part]
                else:
                    used, place = np.unique(np.concatenate([left[part], right[part]]), return_inverse=True)
                    table = self._cupy.asarray(np.ascontiguousarray(signatures[used]))
                    one, other = np.split(place.reshape(-1).astype(np.int64), 2)
                out[part] = agreements(table, self._up(one, np.int64), self._up(other, np.int64)).get()
            return out

        return self._do(work)

    # ---- fingerprints ------------------------------------------------------------------------------------------------

    def simhash(self, hashes: U64, offsets: I64) -> U64:
        from gpu_dedup.kernels.simhash_cuda import simhash
        from gpu_dedup.kernels.simhash_ref import BITS
        from gpu_dedup.kernels.simhash_ref import check as check_sets

        check_sets(hashes, offsets)

        def work(budget: int) -> U64:
            m = len(offsets) - 1
            out = np.empty(m, np.uint64)
            # 64 sums of four bytes a row, and its hashes, which are at least as many bytes as are read
            before = (offsets - offsets[0]) * 16 + np.arange(m + 1) * (4 * BITS + 64)
            begin = 0
            while begin < m:
                end = int(np.searchsorted(before, before[begin] + budget // 2, side="right")) - 1
                end = min(max(end, begin + 1), begin + (INDEX - 1) // BITS, m)
                items = hashes[offsets[begin] : offsets[end]]
                if len(items) >= INDEX or items.nbytes > budget:  # one row that the device does not hold
                    out[begin:end] = self.host.simhash(items, offsets[begin : end + 1] - offsets[begin])
                else:
                    bounds = self._cupy.asarray(np.ascontiguousarray(offsets[begin : end + 1] - offsets[begin]))
                    out[begin:end] = simhash(self._cupy.asarray(np.ascontiguousarray(items)), bounds).get()
                begin = end
            return out

        return self._do(work)

    def hamming_keys(self, values: U64, mask: int, start: int) -> U64:
        from gpu_dedup.kernels.hamming_cuda import keys

        def work(budget: int) -> U64:
            step = min(budget // 32, INDEX - 1)
            if len(values) <= step:  # every table asks for keys of the same words
                return self._down(keys(self._up_to_stay(values, np.uint64), mask, start), keep=True)
            out = np.empty(len(values), np.uint64)
            for begin in range(0, len(values), step):
                part = slice(begin, begin + step)
                out[part] = keys(self._up(values[part], np.uint64), mask, start).get()
            return out

        return self._do(work)

    def hamming_distances(self, values: U64, left: I64, right: I64) -> I64:
        from gpu_dedup.kernels.hamming_cuda import distances
        from gpu_dedup.kernels.hamming_ref import check_rows

        if len(left) != len(right):
            raise ValueError(f"{len(left)} left rows but {len(right)} right rows")
        check_rows(values, left)
        check_rows(values, right)
        if not len(left):
            return np.zeros(0, np.int64)

        def work(budget: int) -> I64:
            if values.nbytes > budget // 4 or len(values) >= INDEX:
                return self.host.hamming_distances(values, left, right)
            out = np.empty(len(left), np.int64)
            table = self._up(values, np.uint64)
            step = min(budget // 4 // 24, INDEX - 1)
            for begin in range(0, len(left), step):
                part = slice(begin, begin + step)
                out[part] = distances(table, self._up(left[part], np.int64), self._up(right[part], np.int64)).get()
            return out

        return self._do(work)

    def near_pairs(
        self, values: U64, members: I64, starts: I64, offsets: I64, first: int, last: int, earlier: U64, distance: int
    ) -> tuple[I64, I64]:
        from gpu_dedup.kernels.hamming_cuda import PEAK, near_pairs
        from gpu_dedup.kernels.hamming_ref import check_distance, check_rows, check_slice

        check_slice(members, starts, offsets, first, last)
        check_rows(values, members[first:last])
        check_distance(distance)
        base = int(offsets[first])
        count = int(offsets[last]) - base

        def work(budget: int) -> tuple[I64, I64]:
            copies = [self._residents.get(array) for array in (values, members, starts, offsets)]
            if any(copy is None for copy in copies) or PEAK * count > budget or count >= INDEX:
                return self.host.near_pairs(values, members, starts, offsets, first, last, earlier, distance)
            masks = self._cupy.asarray(np.ascontiguousarray(earlier, np.uint64))
            high, low = near_pairs(
                copies[0], copies[1], copies[2], copies[3], first, last, base, count, masks, distance
            )
            return high.get(), low.get()

        return self._do(work)

    # ---- verification ------------------------------------------------------------------------------------------------

    def jaccard(self, items: U64, offsets: I64, left: I64, right: I64) -> tuple[I64, I64]:
        from gpu_dedup.kernels.jaccard_ref import check_sets

        check_sets(items, offsets, left, right)
        sizes = np.diff(offsets)
        shared = self._do(lambda budget: self._shared(items, offsets, sizes, left, right, budget))
        return shared, sizes[left] + sizes[right] - shared

    def _shared(self, items: U64, offsets: I64, sizes: I64, left: I64, right: I64, budget: int) -> I64:
        """int64[p]: items in both sets of each pair."""
        from gpu_dedup.kernels.jaccard_cuda import PEAK, jaccard

        out = np.empty(len(left), np.int64)
        step = max(1, min(budget // 2 // PEAK, INDEX - 1))
        whole = self._residents.get(items) is not None or (
            items.nbytes <= self._residents.room - self._residents.used and items.size < INDEX
        )
        if whole and len(left):
            items_d = self._up_to_stay(items, np.uint64)
            offsets_d = self._up_to_stay(offsets, np.int64)
            for begin in range(0, len(left), step):
                part = slice(begin, begin + step)
                one, other = self._up(left[part], np.int64), self._up(right[part], np.int64)
                out[part] = jaccard(items_d, offsets_d, one, other).get()
            return out
        # Sets come up for the pairs of a chunk alone, each once.
        bytes_up = np.cumsum((sizes[left] + sizes[right]) * 8)
        begin = 0
        while begin < len(left):
            before = int(bytes_up[begin - 1]) if begin else 0
            end = int(np.searchsorted(bytes_up, before + budget // 4, side="right"))
            end = min(max(end, begin + 1), begin + min(step, GATHER_PAIRS), len(left))
            part = slice(begin, end)
            begin = end
            if int(bytes_up[end - 1]) - before > max(budget // 2, 1):  # one pair, of two sets too large for the device
                out[part] = self.host.jaccard(items, offsets, left[part], right[part])[0]
                continue
            used, place = np.unique(np.concatenate([left[part], right[part]]), return_inverse=True)
            one, other = np.split(place.reshape(-1).astype(np.int64), 2)
            bounds = np.zeros(len(used) + 1, np.int64)
            np.cumsum(sizes[used], out=bounds[1:])
            chunk = np.empty(int(bounds[-1]), np.uint64)
            for i, wanted in enumerate(used.tolist()):
                chunk[bounds[i] : bounds[i + 1]] = items[offsets[wanted] : offsets[wanted + 1]]
            arrays = [self._cupy.asarray(np.ascontiguousarray(array)) for array in (chunk, bounds, one, other)]
            out[part] = jaccard(*arrays).get()
        return out

    def edit(self, items: U32, offsets: I64, left: I64, right: I64, threshold_ppm: int) -> tuple[I64, I64]:
        return self.host.edit(items, offsets, left, right, threshold_ppm)

    def sweep(
        self, items: Any, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, rule: int,
        nodes: I64, witness: I64, shared: I64, union: I64,
    ) -> tuple[int, int, int]:  # fmt: skip
        if items.dtype != np.uint64:
            return self.host.sweep(
                items, offsets, left, right, threshold_ppm, limit, rule, nodes, witness, shared, union
            )
        from gpu_dedup.kernels.sweep_cuda import replay

        both, whole = self.jaccard(items, offsets, left, right)
        return replay(both, whole, offsets, left, right, threshold_ppm, limit, rule, nodes, witness, shared, union)

    def join(
        self, items: Any, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, nodes: I64, parent: I64
    ) -> tuple[I64, I64, I64, tuple[int, int, int]]:
        if items.dtype != np.uint64:
            return self.host.join(items, offsets, left, right, threshold_ppm, limit, nodes, parent)
        from gpu_dedup.kernels.sweep_cuda import replay_join

        both, whole = self.jaccard(items, offsets, left, right)
        return replay_join(both, whole, offsets, left, right, threshold_ppm, limit, nodes, parent)

    # ---- graphs ------------------------------------------------------------------------------------------------------

    def components(self, m: int, left: I64, right: I64) -> I64:
        return self.host.components(m, left, right)

    def tree(self, m: int, left: I64, right: I64) -> tuple[I64, I64, I64]:
        return self.host.tree(m, left, right)

    # ---- audit: a few sampled sets against all; the reading, not the counting, takes the time ------------------------

    def levels(
        self, group: I64, first: I64, neighbours: I64, hi: I64, lo: I64, near_flags: bool, far_flags: bool
    ) -> tuple[I64, I64, I64]:
        return self.host.levels(group, first, neighbours, hi, lo, near_flags, far_flags)

    def audit_index(self, items: U64, offsets: I64) -> AuditIndex:
        return self.host.audit_index(items, offsets)

    def audit(self, items: U64, offsets: I64, index: AuditIndex, threshold_ppm: int) -> tuple[I64, I64, I64, I64]:
        return self.host.audit(items, offsets, index, threshold_ppm)

    # ---- Bloom filters: the table stays on the device, keys go up and answers come down ------------------------------

    def bloom_table(self, words: U64) -> Any:
        if words.size >= INDEX:  # 16 GiB
            return words

        def work(budget: int) -> Any:
            if words.nbytes > budget // 2 or words.nbytes > self._residents.room - self._residents.used - self._tables:
                return words  # a table that the device has no room for is worked on where it is
            made = DeviceTable(self._cupy.asarray(words))
            self._tables += words.nbytes
            weakref.finalize(made, self._table_gone, words.nbytes)
            return made

        return self._do(work)

    def bloom_words(self, table: Any, words: U64) -> None:
        if not isinstance(table, DeviceTable):
            self.host.bloom_words(table, words)
            return

        def work(budget: int) -> None:
            words[...] = table.words.get()

        self._do(work)

    def _table_gone(self, size: int) -> None:
        self._tables -= size

    def bloom_add(self, table: Any, keys: U64, hashes: int, threads: int) -> U8:
        from gpu_dedup.kernels.bloom_cuda import PEAK, add

        if not isinstance(table, DeviceTable):
            return self.host.bloom_add(table, keys, hashes, threads)
        seen = np.empty(len(keys), np.uint8)
        done = 0

        def work(budget: int) -> U8:
            # Bits are set by the last step of a batch, so one that ran out of memory may simply come again.
            nonlocal done
            step = max(1, min(budget // 2 // PEAK, INDEX // 4))
            while done < len(keys):
                part = keys[done : done + step]
                seen[done : done + len(part)] = add(table.words, self._up(part, np.uint64), hashes).get()
                done += len(part)
            return seen

        return self._do(work)

    def bloom_ask(self, table: Any, keys: U64, hashes: int) -> U8:
        from gpu_dedup.kernels.bloom_cuda import ask

        if not isinstance(table, DeviceTable):
            return self.host.bloom_ask(table, keys, hashes)

        def work(budget: int) -> U8:
            seen = np.empty(len(keys), np.uint8)
            step = max(1, min(budget // 2 // 17, INDEX // 4))
            for begin in range(0, len(keys), step):
                part = self._up(keys[begin : begin + step], np.uint64)
                seen[begin : begin + step] = ask(table.words, part, hashes).get()
            return seen

        return self._do(work)

    def bloom_fill(self, table: Any) -> I64:
        from gpu_dedup.kernels.bloom_cuda import fill

        if not isinstance(table, DeviceTable):
            return self.host.bloom_fill(table)
        return self._do(lambda budget: np.asarray(fill(table.words).get()).view(np.int64))


@cache
def cuda_backend(index: int) -> CudaBackend:
    """The backend of one device, opened once in a process.

    Raises RunError with the reason and the remedy: CuPy is missing or does not load, no driver, a driver that is too
    old for this CuPy, no such GPU, a GPU that is too old or too full, no folder for compiled kernels, no compiler.
    """
    cupy = load_cupy()
    count = count_devices(cupy)
    if not 0 <= index < count:
        raise RunError(f"GPU {index} does not exist; there are {count}, from 0 on")
    found = facts(cupy, index)
    check(found)
    compile_one(cupy, index)
    return CudaBackend(cupy, found)
