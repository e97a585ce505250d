"""The seam to the hardware: a handful of functions, arrays in, arrays out. Nothing above it knows which machine works.

| backend | what                                            | for                        |
| numpy   | the definition: plain, checked, allowed slow    | tests, reading, tiny input |
| numba   | fused loops per document in cache, without GIL  | every CPU                  |
| cuda    | CUDA kernels; text goes up once per batch       | NVIDIA GPUs                |

All backends return the same bits for the same arguments, whatever the batch or thread. `numpy` and `numba` are sets of
kernel modules with equal function names and signatures (``kernels/*_ref.py`` and ``kernels/*_cpu.py``), so one class
binds either. `cuda` (cuda.py) has its own class with these methods; it keeps device copies of what it returned and of
tables that it was given more than once, and marks these arrays read-only for that.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from gpu_dedup.batch import I64, U8, U32, U64, Bool, Tape
from gpu_dedup.errors import RunError
from gpu_dedup.run import Run

if TYPE_CHECKING:
    from gpu_dedup.backend.cuda import CudaBackend


@dataclass(frozen=True)
class Extracted:
    """A chunk of JSON lines, taken apart by the fast road.

    starts  int64[n + 1]: line i is data[starts[i]:starts[i + 1]], line feed included
    status  uint8[n]: ROW_TEXT, ROW_BLANK, ROW_SKIPPED, or LINE_ODD for a line that only json.loads may judge
    tape    n texts, valid UTF-8 (WTF-8); empty unless ROW_TEXT
    spans   int64[n, len(extra), 2]: bytes of data that hold the raw JSON value of each extra field; -1, -1 where it is
            missing or where the line is not ROW_TEXT
    """

    starts: I64
    status: U8
    tape: Tape
    spans: I64


LINE_ODD = 4
PART_KEYS = 1 << 15  # keys for which another thread of `bloom_add` is worth its start

# Inverted index of sampled sets: keys, starts, owners, directory, sizes, as kernels/audit_ref.py describes them.
AuditIndex: TypeAlias = tuple[U64, I64, I64, I64, I64]

# Rules of `sweep`, as in kernels/sweep_ref.py.
LOWEST, BEST, PARTNER = 0, 1, 2


@dataclass(frozen=True)
class Sketches:
    """Signatures of m documents: MinHash or fast similarity sketches.

    signatures  uint32[m, k]; 0xFFFFFFFF throughout where `kept` is 0
    units       int64[m] units of the text
    kept        int64[m] its shingles, repeats counted, stop shingles left out; a document with 0 has no sketch and must
                meet no other
    """

    signatures: U32
    units: I64
    kept: I64


@dataclass(frozen=True)
class Fingerprints:
    """SimHash fingerprints of m documents.

    values  uint64[m]; 0 where `kept` is 0, and any number elsewhere
    units   int64[m] units of the text
    kept    int64[m] its shingles, repeats counted, stop shingles left out; a document with 0 has no fingerprint and
            must meet no other
    """

    values: U64
    units: I64
    kept: I64


# Rules of `fingerprints`, as in kernels/simhash_ref.py.
SET, COUNT, TFIDF = 0, 1, 2


class Backend(Protocol):
    """See the module's head. Arrays are C-contiguous; n documents, m selected documents."""

    name: str

    def extract_jsonl(
        self, data: U8, size: int, fields: Sequence[str], extra: Sequence[str], want: Bool | None
    ) -> Extracted:
        """Take JSON lines apart. data[:size] are whole lines (only the last may lack its line feed), data holds 64
        spare bytes after `size`. fields are joined by a newline into the text. Only rows with want[i] are parsed."""
        ...

    def scan_csv(self, data: U8, size: int, delimiter: int) -> tuple[I64, int]:
        """Where the records of data[:size] begin, and how the last one ends; see kernels/csv_ref.py."""
        ...

    def split_csv(
        self, data: U8, starts: I64, delimiter: int, columns: I64, want: Bool | None
    ) -> tuple[I64, I64, U8]:  # fmt: skip
        """Fields of each record, and spans and kinds of the wanted ones; see kernels/csv_ref.py."""
        ...

    def csv_texts(self, data: U8, spans: I64, kinds: U8, good: Bool) -> Tape:
        """The fields of each good record without their quotes, joined by a newline."""
        ...

    def valid_utf8(self, tape: Tape) -> Bool:
        """bool[n]: the document is strict UTF-8 (no surrogates, no overlong forms, at most U+10FFFF)."""
        ...

    def code_points(self, tape: Tape) -> I64:
        """int64[n]: code points of each document (a lone surrogate counts as one)."""
        ...

    def normalise(self, tape: Tape, steps: int) -> Tape:
        """Texts for comparison; `steps` is a set of bits, see gpu_dedup.normalise."""
        ...

    def trim(self, tape: Tape, words: Tape, blank: bool, most: int) -> Tape:
        """Texts less the words at their ends, cut to `most` code points (0: not cut); see kernels/trim_ref.py."""
        ...

    def decode(self, tape: Tape) -> tuple[U32, I64]:
        """Code points of all documents and int64[n + 1] offsets."""
        ...

    def digest(self, tape: Tape) -> U64:
        """uint64[n, 2]: two seeded XXH64 over the XXH64s of 4,096-byte chunks and the length."""
        ...

    def sketch(self, tape: Tape, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32) -> Sketches:
        """Shingle and MinHash the documents tape[select]. `stop`: sorted shingle hashes that do not count."""
        ...

    def fast_sketch(self, tape: Tape, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32) -> Sketches:
        """The same with the fast similarity sketch: a and b uint32[k + 2]; see kernels/fastsketch_ref.py."""
        ...

    def shingle_sets(self, tape: Tape, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64]:
        """The shingle sets of tape[select]: hashes ascending and unique within a document, offsets int64[m + 1]."""
        ...

    def fingerprints(
        self, tape: Tape, select: I64, unit: int, n: int, stop: U64, rule: int, idf: U32, top: int
    ) -> Fingerprints:
        """Shingle and SimHash the documents tape[select]. rule SET, COUNT, or TFIDF with `idf` uint32[2**24] and the
        `top` terms (0: all); idf of length 0 with the others. See kernels/simhash_ref.py."""
        ...

    def cells(self, tape: Tape, select: I64, unit: int, n: int, stop: U64) -> tuple[U32, int]:
        """Places in the table of document frequencies of tape[select], each once a document; documents with any."""
        ...

    def add_cells(self, table: U32, cells: U32) -> None:
        """table[c] += 1 for each c; the table uint32[2**24] belongs to one thread at a time."""
        ...

    def band_keys(self, signatures: U32, bands: int, rows: int) -> U64:
        """uint64[m, bands]: key of each band, the band number mixed in."""
        ...

    def slot_keys(self, signatures: U32, slots: I64, start: int) -> U64:
        """uint64[m]: the band key's chain over the chosen slots, from a start of the caller's."""
        ...

    def buckets(self, keys: U64, segments: I64) -> tuple[I64, I64]:
        """members, starts: sets of two or more positions with an equal key, inside each segment of the keys."""
        ...

    def pair_offsets(self, starts: I64, cap: int, lowest: int) -> I64:
        """int64[t + 1]: where the pairs of each bucket member begin, under the cap rule."""
        ...

    def bucket_pairs(self, members: I64, starts: I64, offsets: I64, first: int, last: int) -> tuple[I64, I64]:
        """high, low: the pairs of members[first:last] with the lowest of their buckets."""
        ...

    def agreements(self, signatures: U32, left: I64, right: I64) -> I64:
        """int64[p]: equal slots of signatures[left[i]] and signatures[right[i]]."""
        ...

    def jaccard(self, items: U64, offsets: I64, left: I64, right: I64) -> tuple[I64, I64]:
        """shared, union int64[p]: items in both and in either of two sets (ascending, unique)."""
        ...

    def edit(self, items: U32, offsets: I64, left: I64, right: I64, threshold_ppm: int) -> tuple[I64, I64]:
        """same, longest int64[p]: longest less Levenshtein distance where it meets the threshold, else -1."""
        ...

    def sweep(
        self, items: Any, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, rule: int,
        nodes: I64, witness: I64, shared: I64, union: I64,
    ) -> tuple[int, int, int]:  # fmt: skip
        """Verify pairs lazily and note who goes in the last three arrays; see kernels/sweep_ref.py.
        Pairs verified, matched, passed over as too long."""
        ...

    def join(
        self, items: Any, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, nodes: I64, parent: I64
    ) -> tuple[I64, I64, I64, tuple[int, int, int]]:
        """Verify pairs lazily and join components in `parent`; positions of the pairs that joined, their shared and
        union, and the counts of `sweep`."""
        ...

    def components(self, m: int, left: I64, right: I64) -> I64:
        """int64[m]: lowest node of each node's connected component."""
        ...

    def tree(self, m: int, left: I64, right: I64) -> tuple[I64, I64, I64]:
        """parent, root, depth int64[m]: breadth-first tree of each component from its lowest node."""
        ...

    def simhash(self, hashes: U64, offsets: I64) -> U64:
        """uint64[m]: SimHash of sets of shingle hashes, offsets int64[m + 1]; 0 for an empty one."""
        ...

    def hamming_keys(self, values: U64, mask: int, start: int) -> U64:
        """uint64[n]: a key of the masked bits of each word; see kernels/hamming_ref.py."""
        ...

    def hamming_distances(self, values: U64, left: I64, right: I64) -> I64:
        """int64[p]: bits in which values[left[i]] and values[right[i]] differ."""
        ...

    def near_pairs(
        self, values: U64, members: I64, starts: I64, offsets: I64, first: int, last: int, earlier: U64, distance: int
    ) -> tuple[I64, I64]:
        """high, low: the pairs of members[first:last] with those below them in their buckets that differ in at most
        `distance` bits and do not agree under an earlier mask."""
        ...

    def levels(
        self, group: I64, first: I64, neighbours: I64, hi: I64, lo: I64, near_flags: bool, far_flags: bool
    ) -> tuple[I64, I64, I64]:
        """witness, level, state int64[m] under near matches of groups and far matches of pairs; see
        kernels/levels_ref.py."""
        ...

    def audit_index(self, items: U64, offsets: I64) -> AuditIndex:
        """Inverted index of sampled shingle sets; see kernels/audit_ref.py."""
        ...

    def audit(self, items: U64, offsets: I64, index: AuditIndex, threshold_ppm: int) -> tuple[I64, I64, I64, I64]:
        """left, right, shared, union int64[p]: every pair of a set and a sampled set at or above the threshold."""
        ...

    def bloom_table(self, words: U64) -> Any:
        """The table uint64[blocks, 8] of a Bloom filter where this backend works on it: `words` itself, or a copy on
        the device, in which case `words` knows nothing of new bits until `bloom_words` brings them back."""
        ...

    def bloom_words(self, table: Any, words: U64) -> None:
        """Bring the bits of a table back to the array that it was made of."""
        ...

    def bloom_add(self, table: Any, keys: U64, hashes: int, threads: int) -> U8:
        """uint8[n]: 1 for keys uint64[n, 1 or 2] whose bits were all set by the table or the keys before them. Sets
        them. One caller at a time; `threads` of its own on a large batch; see kernels/bloom_ref.py."""
        ...

    def bloom_ask(self, table: Any, keys: U64, hashes: int) -> U8:
        """uint8[n]: 1 for keys whose bits are all set. Any number of callers, beside one that adds."""
        ...

    def bloom_fill(self, table: Any) -> I64:
        """int64[513]: blocks of a table by bits set."""
        ...


class Kernels(dict[str, Any]):
    """Modules of kernels/ by their stem, <stem>_ref or <stem>_cpu, each imported when it is first asked for: that costs
    ten milliseconds a module where Numba looks up its cache, and a run needs some of them only."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self._suffix = suffix

    def __missing__(self, stem: str) -> Any:
        self[stem] = module = importlib.import_module(f"gpu_dedup.kernels.{stem}_{self._suffix}")
        return module


class HostBackend:
    """A backend made of host kernels: `suffix` is ref (NumPy) or cpu (Numba)."""

    def __init__(self, name: str, suffix: str) -> None:
        self.name = name
        self.warmed: set[tuple[bool, ...]] = set()  # what `warm` has compiled
        self.warmed_csv = False
        self.kernels = Kernels(suffix)

    def extract_jsonl(
        self, data: U8, size: int, fields: Sequence[str], extra: Sequence[str], want: Bool | None
    ) -> Extracted:
        starts, status, blob, offsets, spans = self.kernels["jsonl"].extract(
            data, size, tuple(fields), tuple(extra), want
        )
        return Extracted(starts, status, Tape(blob, offsets), spans)

    def scan_csv(self, data: U8, size: int, delimiter: int) -> tuple[I64, int]:
        starts, state = self.kernels["csv"].scan(data, size, delimiter)
        return starts, state

    def split_csv(self, data: U8, starts: I64, delimiter: int, columns: I64, want: Bool | None) -> tuple[I64, I64, U8]:
        counts, spans, kinds = self.kernels["csv"].split(data, starts, delimiter, columns, want)
        return counts, spans, kinds

    def csv_texts(self, data: U8, spans: I64, kinds: U8, good: Bool) -> Tape:
        return Tape(*self.kernels["csv"].texts(data, spans, kinds, good))

    def valid_utf8(self, tape: Tape) -> Bool:
        out: Bool = self.kernels["utf8"].valid(tape.blob, tape.offsets)
        return out

    def code_points(self, tape: Tape) -> I64:
        out: I64 = self.kernels["utf8"].code_points(tape.blob, tape.offsets)
        return out

    def normalise(self, tape: Tape, steps: int) -> Tape:
        from gpu_dedup.kernels.normalise_ref import HTML

        blob, offsets = tape.blob, tape.offsets
        if steps & HTML:
            blob, offsets = self.kernels["html"].plain(blob, offsets)
        return Tape(*self.kernels["normalise"].normalise(blob, offsets, steps & ~HTML))

    def trim(self, tape: Tape, words: Tape, blank: bool, most: int) -> Tape:
        return Tape(*self.kernels["trim"].trim(tape.blob, tape.offsets, words.blob, words.offsets, blank, most))

    def decode(self, tape: Tape) -> tuple[U32, I64]:
        points, offsets = self.kernels["utf8"].decode(tape.blob, tape.offsets)
        return points, offsets

    def digest(self, tape: Tape) -> U64:
        out: U64 = self.kernels["digest"].digest(tape.blob, tape.offsets)
        return out

    def sketch(self, tape: Tape, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32) -> Sketches:
        return Sketches(*self.kernels["sketch"].sketch(tape.blob, tape.offsets, select, unit, n, stop, a, b))

    def fast_sketch(self, tape: Tape, select: I64, unit: int, n: int, stop: U64, a: U32, b: U32) -> Sketches:
        return Sketches(*self.kernels["fastsketch"].fast_sketch(tape.blob, tape.offsets, select, unit, n, stop, a, b))

    def shingle_sets(self, tape: Tape, select: I64, unit: int, n: int, stop: U64) -> tuple[U64, I64]:
        hashes, offsets = self.kernels["shingle"].shingle_sets(tape.blob, tape.offsets, select, unit, n, stop)
        return hashes, offsets

    def fingerprints(
        self, tape: Tape, select: I64, unit: int, n: int, stop: U64, rule: int, idf: U32, top: int
    ) -> Fingerprints:
        kernel = self.kernels["simhash"].fingerprints
        return Fingerprints(*kernel(tape.blob, tape.offsets, select, unit, n, stop, rule, idf, top))

    def cells(self, tape: Tape, select: I64, unit: int, n: int, stop: U64) -> tuple[U32, int]:
        out: tuple[U32, int] = self.kernels["weights"].cells(tape.blob, tape.offsets, select, unit, n, stop)
        return out

    def add_cells(self, table: U32, cells: U32) -> None:
        self.kernels["weights"].add(table, cells)

    def band_keys(self, signatures: U32, bands: int, rows: int) -> U64:
        out: U64 = self.kernels["bandkeys"].band_keys(signatures, bands, rows)
        return out

    def slot_keys(self, signatures: U32, slots: I64, start: int) -> U64:
        out: U64 = self.kernels["bandkeys"].slot_keys(signatures, slots, start)
        return out

    def buckets(self, keys: U64, segments: I64) -> tuple[I64, I64]:
        members, starts = self.kernels["collide"].buckets(keys, segments)
        return members, starts

    def pair_offsets(self, starts: I64, cap: int, lowest: int) -> I64:
        out: I64 = self.kernels["collide"].pair_offsets(starts, cap, lowest)
        return out

    def bucket_pairs(self, members: I64, starts: I64, offsets: I64, first: int, last: int) -> tuple[I64, I64]:
        high, low = self.kernels["collide"].bucket_pairs(members, starts, offsets, first, last)
        return high, low

    def agreements(self, signatures: U32, left: I64, right: I64) -> I64:
        out: I64 = self.kernels["collide"].agreements(signatures, left, right)
        return out

    def jaccard(self, items: U64, offsets: I64, left: I64, right: I64) -> tuple[I64, I64]:
        shared, union = self.kernels["jaccard"].jaccard(items, offsets, left, right)
        return shared, union

    def edit(self, items: U32, offsets: I64, left: I64, right: I64, threshold_ppm: int) -> tuple[I64, I64]:
        same, longest = self.kernels["edit"].edit(items, offsets, left, right, threshold_ppm)
        return same, longest

    def sweep(
        self, items: Any, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, rule: int,
        nodes: I64, witness: I64, shared: I64, union: I64,
    ) -> tuple[int, int, int]:  # fmt: skip
        out: tuple[int, int, int] = self.kernels["sweep"].sweep(
            items, offsets, left, right, threshold_ppm, limit, rule, nodes, witness, shared, union
        )
        return out

    def join(
        self, items: Any, offsets: I64, left: I64, right: I64, threshold_ppm: int, limit: int, nodes: I64, parent: I64
    ) -> tuple[I64, I64, I64, tuple[int, int, int]]:
        out: tuple[I64, I64, I64, tuple[int, int, int]] = self.kernels["sweep"].join(
            items, offsets, left, right, threshold_ppm, limit, nodes, parent
        )
        return out

    def components(self, m: int, left: I64, right: I64) -> I64:
        out: I64 = self.kernels["components"].components(m, left, right)
        return out

    def tree(self, m: int, left: I64, right: I64) -> tuple[I64, I64, I64]:
        out: tuple[I64, I64, I64] = self.kernels["components"].tree(m, left, right)
        return out

    def simhash(self, hashes: U64, offsets: I64) -> U64:
        out: U64 = self.kernels["simhash"].simhash(hashes, offsets)
        return out

    def hamming_keys(self, values: U64, mask: int, start: int) -> U64:
        out: U64 = self.kernels["hamming"].keys(values, mask, start)
        return out

    def hamming_distances(self, values: U64, left: I64, right: I64) -> I64:
        out: I64 = self.kernels["hamming"].distances(values, left, right)
        return out

    def near_pairs(
        self, values: U64, members: I64, starts: I64, offsets: I64, first: int, last: int, earlier: U64, distance: int
    ) -> tuple[I64, I64]:
        high, low = self.kernels["hamming"].near_pairs(values, members, starts, offsets, first, last, earlier, distance)
        return high, low

    def levels(
        self, group: I64, first: I64, neighbours: I64, hi: I64, lo: I64, near_flags: bool, far_flags: bool
    ) -> tuple[I64, I64, I64]:
        witness, level, state = self.kernels["levels"].levels(group, first, neighbours, hi, lo, near_flags, far_flags)
        return witness, level, state

    def audit_index(self, items: U64, offsets: I64) -> AuditIndex:
        out: AuditIndex = self.kernels["audit"].audit_index(items, offsets)
        return out

    def audit(self, items: U64, offsets: I64, index: AuditIndex, threshold_ppm: int) -> tuple[I64, I64, I64, I64]:
        out: tuple[I64, I64, I64, I64] = self.kernels["audit"].audit(items, offsets, *index, threshold_ppm)
        return out

    def bloom_table(self, words: U64) -> Any:
        return words

    def bloom_words(self, table: Any, words: U64) -> None:
        if table is not words:
            raise ValueError("a table of other words")

    def bloom_add(self, table: Any, keys: U64, hashes: int, threads: int) -> U8:
        seen = np.empty(len(keys), np.uint8)
        add = self.kernels["bloom"].add
        parts = min(threads, len(keys) // PART_KEYS) if self.name == "numba" else 1
        if parts < 2:
            add(table, keys, hashes, seen, 0, len(table))
            return seen
        # Every thread passes over all keys, in order, and takes those of its blocks: no two write to the same place.
        bounds = [len(table) * part // parts for part in range(parts + 1)]
        with ThreadPoolExecutor(parts, thread_name_prefix="gpu-dedup-bloom") as executor:
            for done in [
                executor.submit(add, table, keys, hashes, seen, first, last) for first, last in pairwise(bounds)
            ]:
                done.result()
        return seen

    def bloom_ask(self, table: Any, keys: U64, hashes: int) -> U8:
        out: U8 = self.kernels["bloom"].ask(table, keys, hashes)
        return out

    def bloom_fill(self, table: Any) -> I64:
        out: I64 = self.kernels["bloom"].fill(table)
        return out


@cache
def host_backend(name: str) -> HostBackend:
    """`numpy` or `numba`, loaded once."""
    if name not in ("numpy", "numba"):
        raise RunError(f"backend {name!r} is unknown; choose numpy or numba")
    return HostBackend(name, "ref" if name == "numpy" else "cpu")


TINY_INPUT = 96 << 10  # bytes; below, NumPy is done before Numba is imported
# Bytes; below, a CPU is done before a GPU is awake (CuPy's import and the driver's start: 2 to 3 s).
WORTH_A_GPU = 128 << 20


def choose_backend(run: Run, input_bytes: int) -> tuple[Backend, str]:
    """The backend of a run and the reason, in words. `input_bytes` is a guess of the size once decompressed.

    A GPU that was asked for (--device gpu, --backend cuda, --gpus) is used or the run ends: raises RunError with the
    remedy.
    """
    if run.backend == "cuda" or run.device == "gpu" or run.gpus is not None:
        gpu = _gpu()
        return gpu, f"asked for; {gpu.device}"
    if run.backend is not None:
        return host_backend(run.backend), "asked for"
    if input_bytes <= TINY_INPUT:
        return host_backend("numpy"), "tiny input"
    if run.device == "cpu":
        return host_backend("numba"), "CPU asked for"
    if importlib.util.find_spec("cupy") is None:
        return host_backend("numba"), "CPU; for a GPU install gpu-dedup[cuda12] or [cuda13]"
    if input_bytes < WORTH_A_GPU:
        return host_backend("numba"), f"CPU; under {WORTH_A_GPU >> 20} MiB of input a GPU is not worth its start"
    try:
        gpu = _gpu()
    except RunError as error:
        return host_backend("numba"), f"CPU; {error}"
    return gpu, gpu.device


def _gpu() -> CudaBackend:
    from gpu_dedup.backend.cuda import cuda_backend

    return cuda_backend(0)


def count_gpus(run: Run, backend: Backend, files: int, input_bytes: int) -> int:
    """How many GPUs the first pass takes; 0 on a CPU. None takes less than one whole file.

    run.gpus is what it takes, fewer where there are fewer files; RunError where there are fewer GPUs. Where it is None:
    all that are visible, but for each of them so much input that its start is worth it.
    """
    if isinstance(backend, HostBackend):
        return 0
    from gpu_dedup.backend.cuda import CudaBackend

    if not isinstance(backend, CudaBackend):
        return 0
    visible = backend.visible()
    if run.gpus is not None:
        if run.gpus > visible:
            raise RunError(
                f"gpus {run.gpus} is more than there are: {visible}; give fewer, or make more visible "
                "(nvidia-smi, CUDA_VISIBLE_DEVICES)"
            )
        return max(1, min(run.gpus, files))
    return max(1, min(visible, files, input_bytes // WORTH_A_GPU))


def warm(
    backend: Backend,
    note: Callable[[str], None],
    near: bool = True,
    edit: bool = False,
    audit: bool = False,
    html: bool = False,
    fast: bool = False,
    bloom: bool = False,
    prints: bool = False,
    trim: bool = False,
    terms: bool = False,
) -> None:
    """Compile the kernels of a run in this one thread before others call them; a damaged cache is made anew on the way.

    near   also those of sketches, collisions and verification
    edit   also those of Levenshtein similarity
    audit  also those of the audit
    html   also that of the normaliser's step html
    fast   also those of the fast similarity sketch
    bloom  also those of Bloom filters
    prints also those of fingerprints
    trim   also that of strip and max_chars
    terms  also those of document frequencies

    Compiling takes seconds on the first run ever on a machine, so it is said; later runs load the cache folder.
    """
    if isinstance(backend, HostBackend):
        if backend.name != "numba":
            return
        warmed = backend.warmed
    else:
        from gpu_dedup.backend.cuda import CudaBackend

        if not isinstance(backend, CudaBackend):
            return
        backend.note = note
        warmed = backend.warmed
    wanted = (near, edit, audit, html, fast, bloom, prints, trim, terms)
    if wanted in warmed:
        return
    from gpu_dedup.kernels import jit

    if jit.is_cold():
        note("compiling kernels for this machine (first run only, some 20 seconds)")

    def touch() -> RunError | None:
        try:
            _touch(backend, near, edit, audit, html, fast, bloom, prints, trim, terms)
        except RunError as error:  # a GPU's fault says nothing of the cache
            return error
        return None

    if failed := jit.guarded(touch):
        raise failed
    warmed.add(wanted)


def warm_csv(backend: Backend, note: Callable[[str], None]) -> None:
    """Compile the kernels that only CSV and TSV need, as `warm` does those of every run."""
    host = backend if isinstance(backend, HostBackend) else getattr(backend, "host", None)
    if not isinstance(host, HostBackend) or host.name != "numba" or host.warmed_csv:
        return
    from gpu_dedup.kernels import jit

    data = np.zeros(128, np.uint8)
    data[:12] = np.frombuffer(b'a,"b""c"\nd,e', np.uint8)

    def touch() -> None:
        starts, _ = host.scan_csv(data, 12, 44)
        _, spans, kinds = host.split_csv(data, starts, 44, np.arange(2, dtype=np.int64), None)
        host.csv_texts(data, spans, kinds, np.ones(2, np.bool_))

    if jit.is_cold():
        note("compiling kernels for this machine (first run only, some 20 seconds)")
    jit.guarded(touch)
    host.warmed_csv = True


def _touch(
    backend: Backend,
    near: bool,
    edit: bool,
    audit: bool,
    html: bool,
    fast: bool,
    bloom: bool,
    prints: bool,
    trim: bool,
    terms: bool,
) -> None:
    """Call every kernel of a run once, on arrays of the types that a run gives them."""
    from gpu_dedup.kernels.normalise_ref import HTML, LOWER, NFKC, WHITESPACE

    texts = [
        b'{"text": "One small text with a few words, \\u00e9\\n"}',
        '{"text": "\u4e00\u4e8c\u4e09 caf\u00e9"}'.encode(),
    ] * 2
    lines = b"\n".join([*texts, b"", b'{"id": 1}'])
    data = np.zeros(len(lines) + 64, np.uint8)
    data[: len(lines)] = np.frombuffer(lines, np.uint8)
    backend.extract_jsonl(data, len(lines), ("text",), ("id",), np.ones(6, np.bool_))
    tape = backend.extract_jsonl(data, len(lines), ("text",), (), None).tape
    backend.valid_utf8(tape)
    backend.code_points(tape)
    all_steps = backend.normalise(tape, NFKC | LOWER | WHITESPACE)  # the default: tables that are most likely needed
    digest = backend.digest(all_steps)
    if html:
        backend.normalise(Tape.of(["a<b>&amp;"]), HTML)
    if bloom:
        words = np.zeros((1, 8), np.uint64)
        table = backend.bloom_table(words)
        for keys in (digest, np.ascontiguousarray(digest[:, :1])):
            backend.bloom_add(table, keys, 1, 1)
            backend.bloom_ask(table, keys, 1)
        backend.bloom_fill(table)
        backend.bloom_words(table, words)
    if trim:
        backend.trim(all_steps, Tape.of(["one"]), True, 9)
    if not near:
        return
    everyone = np.arange(len(tape), dtype=np.int64)
    stop = np.zeros(0, np.uint64)
    a, b = np.ones(16, np.uint32), np.zeros(16, np.uint32)
    for unit in range(5):  # token, word, char, byte, code
        made = backend.sketch(all_steps, everyone, unit, 2, stop, a, b)
        sets, set_offsets = backend.shingle_sets(all_steps, everyone, unit, 2, stop)
    if fast:
        made = backend.fast_sketch(all_steps, everyone, 0, 2, stop, np.ones(18, np.uint32), np.zeros(18, np.uint32))
    keys = backend.band_keys(made.signatures, 4, 4)
    backend.slot_keys(made.signatures, np.arange(4, dtype=np.int64), 1)
    members, starts = backend.buckets(np.ascontiguousarray(keys[:, 0]), np.array([0, len(keys)], np.int64))
    offsets = backend.pair_offsets(starts, 256, 32)
    high, low = backend.bucket_pairs(members, starts, offsets, 0, len(members))
    backend.agreements(made.signatures, high, low)
    for items, ends in [(sets, set_offsets), *([backend.decode(all_steps)] if edit else [])]:
        out = [np.full(len(tape), -1, np.int64) for _ in range(3)]
        backend.sweep(items, ends, high, low, 500_000, 1 << 62, LOWEST, everyone, *out)
        backend.join(items, ends, high, low, 500_000, 1 << 62, everyone, everyone.copy())
    backend.jaccard(sets, set_offsets, high, low)
    if edit:
        backend.edit(*backend.decode(all_steps), high, low, 500_000)
    backend.components(len(tape), high, low)
    backend.tree(len(tape), high, low)
    if prints:
        words = backend.fingerprints(all_steps, everyone, 0, 2, stop, SET, np.zeros(0, np.uint32), 0).values
        members, starts = backend.buckets(backend.hamming_keys(words, 1, 1), np.array([0, len(words)], np.int64))
        offsets = backend.pair_offsets(starts, len(words) + 1, 1)
        backend.near_pairs(words, members, starts, offsets, 0, len(members), np.ones(1, np.uint64), 64)
        backend.hamming_distances(words, high, low)
        lone, around = np.full(2, -1, np.int64), np.zeros(1, np.int64)
        backend.levels(lone, around, around[:0], around[:0], around[:0], False, False)
    if terms:
        table = np.zeros(1 << 24, np.uint32)
        backend.add_cells(table, backend.cells(all_steps, everyone, 0, 2, stop)[0])
    if audit:
        backend.audit(sets, set_offsets, backend.audit_index(sets, set_offsets), 500_000)
