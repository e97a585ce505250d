"""Bloom filters: have I seen this key before, in memory fixed beforehand; solved, shared, saved, merged.

    from gpu_dedup import BloomFilter
    seen = BloomFilter(capacity=100_000_000, fp_rate="0.000001")
    new = seen.add_if_new(["https://a.example/", "https://b.example/"])     # array([True, True])

Every bit of a key lies in one block of 512 (kernels/bloom_ref.py), one line of memory. Blocks do not fill evenly, and
the fuller ones give more false positives than a flat filter's: of m blocks with n keys, one has L keys with Poisson's
chance P(L; n/m), and then a new key finds its bits set with chance f(L, k). So (Putze, Sanders, Singler 2007)

    rate(n/m, k) = sum over L of P(L; n/m) f(L, k)

f is exact here, for k independent bits in 512 places: the new key's different bits are reckoned with as those not yet
covered, and each of L k bits covers one of u with chance u/512. k and n/m are then searched so that m is smallest. That
costs, beside the flat filter's 1.44 log2(1/rate) bits a key, 4 % more at a rate of 0.01, 15 % at 0.0001 and 35 % at
0.000001.

A file holds one table or several of one shape (LSHBloom has one for each band):

    0     8 bytes    GDBLOOM and a NUL
    8     uint32     version; uint32 hashes; uint64 blocks; uint32 tables; uint32 words of a key (0: no key yet)
    32    uint64     capacity; uint64 false positives at capacity, in 10**-9; uint64 bytes of the trailer
    56    uint64     XXH3-64 of the tables; uint64 XXH3-64 of the trailer
    72    32 bytes   what keys are: a recipe's fingerprint, or blank
    104   uint64     XXH3-64 of the 104 bytes before; zeros up to 4096
    4096  uint64[tables, blocks, 8], little-endian
    ...   trailer, JSON: keys held by each table, inputs by content hash, what keys are in words
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import xxhash

from gpu_dedup.backend import Backend, host_backend
from gpu_dedup.batch import I64, U8, U64, Bool, Tape
from gpu_dedup.errors import InputError, OutputError, RecipeError, RunError, disk_error, shown
from gpu_dedup.kernels.bloom_ref import BLOCK_BITS, BLOCK_WORDS, MAX_HASHES
from gpu_dedup.recipe import PPB, Recipe, ppb, ppb_text, whole

MAGIC = b"GDBLOOM\0"
VERSION = 1
HEAD = 4096
_HEAD = struct.Struct("<8sIIQIIQQQQQ32s")
_SUM = struct.Struct("<Q")

LOAD_UNIT = 64  # loads are searched in 64ths of a key a block
LARGEST_LOAD = 1024  # keys a block; 512 bits are full long before
LARGEST_TABLE = 1 << 57  # blocks: byte addresses of 63 bits
PIECE = 1 << 20  # words that are compared, merged or hashed at a time


# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic. Additions, multiplications and divisions of float64 one by one, and math.fsum: all of it is fixed by IEEE
# 754, so that a shape is the same wherever it is solved.


@cache
def _covered() -> Any:
    """float64[t, k - 1]: chance that t random bits of 512 cover all bits of a key of k."""
    start = np.zeros((MAX_HASHES + 1, MAX_HASHES + 1))  # [k, d]: k random bits are d different ones
    start[0, 0] = 1.0
    for k in range(MAX_HASHES):
        for d in range(k + 2):
            again = start[k, d] * d / BLOCK_BITS
            start[k + 1, d] = again + (start[k, d - 1] * (BLOCK_BITS - d + 1) / BLOCK_BITS if d else 0.0)
    left = start[1:].copy()  # [k - 1, u]: u different bits are not covered yet
    covers = np.arange(MAX_HASHES + 1) / BLOCK_BITS
    out = np.empty((8 * BLOCK_BITS, MAX_HASHES))
    for t in range(len(out)):
        out[t] = left[:, 0]
        after = left * (1.0 - covers)
        after[:, :-1] += left[:, 1:] * covers[1:]
        left = after
    return out


def load_rate(load: float, hashes: int) -> float:
    """Chance of a false positive in a table with `load` keys a block on average, each of `hashes` bits."""
    if load <= 0:
        return 0.0
    column = _covered()[:, hashes - 1]
    mode = int(load)
    weights = {mode: 1.0}  # of Poisson, by ratios from its peak on; what is left out is below 10**-25
    weight, count = 1.0, mode
    while count and weight > 1e-25:
        weight *= count / load
        count -= 1
        weights[count] = weight
    weight, count = 1.0, mode
    while weight > 1e-25:
        count += 1
        weight *= load / count
        weights[count] = weight
    met = math.fsum(w * float(column[min(keys * hashes, len(column) - 1)]) for keys, w in weights.items())
    return met / math.fsum(weights.values())


@dataclass(frozen=True)
class Shape:
    """A table: blocks of 512 bits, bits of a key."""

    blocks: int
    hashes: int

    @property
    def nbytes(self) -> int:
        return self.blocks * BLOCK_BITS // 8

    def rate(self, keys: int) -> float:
        """Chance of a false positive with so many different keys in the table."""
        return load_rate(keys / self.blocks, self.hashes)

    def wrong(self, before: int, after: int) -> float:
        """Expected new keys that were taken for seen while those that were not grew from `before` to `after`."""
        return self._came(after) - self._came(before) - (after - before)

    @cache  # noqa: B019 - a shape is two numbers
    def _came(self, taken: int) -> float:
        """Different keys that have come, of which so many were new to the table: dx = dn / (1 - rate(x)), by midpoints.

        A key that is taken for seen has all its bits, so the table is that of all keys which came. inf once it is full.
        """
        steps = 64  # the rate bends slowly: good to three figures
        came, each = 0.0, taken / steps
        for _ in range(steps):
            at = came
            for part in (each / 2, each):
                rate = load_rate(at / self.blocks, self.hashes)
                if rate > 0.999:
                    return math.inf
                at = came + part / (1.0 - rate)
            came = at
        return came


@cache
def _fullest(fp_rate_ppb: int) -> tuple[int, int]:
    """(load in 64ths, hashes): the most keys a block at which the rate is met, by the fewest hashes."""
    best = (0, 1)
    for hashes in range(1, MAX_HASHES + 1):
        low, high = 0, LARGEST_LOAD * LOAD_UNIT
        while low < high:
            middle = (low + high + 1) // 2
            if load_rate(middle / LOAD_UNIT, hashes) * PPB <= fp_rate_ppb:
                low = middle
            else:
                high = middle - 1
        if low > best[0]:
            best = (low, hashes)
    return best


def solve(capacity: int, fp_rate_ppb: int) -> Shape:
    """The smallest table that holds `capacity` keys with at most fp_rate_ppb / 10**9 false positives.

    Raises RecipeError for numbers that no table has.
    """
    if capacity < 1:
        raise RecipeError(f"capacity {capacity} holds nothing; give the most different keys that will come")
    if not 1 <= fp_rate_ppb < PPB:
        raise RecipeError(
            f"fp-rate {ppb_text(fp_rate_ppb)} is outside 0.000000001 to 0.999999999; give a share such as 0.000001"
        )
    load, hashes = _fullest(fp_rate_ppb)
    blocks = -(-capacity * LOAD_UNIT // load)
    if blocks > LARGEST_TABLE:
        raise RecipeError(
            f"capacity {capacity:,} with fp-rate {ppb_text(fp_rate_ppb)} takes {blocks * BLOCK_BITS:,} bits, over "
            f"{LARGEST_TABLE * BLOCK_BITS:,}; lower --capacity"
        )
    return Shape(blocks, hashes)


def band_rate(fp_rate_ppb: int, bands: int) -> int:
    """Rate of each of `bands` filters, so that a row which none has seen is removed with chance fp_rate at most.

    1 - (1 - p)**b <= b p, so p = rate / b, rounded down. Raises RecipeError where that is under 10**-9.
    """
    each = fp_rate_ppb // bands
    if not each:
        raise RecipeError(
            f"fp-rate {ppb_text(fp_rate_ppb)} is under 0.000000001 for each of {bands} bands; give "
            f"{ppb_text(bands)} or more"
        )
    return each


def shape_of(recipe: Recipe) -> tuple[Shape, int]:
    """Shape of each table of a settled recipe's filter, and how many tables there are.

    Raises RecipeError where the recipe has no capacity, or none that works.
    """
    if recipe.capacity is None:
        raise RecipeError(
            f"--method {recipe.method} needs --capacity N: the most different rows that its filter will hold, those of "
            f"later runs included (gpu-dedup explain --method {recipe.method} INPUT proposes one)"
        )
    if recipe.method == "bloom":
        return solve(recipe.capacity, recipe.fp_rate_ppb), 1
    assert recipe.bands is not None
    return solve(recipe.capacity, band_rate(recipe.fp_rate_ppb, recipe.bands)), recipe.bands


@dataclass(frozen=True)
class Fill:
    """What a count of all bits says.

    bits, size  bits that are set, and bits there are, in all tables
    rate        chance that a key which was never added is called seen: exact for random keys and these very bits. Of
                several tables: that at least one of them says so
    """

    bits: int
    size: int
    rate: float

    @property
    def share(self) -> float:
        return self.bits / self.size

    @classmethod
    def of(cls, histograms: Sequence[I64], hashes: int) -> Fill:
        """histograms: int64[513] of each table, blocks by bits set."""
        bits = size = 0
        missed = 1.0
        for histogram in histograms:
            counts = histogram.tolist()
            blocks = sum(counts)
            bits += sum(x * count for x, count in enumerate(counts))
            size += blocks * BLOCK_BITS
            missed *= 1.0 - math.fsum(_power(x / BLOCK_BITS, hashes) * n for x, n in enumerate(counts) if n) / blocks
        return cls(bits, size, 1.0 - missed)


def _power(base: float, exponent: int) -> float:
    out = 1.0
    for _ in range(exponent):
        out *= base
    return out


# ---------------------------------------------------------------------------------------------------------------------
# The filter.


STALE_SECONDS = 3600  # an unfinished file of a process that is gone stays so long: it may be another machine's


def _remove_stale(name: str) -> None:
    """Take away what processes that are gone have left beside a filter. One whose output was complete is given its name
    by the next start of the same command, before this."""
    for path in glob.glob(f"{glob.escape(name)}.*.tmp"):
        pid = path[len(name) + 1 : -len(".tmp")]
        with contextlib.suppress(OSError):
            if pid.isdigit() and time.time() - os.stat(path).st_mtime > STALE_SECONDS and not _alive(int(pid)):
                os.remove(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # there, and somebody else's
        return True
    return True


class BloomFilter:
    """A set of keys that may say "seen" of a key it never got (at most `fp_rate` of them), never "new" of one it has.

    Keys are texts (a list of str or bytes), or uint64: [n], [n, 2], or [n, tables] with several tables; one kind for
    all of a filter's life. Words of [n, 2] should be well mixed, as digests are; [n] may be any numbers.

    capacity  different keys that it will hold; more are taken, and the rate then rises: see `over_capacity`, `fill`
    fp_rate   share of new keys that a table calls seen, once capacity is reached; decimal text is exact
    tables    one for each column of the keys. A row is new if no table has seen its key, and all take theirs; so up to
              tables * fp_rate of new rows are called seen. For a rate of all together see `band_rate`
    keys      what keys are, as a fingerprint; files of two kinds do not mix
    backend   where it works; None: Numba's
    threads   for batches that are worth it

    One thread writes at a time (a lock sees to it); any number may ask beside it, and a key that was added before a
    question began is always found. Processes share a filter by its file: `save` replaces it whole, readers that hold
    the old one keep it.

    counts    keys that each table was given and had not seen. After a merge: at most so many
    inputs    content hash -> name of the inputs whose rows are in it
    says      what keys are, in words, for messages
    """

    def __init__(
        self, capacity: int, fp_rate: float | str = "0.000001", *, tables: int = 1, keys: str = "",
        backend: Backend | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        capacity, tables, threads = whole("capacity", capacity), whole("tables", tables), whole("threads", threads)
        rate = ppb("fp-rate", fp_rate)
        self._set(capacity, rate, solve(capacity, rate), tables, keys, backend, threads)
        try:
            self._words: U64 = np.zeros((tables, self.shape.blocks, BLOCK_WORDS), np.uint64)
        except (MemoryError, ValueError):  # ValueError: NumPy's word for more bytes than it has numbers for
            raise RecipeError(
                f"capacity {capacity:,} with fp-rate {ppb_text(rate)} takes {self.nbytes:,} bytes of memory, which are "
                "not there; lower the capacity or raise the rate"
            ) from None
        self._open()

    def _set(
        self, capacity: int, fp_rate_ppb: int, shape: Shape, tables: int, keys: str, backend: Backend | None,
        threads: int,
    ) -> None:  # fmt: skip
        if tables < 1 or threads < 1:
            raise RecipeError(f"{tables} tables and {threads} threads: give 1 or more of each")
        if not isinstance(keys, str) or len(keys) > 32 or not keys.isascii():
            raise RecipeError(f"keys {keys!r} is no fingerprint of at most 32 ASCII characters")
        self.capacity, self.fp_rate_ppb, self.shape, self.tables, self.keys = capacity, fp_rate_ppb, shape, tables, keys
        self.counts = [0] * tables
        self.inputs: dict[str, str] = {}
        self.says: dict[str, Any] = {}
        self.width = 0  # words of a key; 0 before the first
        self.path: str | None = None
        self._threads = threads
        self._backend: Backend = backend or host_backend("numba")
        self._lock = threading.RLock()
        self._stamp: tuple[int, int, int] | None = None

    @classmethod
    def plan(
        cls, capacity: int, fp_rate_ppb: int, tables: int = 1, keys: str = "", says: dict[str, Any] | None = None
    ) -> BloomFilter:
        """A filter without its memory, to be asked what it `differs` in alone."""
        self = cls.__new__(cls)
        self._set(capacity, fp_rate_ppb, solve(capacity, fp_rate_ppb), tables, keys, None, 1)
        self.says = says or {}
        return self

    def _open(self) -> None:
        """Give the tables to the backend."""
        self._own = [*self._words]
        self._tables = [self._backend.bloom_table(words) for words in self._own]

    @property
    def fp_rate(self) -> float:
        return self.fp_rate_ppb / PPB

    @property
    def hashes(self) -> int:
        return self.shape.hashes

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all tables."""
        return self.tables * self.shape.nbytes

    @property
    def writable(self) -> bool:
        return bool(self._words.flags.writeable)

    def __len__(self) -> int:
        """Keys held; of several tables, by the one that holds most."""
        return max(self.counts)

    @property
    def over_capacity(self) -> bool:
        return len(self) > self.capacity

    def fill(self) -> Fill:
        """Bits that are set, counted, and the rate of false positives that they make."""
        return Fill.of([self._backend.bloom_fill(table) for table in self._tables], self.hashes)

    def warning(self) -> str | None:
        """The line for a filter that holds more than it was made for; None for one that does not."""
        if not self.over_capacity:
            return None
        fill, asked = self.fill(), 1.0 - (1.0 - self.fp_rate) ** self.tables
        return (
            f"the filter took {len(self):,} keys as new, over its capacity {self.capacity:,}: {100 * fill.share:.1f} % "
            f"of its bits are set, and {rate_text(fill.rate)} of new keys are called seen, where at most "
            f"{rate_text(asked)} were asked for; make a new one of a larger capacity, from all inputs"
        )

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _as_keys(self, given: Any) -> U64:
        """uint64[n, 1], [n, 2] or [n, tables]."""
        if isinstance(given, (str, bytes)):
            raise InputError("keys come in a list; put the one key into a list")
        if not isinstance(given, np.ndarray):
            try:
                given = list(given)
            except TypeError:
                raise InputError(
                    f"keys come in a list or a NumPy array, and this is a {type(given).__name__}"
                ) from None
            if not all(isinstance(key, (str, bytes)) for key in given):
                raise InputError("keys are str or bytes in a list, or a NumPy array of uint64")
            given = self._backend.digest(Tape.of(given))
        if given.dtype != np.uint64 or given.ndim not in (1, 2):
            raise InputError(f"keys are uint64[n] or uint64[n, 2], not {given.dtype}{list(given.shape)}")
        keys = np.ascontiguousarray(given.reshape(-1, 1) if given.ndim == 1 else given)
        width = keys.shape[1]
        if self.tables > 1 and width != self.tables:
            raise InputError(f"keys of {width} words for {self.tables} tables; give one for each")
        if self.tables == 1 and width not in (1, 2):
            raise InputError(f"keys of {width} words; give 1 or 2")
        return keys

    def _check_width(self, keys: U64) -> None:
        width = 1 if self.tables > 1 else keys.shape[1]
        if self.width not in (0, width):
            raise InputError(f"keys of {width} words, but the filter holds keys of {self.width}; give one kind")

    def _columns(self, keys: U64) -> Iterator[U64]:
        if self.tables == 1:
            yield keys
        else:
            for table in range(self.tables):
                yield np.ascontiguousarray(keys[:, table : table + 1])

    def add_if_new(self, keys: Any) -> Bool:
        """Add keys one after the other; bool[n], True for those that were new when their turn came.

        The answer is the same for any cutting into batches, any threads and any backend. Raises InputError for keys of
        another kind than those before, RunError for a filter that was opened to be read alone.
        """
        own = self._as_keys(keys)
        with self._lock:
            if not self.writable:
                raise RunError(f"{self.path}: opened by memory map, to be read alone; load it without mmap to add")
            if not len(own):
                return np.zeros(0, bool)
            self._check_width(own)
            self.width = 1 if self.tables > 1 else own.shape[1]
            seen: U8 = np.zeros(len(own), np.uint8)
            for number, column in enumerate(self._columns(own)):
                found = self._backend.bloom_add(self._tables[number], column, self.hashes, self._threads)
                self.counts[number] += len(found) - int(np.count_nonzero(found))
                seen |= found
        return np.asarray(seen == 0, bool)

    def add(self, keys: Any) -> None:
        """Add keys; see `add_if_new`."""
        self.add_if_new(keys)

    def contains(self, keys: Any) -> Bool:
        """bool[n]: the key was added, or is a false positive. Of several tables: at least one has it."""
        own = self._as_keys(keys)
        self._check_width(own)
        seen: U8 = np.zeros(len(own), np.uint8)
        for number, column in enumerate(self._columns(own)):
            seen |= self._backend.bloom_ask(self._tables[number], column, self.hashes)
        return np.asarray(seen != 0, bool)

    # -- together -----------------------------------------------------------------------------------------------------

    def differs(self, other: BloomFilter) -> str | None:
        """Why two filters cannot be one, in words; None if they can."""
        method, its_method = self.says.get("method"), other.says.get("method")
        if method != its_method and None not in (method, its_method):
            return f"method {method} and {its_method}"
        for name, own, its in (
            ("capacity", f"{self.capacity:,}", f"{other.capacity:,}"),
            ("fp-rate", ppb_text(self.fp_rate_ppb), ppb_text(other.fp_rate_ppb)),
            ("hashes", str(self.hashes), str(other.hashes)),
            ("blocks", f"{self.shape.blocks:,}", f"{other.shape.blocks:,}"),
            ("tables", str(self.tables), str(other.tables)),
        ):
            if own != its:
                return f"{name} {own} and {its}"
        if self.keys != other.keys:
            for name in sorted({*self.says, *other.says}):
                if self.says.get(name) != other.says.get(name):
                    return f"keys of {name} {self.says.get(name)!r} and {other.says.get(name)!r}"
            return f"keys {self.keys!r} and {other.keys!r}"
        if 0 not in (self.width, other.width) and self.width != other.width:
            return f"keys of {self.width} words and of {other.width}"
        return None

    def merge(self, other: BloomFilter) -> None:
        """Add all that another filter of the same parameters holds. Raises RecipeError for other parameters."""
        if not isinstance(other, BloomFilter):
            raise RecipeError(f"a filter takes in another filter, and this is a {type(other).__name__}; load it first")
        if other is self:
            raise RecipeError("a filter has all of its own keys already; merge another one into it")
        why = self.differs(other)
        if why is not None:
            raise RecipeError(f"two filters of different kinds: {why}; make both with the same parameters")
        if not self.writable:
            raise RunError(f"{self.path}: opened by memory map, to be read alone; load it without mmap to merge")
        with self._lock:
            self._sync()
            other._sync()
            mine, its = self._words.reshape(-1), other._words.reshape(-1)
            for start in range(0, len(mine), PIECE):
                mine[start : start + PIECE] |= its[start : start + PIECE]
            self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
            self.inputs = {**other.inputs, **self.inputs}
            self.width = self.width or other.width
            self._open()

    def _sync(self) -> None:
        """Bring all bits into host memory, where they are not there already."""
        for table, words in zip(self._tables, self._own, strict=True):
            self._backend.bloom_words(table, words)

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the filter; it takes the name at the end, so that readers see the old file or the new one, whole.

        A filter that was loaded from `path` is not saved over one that somebody else has put there since. Raises
        OutputError.
        """
        with self.saving(path):
            pass

    @contextlib.contextmanager
    def saving(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """`save` in two steps: written to a temporary name before the body, renamed after it. If the body raises,
        nothing has changed."""
        name = _path(path)
        temporary = f"{name}.{os.getpid()}.tmp"
        other = "another file for the filter"
        try:
            with self._lock:
                self._sync()
                self._check_same(name)
                _remove_stale(name)
                self._write(temporary)
            yield
            with self._lock:
                self._check_same(name)
                os.replace(temporary, name)
                with contextlib.suppress(OSError):  # file systems that cannot sync a folder
                    folder = os.open(os.path.dirname(name), os.O_RDONLY)
                    try:
                        os.fsync(folder)
                    finally:
                        os.close(folder)
                self.path, self._stamp = name, _stamp(name)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            if isinstance(error, OSError):
                raise disk_error(error, name, other) from error
            raise

    def _check_same(self, name: str) -> None:
        found = _stamp(name)
        expected = self._stamp if self.path == name else None
        if found != expected and (found is not None or self.path == name):
            raise OutputError(
                f"{shown(name)}: "
                + ("was changed by somebody else since it was read" if self.path == name else "is there already")
                + "; go on from it (--bloom, BloomFilter.load), or choose another file for the filter"
            )

    def _write(self, path: str) -> None:
        trailer = json.dumps({"counts": self.counts, "inputs": self.inputs, "says": self.says}).encode()
        flat = self._words.reshape(-1)
        total = xxhash.xxh3_64()
        with open(path, "wb") as file:
            file.write(bytes(HEAD))
            for start in range(0, len(flat), PIECE):
                piece = flat[start : start + PIECE].view(np.uint8).data
                total.update(piece)
                file.write(piece)
            file.write(trailer)
            head = _HEAD.pack(
                MAGIC, VERSION, self.hashes, self.shape.blocks, self.tables, self.width, self.capacity,
                self.fp_rate_ppb, len(trailer), total.intdigest(), xxhash.xxh3_64_intdigest(trailer),
                self.keys.encode(),
            )  # fmt: skip
            file.seek(0)
            file.write(head + _SUM.pack(xxhash.xxh3_64_intdigest(head)))
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, mmap: bool = False, check: bool = True, backend: Backend | None = None,
        threads: int = 1,
    ) -> BloomFilter:  # fmt: skip
        """Read a saved filter.

        mmap   map the file instead of reading it: at once, shared between processes, and to be asked alone
        check  compare the checksum of the tables, for which all of the file is read

        Raises InputError for a file that is none, is damaged, or is of a later version.
        """
        name = _path(path)
        place = shown(name)
        try:
            with open(name, "rb") as file:
                stat = os.fstat(file.fileno())
                head = file.read(HEAD)
                self = cls._of_head(place, head, stat.st_size, backend, threads)
                count = self.tables * self.shape.blocks * BLOCK_WORDS
                shape = (self.tables, self.shape.blocks, BLOCK_WORDS)
                if mmap:
                    flat = np.asarray(np.memmap(file, "<u8", "r", HEAD, (count,)))
                else:
                    flat = np.fromfile(file, "<u8", count)
                file.seek(HEAD + 8 * count)
                trailer = file.read()
        except OSError as error:
            raise InputError(error.strerror or type(error).__name__, "name a saved filter", place=place) from None
        except MemoryError:
            raise InputError(
                "larger than the memory there is", "free some, or load it with mmap=True", place=place
            ) from None
        *_, words_sum, trailer_sum, _ = _HEAD.unpack(head[: _HEAD.size])
        damaged = InputError("damaged filter (a checksum does not agree)", "make it anew", place=place)
        if len(flat) != count or xxhash.xxh3_64_intdigest(trailer) != trailer_sum:
            raise damaged
        if check:
            total = xxhash.xxh3_64()
            for start in range(0, count, PIECE):
                total.update(flat[start : start + PIECE].view(np.uint8).data)
            if total.intdigest() != words_sum:
                raise damaged
        values = json.loads(trailer)
        self.counts, self.inputs, self.says = values["counts"], values["inputs"], values["says"]
        self._words = flat.reshape(shape)
        self.path, self._stamp = name, (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if mmap:
            self._backend = host_backend("numba")  # a device would need a copy of all of it
        self._open()
        return self

    @classmethod
    def _of_head(cls, place: str, head: bytes, size: int, backend: Backend | None, threads: int) -> BloomFilter:
        if head[:8] != MAGIC:
            raise InputError("not a Bloom filter of gpu-dedup", "name another file", place=place)
        version = int.from_bytes(head[8:12], "little")
        if version != VERSION:
            raise InputError(
                f"a filter of format version {version}, and this gpu-dedup reads version {VERSION}",
                "use the gpu-dedup that wrote it", place=place,
            )  # fmt: skip
        end = _HEAD.size
        zeros = not any(head[end + _SUM.size :])
        if len(head) < HEAD or not zeros or _SUM.unpack_from(head, end)[0] != xxhash.xxh3_64_intdigest(head[:end]):
            raise InputError("damaged filter (its head's checksum does not agree)", "make it anew", place=place)
        _, _, hashes, blocks, tables, width, capacity, rate, trailer, _, _, keys = _HEAD.unpack(head[:end])
        expected = HEAD + 8 * tables * blocks * BLOCK_WORDS + trailer
        if size != expected:
            raise InputError(f"damaged filter ({size:,} bytes, not {expected:,})", "make it anew", place=place)
        self = cls.__new__(cls)
        self._set(capacity, rate, Shape(blocks, hashes), tables, keys.rstrip(b"\0").decode(), backend, threads)
        self.width = width
        return self


def _path(path: Any) -> str:
    try:
        return os.path.abspath(os.fsdecode(path))
    except TypeError:
        raise InputError(f"{path!r} is a {type(path).__name__}, and no path; name a file for the filter") from None


def _stamp(path: str) -> tuple[int, int, int] | None:
    """What changes when a file is replaced or written to; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def rate_text(rate: float) -> str:
    """A share as people read it: 12.3 %, 0.2 %, 1 in 1,000,000."""
    if rate >= 0.001:
        return f"{100 * rate:.1f} %"
    return f"1 in {1 / rate:,.0f}" if rate > 0 else "none"


def may_repeat(
    digests: U64, fp_rate: float | str = "0.001", *, filter: BloomFilter | None = None, backend: Backend | None = None
) -> I64:
    """A sieve in front of an exact comparison: the rows whose digest may have come before, in input order.

    Every row whose digest is that of an earlier row is among them, and by chance about fp_rate of the others: confirm
    them by the exact key, against all rows, and a false positive removes nothing.

    digests  uint64[n] or uint64[n, 2], in input order
    filter   digests of earlier calls are in it, and these will be; None: a new one of the size of this call
    returns  int64[m] row numbers, ascending
    """
    if filter is None:  # an empty one counts as False
        filter = BloomFilter(max(1, len(digests)), fp_rate, backend=backend)
    return np.flatnonzero(~filter.add_if_new(digests))
