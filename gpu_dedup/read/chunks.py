"""What a reader gives: chunks of a file, in file order, and a reference to read one again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import I64, U8, Bool, Rows, Tape
from gpu_dedup.errors import InputError, InternalError, shown
from gpu_dedup.recipe import Recipe

_OPTIONS = ("--text-field", "--key-field")

LISTS_IN = "pretokenized takes JSON lines, Parquet or Arrow; convert the file, or leave it out"


class Member(NamedTuple):
    """A gzip member or zstd frame: its decompressed bytes, and where it lies in the file."""

    begin: int
    end: int
    raw_begin: int
    raw_end: int


PAD = 64  # spare bytes behind the lines of a chunk: kernels read 64 at a time


class ChunkRef(NamedTuple):
    """Where a chunk is, so that it can be read again. Plain numbers; small enough to keep for every chunk of a corpus.

    first_row  number in the file of its first row
    rows       physical rows in it
    part       Parquet: its row group; Arrow: its record batch; else 0
    offset     lines, CSV: byte of the (decompressed) file where its first row begins; else row of its group or batch
    size       lines, CSV: bytes; else 0
    """

    first_row: int
    rows: int
    part: int
    offset: int
    size: int


class Chunk(ABC):
    """Some whole rows of one file.

    file_index  as given to open_source
    first_row   number in the file of its first row (0-based physical line, or record number)
    nbytes      bytes of the file (compressed, where it is) that were read for it: for progress
    ref         to read it again
    bom         bytes before the first line that belong to the file, not to a row (BOM, header of CSV; chunk 0)
    members     gzip members or zstd frames that end in it, or at its beginning
    data        uint8[size + 64 or more], lines, CSV: its rows as they are; else empty
    size        bytes of data that are lines
    held        bytes of memory, about
    """

    bom: bytes = b""
    members: Sequence[Member] = ()
    data: U8 = np.zeros(PAD, np.uint8)
    size: int = 0

    def __init__(self, file_index: int, nbytes: int, ref: ChunkRef) -> None:
        self.file_index = file_index
        self.nbytes = nbytes
        self.ref = ref

    @property
    def held(self) -> int:
        return len(self.data)

    @property
    def first_row(self) -> int:
        return self.ref.first_row

    def count_rows(self) -> int:
        """Physical rows in it, blank lines included."""
        return self.ref.rows

    @abstractmethod
    def parse(
        self, backend: Backend, fields: Sequence[str], extra: Sequence[str] = (), want: Bool | None = None
    ) -> Rows:
        """Take the rows apart.

        fields  names whose values, joined by a line feed, are the text. A name is a field of the record, or else a path
                into objects, split at its dots. With several, null and absent ones are left out if another is there
        extra   names whose values are wanted
        want    bool[count_rows()], or None for all: other rows are ROW_SKIPPED

        Raises InputError where the file as a whole cannot give such a text. Thread-safe, as often as wanted.
        """

    def items(self, backend: Backend, field: str, extra: Sequence[str] = (), want: Bool | None = None) -> Rows:
        """As `parse`, where each row's field is a list of tokens; the texts are those of gpu_dedup/read/items.py.

        Raises InputError where the file cannot give lists of strings or whole numbers.
        """
        raise InputError("plain text holds no lists", LISTS_IN)

    def rows(self, backend: Backend, recipe: Recipe, extra: Sequence[str] = (), want: Bool | None = None) -> Rows:
        """`parse` or `items`, as the recipe has it."""
        if recipe.pretokenized is not None:
            return self.items(backend, recipe.pretokenized, extra, want)
        if recipe.key_field is None or recipe.keyed:
            return self.parse(backend, recipe.texts_from, extra, want)
        # The field is a key that takes the text's place: what is wrong with it is told of its own option.
        try:
            rows = self.parse(backend, recipe.texts_from, extra, want)
        except InputError as error:
            raise InputError(error.reason, error.remedy.replace(*_OPTIONS), place=error.place) from None
        return replace(rows, errors=[(row, reason.replace(*_OPTIONS)) for row, reason in rows.errors])

    def keeper_values(self, values: list[Any]) -> list[Any]:
        """Values of a field, as `parse` gave them, as the keeper compares them."""
        return values

    def records(self, most: int) -> list[dict[str, int | None]]:
        """The first `most` records of the chunk, for a look at which fields there are: name of each top-level field,
        with the code points of its value where that is a string, else None. What is no record is left out."""
        return []

    def lines(self) -> I64:
        """int64[n + 1]: line i is data[starts[i]:starts[i + 1]], its terminator included; so are records of CSV."""
        raise InternalError("a chunk of columns has no lines")


class Reader(ABC):
    """One open file. Iterate it once, in one thread; or call read_refs, as often as wanted. Also a context manager."""

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes of the file (compressed, where it is) that were read so far."""

    @abstractmethod
    def __iter__(self) -> Iterator[Chunk]:
        """All chunks, in file order. Raises InputError where the file is cut, corrupt, or has changed."""

    @abstractmethod
    def read_refs(self, refs: Sequence[ChunkRef]) -> Iterator[Chunk]:
        """The chunks that gave these refs (ascending), one for each, whatever the batch size of either reader.

        Plain lines are read at the place, Parquet and Arrow files from the row groups or batches concerned, compressed
        lines and Arrow streams from the start on.
        """

    @abstractmethod
    def content_hash(self) -> str | None:
        """XXH3-64 of all bytes of the file, 16 hex digits. Lines, CSV: known once the iteration has come to its end.

        None for what is no file.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the file; chunks that were given stay good."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def replaced(tape: Tape, texts: Mapping[int, bytes]) -> Tape:
    """The tape with other texts for some documents (keys ascending); the tape itself where there are none."""
    if not texts:
        return tape
    old = tape.offsets
    lengths = np.diff(old)
    rows = np.fromiter(texts, np.int64, len(texts))
    lengths[rows] = np.fromiter(map(len, texts.values()), np.int64, len(texts))
    offsets = np.zeros(len(old), np.int64)
    np.cumsum(lengths, out=offsets[1:])
    blob = np.empty(int(offsets[-1]) + PAD, np.uint8)
    blob[offsets[-1] :] = 0
    done = 0
    for row, text in texts.items():
        blob[offsets[done] : offsets[row]] = tape.blob[old[done] : old[row]]
        blob[offsets[row] : offsets[row + 1]] = np.frombuffer(text, np.uint8)
        done = row + 1
    blob[offsets[done] : offsets[-1]] = tape.blob[old[done] : old[-1]]
    return Tape(blob, offsets)


def quoted(names: Sequence[str], most: int = 8) -> str:
    """Names for a one-line message: a few, each printable and of bounded length."""
    parts = []
    for name in names[:most]:
        text = name if name.isprintable() else ascii(name)[1:-1]
        parts.append(text if len(text) <= 40 else text[:37] + "...")
    if len(names) > most:
        parts.append(f"and {len(names) - most} more")
    return ", ".join(parts)


def columns_here(names: Sequence[str], wanted: Sequence[str], what: str = "columns") -> str:
    """For a message that a column is not there: the columns that are, and one that may be meant."""
    close = near_miss(names, wanted)
    return f"{what} here: {quoted(names)}" + (f"; is it {quoted([close])}?" if close else "")


def fields_here(names: Sequence[str], wanted: Sequence[str]) -> str:
    """The same for fields of a record."""
    return columns_here(names, wanted, "fields")


def near_miss(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The name most like one that is not there: case and blanks aside, else by its letters."""
    plain = {"".join(name.lower().split()): name for name in reversed(names)}
    for name in wanted:
        close = get_close_matches("".join(name.lower().split()), plain, 1, 0.75)
        if close:
            return plain[close[0]]
    return None


def only_one(names: Sequence[str], part: str, name: str, path: str) -> None:
    """Refuse a name that stands for several columns: none of them is the right one."""
    count = names.count(part)
    if count > 1:
        way = "" if part == name else f", on the way to {quoted([name])}"
        raise InputError(
            f"{count} columns are named {quoted([part])}{way}",
            "rename all but one, name another field, or pass --on-bad-file skip",
            place=shown(path),
        )


def why_not_utf8(text: bytes) -> str:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"not valid UTF-8 at byte {error.start + 1}"
    raise InternalError("a text was refused that is valid UTF-8")
