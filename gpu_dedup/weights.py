"""Document frequencies of a corpus, and the weights of SimHash's terms that are made of them.

A table counts, by 24 bits of the shingle hash, how many documents have a shingle there (kernels/weights_ref.py). One
document is one class of equal texts. Tables of shards add up, whatever the order. A table belongs to the terms that it
counted: a normaliser, a shingle, stop shingles, the definitions of this version. Recipes of other terms are refused.

A file of it, little-endian:

    0     8 bytes   GDTERMS and a NUL
    8     uint32    version; uint32 bits of a cell
    16    uint64    documents
    24    32 bytes  key of the terms, hexadecimal
    56    32 bytes  checksum of documents and counts, hexadecimal
    88    uint64    XXH3-64 of the 88 bytes before; zeros up to 4096
    4096  uint32[2**24] counts
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from dataclasses import fields

import numpy as np
import xxhash

from gpu_dedup.backend import Backend
from gpu_dedup.batch import U32
from gpu_dedup.errors import InputError, OutputError, RecipeError, RunError, disk_error, shown
from gpu_dedup.kernels.weights_ref import CELL_BITS, CELLS, MOST_DOCUMENTS, idf
from gpu_dedup.recipe import DEFINITIONS, Recipe

MAGIC = b"GDTERMS\0"
VERSION = 1
HEAD = 4096
TABLE_BYTES = 4 * CELLS
SIZE = HEAD + TABLE_BYTES
_HEAD = struct.Struct("<8sIIQ32s32s")
_SUM = struct.Struct("<Q")

# Fields of a recipe that do not change which terms a text has. All others do, those that a later version adds too, if
# they are not at their defaults.
ELSEWHERE = frozenset(
    (
        "method", "text_field", "id_field", "min_shingles", "on_no_text", "on_bad_row", "on_bad_file", "threshold_ppm",
        "recall_ppm", "sketch", "num_perm", "bands", "rows", "seed", "sieve_cut", "distance", "weights", "top_terms",
        "df_checksum", "bucket_cap", "cap_lowest", "cap_splits", "cap_slots", "verify", "edit_max_chars", "cluster",
        "witness", "keep", "action", "limit", "key_field", "key_action", "capacity", "fp_rate_ppb", "format", "lines",
        "search_distance", "near_action", "far_distance", "far_jaccard_ppm", "far_edit_ppm", "far_action",
    )
)  # fmt: skip


def terms_key(recipe: Recipe) -> str:
    """32 hex digits over all that decides which terms a text has."""
    from gpu_dedup.kernels.unicode import UNICODE_VERSION

    plain = Recipe()
    parts = {f.name: getattr(recipe, f.name) for f in fields(recipe) if f.name not in ELSEWHERE}
    parts = {name: value for name, value in parts.items() if value != getattr(plain, name)}
    parts |= {"normalize": recipe.steps, "shingle": recipe.shingle, "stop_shingles": sorted(recipe.stop_shingles)}
    text = json.dumps([parts, DEFINITIONS, UNICODE_VERSION], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_table(path: str) -> bool:
    """True for a file that begins as a table does."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class DocumentFrequencies:
    """How many documents have a term, by cell.

    key        of the terms that are counted
    documents  documents with a term
    counts     uint32[2**24]
    """

    def __init__(self, key: str, documents: int = 0, counts: U32 | None = None) -> None:
        self.key = key
        self.documents = documents
        self.counts = np.zeros(CELLS, np.uint32) if counts is None else counts

    def add(self, backend: Backend, cells: U32, documents: int) -> None:
        """Count what `Backend.cells` found in `documents` texts; one thread at a time. Raises RunError."""
        self._grow(documents)
        backend.add_cells(self.counts, cells)

    def merge(self, other: DocumentFrequencies) -> None:
        """Add the counts of another part of the corpus. Raises RecipeError for other terms, RunError."""
        if other.key != self.key:
            raise RecipeError(
                "two tables of document frequencies count different terms; make both with one normaliser, shingle and "
                "list of stop shingles"
            )
        self._grow(other.documents)
        self.counts += other.counts

    def _grow(self, documents: int) -> None:
        if self.documents + documents > MOST_DOCUMENTS:
            raise RunError(
                f"{self.documents + documents:,} documents are more than the {MOST_DOCUMENTS:,} that a table counts; "
                "count a part of them and give its table with --df-table"
            )
        self.documents += documents

    @property
    def cells(self) -> int:
        """Cells that some document has."""
        return int(np.count_nonzero(self.counts))

    def idf(self) -> U32:
        """uint32[2**24]: the weight of each cell, 16.16 fixed point, 1.0 and more."""
        return idf(self.counts, self.documents)

    def checksum(self) -> str:
        """32 hex digits over the documents and their counts."""
        found = hashlib.sha256(struct.pack("<Q", self.documents))
        found.update(np.ascontiguousarray(self.counts, "<u4").data)
        return found.hexdigest()[:32]

    def save(self, path: str, overwrite: bool = False) -> None:
        """Write the table under a temporary name, bring it to the disk, give it its name.

        overwrite: also where another table is. What is no table is never replaced. Raises OutputError.
        """
        if os.path.lexists(path) and not is_table(path):
            raise OutputError(f"{shown(path)}: a file that is no table stands there; name another")
        if os.path.lexists(path) and not overwrite:
            if self._is_at(path):  # of a run that was stopped after it
                return
            raise OutputError(f"{shown(path)}: another table is there already; name another file, or pass --overwrite")
        head = _HEAD.pack(MAGIC, VERSION, CELL_BITS, self.documents, self.key.encode(), self.checksum().encode())
        head += _SUM.pack(xxhash.xxh3_64_intdigest(head))
        temp = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temp, "xb") as file:
                file.write(head.ljust(HEAD, b"\0"))
                file.write(np.ascontiguousarray(self.counts, "<u4").data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise disk_error(error, path, "another file") from error

    def _is_at(self, path: str) -> bool:
        try:
            there = DocumentFrequencies.load(path)
        except InputError:
            return False
        return (there.key, there.checksum()) == (self.key, self.checksum())

    @classmethod
    def load(cls, path: str, key: str | None = None) -> DocumentFrequencies:
        """Read a table. key: of the terms that it has to count; None: any.

        Raises InputError for a file that is none, is cut short or altered, RecipeError for other terms.
        """
        place = shown(path)
        try:
            with open(path, "rb") as file:
                head = file.read(HEAD)
                size = os.fstat(file.fileno()).st_size
                known = head[: len(MAGIC)] == MAGIC and len(head) >= _HEAD.size + _SUM.size
                if not known:
                    raise InputError(
                        "is no table of document frequencies",
                        "give a file that --save-df-table wrote",
                        place=place,
                    )
                _, version, bits, documents, terms, checksum = _HEAD.unpack(head[: _HEAD.size])
                if version != VERSION:
                    raise InputError(
                        f"is of version {version}, and this gpu-dedup reads version {VERSION}",
                        "write it again with --save-df-table",
                        place=place,
                    )
                damaged = InputError("is cut short or was altered", "write it again with --save-df-table", place=place)
                (sum_,) = _SUM.unpack(head[_HEAD.size : _HEAD.size + _SUM.size])
                if sum_ != xxhash.xxh3_64_intdigest(head[: _HEAD.size]) or bits != CELL_BITS or size != SIZE:
                    raise damaged
                if any(head[_HEAD.size + _SUM.size :]):  # nothing but zeros, in this version
                    raise damaged
                counts = np.fromfile(file, "<u4", CELLS).astype(np.uint32, copy=False)
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror})", "give a file that --save-df-table wrote", place=place
            ) from error
        found = cls(terms.decode("ascii", "replace"), documents, counts)
        if len(counts) != CELLS or found.checksum().encode() != checksum:
            raise damaged
        if documents > MOST_DOCUMENTS or int(counts.max()) > documents:
            raise damaged
        if key is not None and key != found.key:
            raise RecipeError(
                f"{place}: counts the terms of another normaliser, shingle or list of stop shingles (or of another "
                "version's); give the same as when it was made, or count again without --df-table"
            )
        return found
