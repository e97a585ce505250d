"""Parquet: chunks of record batches, only the columns that are needed, and their texts whatever string type they have.

pyarrow does not look whether strings are UTF-8; here every text is checked, and one that is not makes a bad row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_dedup.backend import Backend
from gpu_dedup.batch import MISSING, ROW_BAD, ROW_SKIPPED, ROW_TEXT, Bool, Rows, Tape, TypedText
from gpu_dedup.errors import InputError, InternalError, shown
from gpu_dedup.read import items
from gpu_dedup.read.chunks import PAD, Chunk, ChunkRef, Reader, columns_here, only_one, quoted, replaced, why_not_utf8
from gpu_dedup.read.discover import Source
from gpu_dedup.read.remote import is_remote, native
from gpu_dedup.read.streams import RawFile, hash_file, unreadable

# Rows decoded at a time. A column's size in the file says nothing about its decoded size where the pages are dictionary
# coded (a thousand copies of a megabyte take one), so a batch is kept small in rows and several make a chunk.
BATCH_ROWS = 1024
# A batch more than this many times larger than asked for is halved, and so are its halves.
OVERSIZE = 4
BLOCK = 1 << 20  # bytes of a column read from the file at a time

_TEXT_TYPES = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_null,
)  # fmt: skip


def is_text(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return is_text(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return any(test(kind) for test in _TEXT_TYPES)


def _as_bytes(array: Any) -> Any:
    """An array of texts of any type as large_binary: 64-bit offsets, so that nothing overflows when arrays join."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        words = _as_bytes(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, words).dictionary_decode()
    return array.cast(pa.large_binary())


def path_of(schema: Any, name: str, path: str) -> list[str] | None:
    """Where a name leads: to a column of that name, else by its dotted parts into structs; None: nowhere.

    path  of the file, for the InputError where more than one column has the name
    """
    if name in schema.names:
        only_one(schema.names, name, name, path)
        return [name]
    parts = name.split(".")
    if len(parts) < 2 or parts[0] not in schema.names:
        return None
    only_one(schema.names, parts[0], name, path)
    kind = schema.field(parts[0]).type
    for part in parts[1:]:
        names = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        if part not in names:
            return None
        only_one(names, part, name, path)
        kind = kind.field(names.index(part)).type
    return parts


def _type_at(schema: Any, path: list[str]) -> Any:
    kind = schema.field(path[0]).type
    for part in path[1:]:
        kind = kind.field(part).type
    return kind


def _column(batch: Any, path: list[str]) -> Any:
    array = batch.column(path[0])
    return pc.struct_field(array, path[1:]) if len(path) > 1 else array


_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)


def _binary(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return TypedText(value.hex(), "bytes")


def _python(array: Any) -> list[Any]:
    """Python values that sort as they do in the column: times as ISO text, durations as counts of their unit, bytes as
    text, or, where a binary value is none, as hexadecimal digits. Broken UTF-8 in strings is U+FFFD."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        values = _python(array.storage)
        if kind.extension_name == "arrow.uuid":
            return [value if value is None else TypedText(str(UUID(bytes=value)), "uuid") for value in values]
        return values
    if pa.types.is_dictionary(kind) and is_text(kind):
        return _python(_as_bytes(array))
    if pa.types.is_duration(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_temporal(kind):
        name = "timestamp" if pa.types.is_timestamp(kind) else "date" if pa.types.is_date(kind) else "time"
        texts = array.cast(pa.string()).to_pylist()
        return [text if text is None else TypedText(text, name) for text in texts]
    if is_text(kind):
        values = _as_bytes(array).to_pylist()
        if any(test(kind) for test in _BINARY):
            return [value if value is None else _binary(value) for value in values]
        return [value if value is None else value.decode("utf-8", "replace") for value in values]
    return list(array.to_pylist())


class ColumnChunk(Chunk):
    """Some consecutive rows of one row group (Parquet) or record batch (Arrow)."""

    def __init__(
        self,
        file_index: int,
        nbytes: int,
        ref: ChunkRef,
        batches: Sequence[Any],
        path: str,
        schema: Any,
        read: set[str],
    ) -> None:
        super().__init__(file_index, nbytes, ref)
        self._batches = batches
        self._path = path
        self._schema = schema
        self._read = read

    @property
    def held(self) -> int:
        return sum(map(nbytes_of, self._batches))

    def _find(self, name: str) -> list[str] | None:
        path = path_of(self._schema, name, self._path)
        if path is not None and path[0] not in self._read:
            raise InternalError(f"column {name!r} was not named when {self._path} was opened")
        return path

    def _texts(self, fields: Sequence[str]) -> list[list[str]]:
        """Paths of the text columns; refuses a file that cannot give a text."""
        paths = []
        for name in fields:
            path = self._find(name)
            if path is not None:
                kind = _type_at(self._schema, path)
                if not is_text(kind):
                    raise InputError(
                        f"column {quoted([name])} holds {kind}, not text",
                        "name another with --text-field, or pass --on-bad-file skip",
                        place=shown(self._path),
                    )
                paths.append(path)
        if not paths:
            raise InputError(
                f"no column {quoted(fields)} ({columns_here(self._schema.names, fields)})",
                "name the right one with --text-field, or pass --on-bad-file skip",
                place=shown(self._path),
            )
        return paths

    def parse(
        self, backend: Backend, fields: Sequence[str], extra: Sequence[str] = (), want: Bool | None = None
    ) -> Rows:
        paths = self._texts(fields)
        n = self.ref.rows
        wanted = np.ones(n, np.bool_) if want is None else want
        arrays = []
        for batch in self._batches:
            columns = [_as_bytes(_column(batch, path)) for path in paths]
            array = columns[0]
            for column in columns[1:]:
                # Null where either is null, then filled from the one that is not. (The join can skip nulls itself, but
                # pyarrow 26 then drops the rows where all are null.)
                both = pc.binary_join_element_wise(array, column, pa.scalar(b"\n", pa.large_binary()))
                array = pc.coalesce(both, array, column)
            arrays.append(array)
        array = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        tape = _tape(array)
        known = _valid(array)
        # Rows that are not wanted go by their status alone: pyarrow before 24 gives if_else of a slice wrong values.
        good = wanted & known & backend.valid_utf8(tape)
        status = np.where(good, ROW_TEXT, np.where(wanted, ROW_BAD, ROW_SKIPPED)).astype(np.uint8)
        null = (
            f'field "{quoted(fields)}" is null' if len(fields) == 1 else f"all of the fields {quoted(fields)} are null"
        )
        errors: list[tuple[int, str]] = []
        for i in np.flatnonzero(status == ROW_BAD).tolist():
            errors.append((self.first_row + i, why_not_utf8(tape[i]) if known[i] else null))
        lengths = np.diff(tape.offsets)
        tape = replaced(tape, dict.fromkeys(np.flatnonzero(~good & (lengths > 0)).tolist(), b""))
        return Rows(self.first_row, tape, status, errors, {name: self._values(name, status) for name in extra})

    def items(self, backend: Backend, field: str, extra: Sequence[str] = (), want: Bool | None = None) -> Rows:
        path = self._find(field)
        if path is None:
            raise InputError(
                f"no column {quoted([field])} ({columns_here(self._schema.names, [field])})",
                "name the right one with --pretokenized, or pass --on-bad-file skip",
                place=shown(self._path),
            )
        kind = _type_at(self._schema, path)
        if not _is_list(kind) or not (is_text(kind.value_type) or pa.types.is_integer(kind.value_type)):
            raise InputError(
                f"column {quoted([field])} holds {kind}, not lists of strings or whole numbers",
                "name another with --pretokenized, or pass --on-bad-file skip",
                place=shown(self._path),
            )
        wanted = np.ones(self.ref.rows, np.bool_) if want is None else want
        tapes: list[tuple[Tape, Bool]] = []
        errors: list[tuple[int, str]] = []
        at = 0
        for batch in self._batches:
            here = wanted[at : at + batch.num_rows]
            tape, good, why = _token_texts(_column(batch, path), here, backend)
            errors += [(self.first_row + at + i, f'field "{quoted([field])}" {reason}') for i, reason in why]
            tapes.append((tape, good))
            at += batch.num_rows
        good = np.concatenate([one for _, one in tapes])
        status = np.where(good, ROW_TEXT, np.where(wanted, ROW_BAD, ROW_SKIPPED)).astype(np.uint8)
        tape = tapes[0][0]
        if len(tapes) > 1:
            sizes = np.concatenate([np.diff(one.offsets) for one, _ in tapes])
            offsets = np.zeros(len(sizes) + 1, np.int64)
            np.cumsum(sizes, out=offsets[1:])
            pieces_of = [one.blob[one.offsets[0] : one.offsets[-1]] for one, _ in tapes]
            tape = Tape(np.concatenate([*pieces_of, np.zeros(PAD, np.uint8)]), offsets)
        return Rows(self.first_row, tape, status, errors, {name: self._values(name, status) for name in extra})

    def records(self, most: int) -> list[dict[str, int | None]]:
        names = [name for name in self._schema.names if self._schema.names.count(name) == 1]
        lengths: dict[str, list[int | None]] = {}
        rows = min(most, self.ref.rows)
        for name in names:
            lengths[name] = [None] * rows
            kind = self._schema.field(name).type
            if name not in self._read or not is_text(kind) or pa.types.is_null(kind):
                continue
            at = 0
            for batch in self._batches:
                values = _python(batch.column(name).slice(0, rows - at)) if at < rows else []
                lengths[name][at : at + len(values)] = [None if value is None else len(value) for value in values]
                at += len(values)
        return [{name: lengths[name][row] for name in names} for row in range(rows)]

    def keeper_values(self, values: list[Any]) -> list[Any]:
        """Texts of other types sort as these do."""
        return [str(value) if isinstance(value, TypedText) else value for value in values]

    def _values(self, name: str, status: Any) -> list[Any]:
        values: list[Any] = [MISSING] * self.ref.rows
        path = self._find(name)
        if path is None:
            return values
        at = 0
        for batch in self._batches:
            rows = np.flatnonzero(status[at : at + batch.num_rows] == ROW_TEXT)
            array = _column(batch, path)
            if len(rows) < batch.num_rows:
                array = array.take(pa.array(rows))
            try:
                column = _python(array)
            except (UnicodeDecodeError, ValueError, pa.ArrowException) as error:
                raise InputError(
                    f"column {quoted([name])} holds values of {array.type} that cannot be shown "
                    f"({str(error).splitlines()[0]})",
                    "name another field",
                    place=shown(self._path),
                ) from error
            for row, value in zip(rows.tolist(), column, strict=True):
                values[at + row] = value
            at += batch.num_rows
        return values


def _is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _token_texts(array: Any, wanted: Bool, backend: Backend) -> tuple[Tape, Bool, list[tuple[int, str]]]:
    """Texts of lists of tokens (see items.py), which rows have one, and why the others that are wanted have none."""
    known = _valid(array)
    sizes = np.asarray(pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()).to_numpy(), np.int64)
    flat = pc.list_flatten(array)
    rows = np.repeat(np.arange(len(array)), sizes)
    there = _valid(flat)
    bad: dict[int, str] = {}  # first reason of a row

    def complain(at: int, what: str) -> None:
        row = int(rows[at])
        first = int(np.searchsorted(rows, row))
        bad.setdefault(row, f"item {at - first} is {what}; items are strings or whole numbers")

    if is_text(flat.type):
        words = _as_bytes(flat)
        tape = _tape(words)
        utf8 = backend.valid_utf8(tape)
        for at in np.flatnonzero(~there | ~utf8).tolist():
            complain(at, "null" if not there[at] else why_not_utf8(tape[at]))
        changed: dict[int, bytes] = {}
        for at in items.odd(tape).tolist():
            if there[at] and utf8[at]:
                changed[at] = items.written(tape[at].decode()).encode()
        tape = replaced(tape, changed)
        words = pa.Array.from_buffers(
            pa.large_binary(),
            len(flat),
            [None, pa.py_buffer(np.ascontiguousarray(tape.offsets)), pa.py_buffer(tape.blob)],
        )
    else:
        for at in np.flatnonzero(~there).tolist():
            complain(at, "null")
        words = pc.fill_null(flat.cast(pa.string()), "").cast(pa.large_binary())
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), words)
    joined = _tape(pc.binary_join(lists, pa.scalar(b" ", pa.large_binary())))
    good = known & wanted
    good[list(bad)] = False
    why = [(i, bad.get(i, "is null")) for i in np.flatnonzero(wanted & ~good).tolist()]
    empty = np.flatnonzero(~good & (np.diff(joined.offsets) > 0))
    return replaced(joined, dict.fromkeys(empty.tolist(), b"")), good, why


def _valid(array: Any) -> Bool:
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    there = array.is_valid()  # bits, taken apart here: `to_numpy` imports pandas
    bits = np.unpackbits(np.frombuffer(there.buffers()[1], np.uint8), bitorder="little")
    return bits[there.offset : there.offset + len(there)].astype(np.bool_)


def _tape(array: Any) -> Tape:
    """A large_binary array as it lies in Arrow's memory."""
    _, offsets, data = array.buffers()
    n = len(array)
    blob = np.zeros(PAD, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
    return Tape(blob, np.frombuffer(offsets, np.int64, count=array.offset + n + 1)[array.offset :])


def nbytes_of(batch: Any) -> int:
    """Bytes of a batch, without what its slices leave out."""
    total = 0
    for column in batch.columns:
        try:
            total += column.nbytes
        except pa.ArrowException:  # pyarrow before 22 cannot tell of string_view and binary_view
            total += _as_bytes(column).nbytes if is_text(column.type) else column.get_total_buffer_size()
    return total


def pieces(batch: Any, most: int) -> Iterator[Any]:
    """The batch in pieces of at most so many bytes, or one row; no batch without rows."""
    if batch.num_rows > 1 and nbytes_of(batch) > most:
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half), most)
        yield from pieces(batch.slice(half), most)
    elif batch.num_rows:
        yield batch


def largest_group(source: Source) -> int:
    """Bytes of the largest row group of a file before compression; its size where that cannot be told."""
    if is_remote(source.path):
        return source.size
    try:
        about = pq.read_metadata(source.path)
    except (pa.ArrowException, OSError, UnicodeError):
        return source.size
    return max((int(about.row_group(i).total_byte_size) for i in range(about.num_row_groups)), default=0)


class ParquetReader(Reader):
    """A Parquet file in chunks, never across row groups. Memory: a few batches of the needed columns."""

    def __init__(
        self,
        source: Source,
        batch_bytes: int,
        file_index: int,
        columns: Sequence[str] | None,
        later: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.file_index = file_index
        self._batch = batch_bytes
        self._bytes = 0
        self._content_hash: str | None = None
        self._rows = 0
        RawFile(source).close()  # is it still the file that was discovered?
        with self._errors():
            file = native(source.path)
            self._file = pq.ParquetFile(file, pre_buffer=False, buffer_size=BLOCK)
            self._schema = self._file.schema_arrow
            self._meta = self._file.metadata
        try:
            for name in later:
                path_of(self._schema, name, source.name)
            found = None
            if columns is not None:
                found = [path for name in columns if (path := path_of(self._schema, name, source.name))]
        except InputError:
            self.close()
            raise
        self._columns = None if found is None else [".".join(path) for path in found]
        self._read = set(self._schema.names) if found is None else {path[0] for path in found}

    @property
    def bytes_read(self) -> int:
        return self._bytes

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(self.source, error) from error
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"truncated, corrupt or unreadable Parquet data after {self._rows} rows ({why})",
                "get a whole copy of the file, or pass --on-bad-file skip",
                place=self.source.name,
            ) from error

    def _batches(self, group: int) -> Iterator[Any]:
        """Record batches of a row group, with its number of rows whatever the columns."""
        left = self._meta.row_group(group).num_rows
        batches = self._file.iter_batches(BATCH_ROWS, [group], self._columns, use_threads=False)
        while True:
            with self._errors():
                batch = next(batches, None)
            if batch is None:
                break
            left -= batch.num_rows
            yield batch
        if left:
            raise InputError(
                f"truncated or corrupt Parquet data: row group {group} differs by {left} rows from what the file says",
                "get a whole copy of the file, or pass --on-bad-file skip",
                place=self.source.name,
            )

    def __iter__(self) -> Iterator[ColumnChunk]:
        groups = self._meta.num_row_groups
        for group in range(groups):
            rows = self._meta.row_group(group).num_rows
            share = self.source.size * (group + 1) // groups
            start = 0
            held: list[Any] = []
            held_bytes = 0

            def chunk(batches: list[Any], at: int, nbytes: int, group: int = group) -> ColumnChunk:
                count = sum(batch.num_rows for batch in batches)
                ref = ChunkRef(self._rows, count, group, at, 0)
                self._rows += count
                self._bytes += nbytes
                return ColumnChunk(self.file_index, nbytes, ref, batches, self.source.name, self._schema, self._read)

            left = share - self._bytes
            for batch in self._batches(group):
                for piece in pieces(batch, OVERSIZE * self._batch):
                    held.append(piece)
                    held_bytes += nbytes_of(piece)
                    count = sum(one.num_rows for one in held)
                    if held_bytes >= self._batch:
                        nbytes = min(share - self._bytes, left * count // max(rows, 1))
                        yield chunk(held, start, nbytes)
                        start += count
                        held, held_bytes = [], 0
            if held:
                yield chunk(held, start, share - self._bytes)
            self._bytes = share

    def read_refs(self, refs: Sequence[ChunkRef]) -> Iterator[ColumnChunk]:
        waiting = list(refs)
        while waiting:
            group = waiting[0].part
            if group >= self._meta.num_row_groups:
                raise InternalError(f"{self.source.path}: it has no row group {group}")
            mine = [ref for ref in waiting if ref.part == group]
            if mine != waiting[: len(mine)] or any(a.offset + a.rows > b.offset for a, b in pairwise(mine)):
                raise InternalError("chunks are read again in the order of the file")
            del waiting[: len(mine)]
            at = 0
            held: list[Any] = []
            for batch in self._batches_until(group, mine[-1].offset + mine[-1].rows):
                end = at + batch.num_rows
                while mine and mine[0].offset < end:
                    ref = mine[0]
                    low = max(ref.offset, at)
                    held.append(batch.slice(low - at, min(ref.offset + ref.rows, end) - low))
                    if ref.offset + ref.rows > end:
                        break
                    nbytes = self.source.size * ref.rows // max(self._meta.num_rows, 1)
                    self._bytes += nbytes
                    yield ColumnChunk(self.file_index, nbytes, ref, held, self.source.name, self._schema, self._read)
                    held = []
                    del mine[0]
                at = end
            if mine:
                raise InternalError(
                    f"{self.source.path}: row group {group} ends before row {mine[0].offset + mine[0].rows}"
                )

    def _batches_until(self, group: int, rows: int) -> Iterator[Any]:
        for batch in self._batches(group):
            yield batch
            rows -= batch.num_rows
            if rows <= 0:
                return

    def content_hash(self) -> str:
        if self._content_hash is None:
            self._content_hash = hash_file(self.source)
        return self._content_hash

    def close(self) -> None:
        self._file.close(force=True)
