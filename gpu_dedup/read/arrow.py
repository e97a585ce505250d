"""Arrow IPC: files (.arrow, .feather of version 2) and streams, told apart by how they begin, in chunks of batches.

Arrow trusts the offsets in a file: one that points outside its buffer is read without a question. So every batch is
checked before anything looks into it, all of it but whether texts are UTF-8, which the rows answer for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from gpu_dedup.errors import InputError, InternalError
from gpu_dedup.read.chunks import ChunkRef, Reader
from gpu_dedup.read.discover import Source
from gpu_dedup.read.parquet import OVERSIZE, ColumnChunk, nbytes_of, path_of, pieces
from gpu_dedup.read.remote import native
from gpu_dedup.read.streams import RawFile, hash_file, unreadable

MAGIC = b"ARROW1"
_OLD_FEATHER = b"FEA1"
# How another file begins, and what to do about it.
_FOREIGN = (
    (_OLD_FEATHER, "a Feather file of version 1", "write it anew with a newer Arrow or pandas"),
    (b"PAR1", "a Parquet file", "name it .parquet"),
    (b"\x1f\x8b", "gzip data", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "zstd data", "unpack it"),
    (b"{", "JSON", "name it .jsonl"),
)
_CODECS = {0: "lz4", 1: "zstd"}  # Message.fbs, CompressionType


class ArrowReader(Reader):
    """An Arrow IPC file or stream in chunks, never across record batches. Memory: one record batch."""

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
        self._rows = 0
        self._content_hash: str | None = None
        self._check = RawFile(source)  # is it still the file that was discovered?
        self._file: Any = None
        try:
            head = self._check.read(64)
            for magic, what, remedy in _FOREIGN:
                if head.startswith(magic):
                    raise InputError(
                        f"not Arrow IPC: this looks like {what}",
                        f"{remedy}, or pass --on-bad-file skip",
                        place=source.name,
                    )
            self.is_file = head.startswith(MAGIC)
            with self._errors():
                self._reader = self._open(None)
                self._schema = self._reader.schema
            for name in later:
                path_of(self._schema, name, source.name)
            self._read = set(self._schema.names)
            if columns is not None:
                found = {path[0] for name in columns if (path := path_of(self._schema, name, source.name))}
                if found and len(found) < len(self._schema.names):
                    self._read = found
                    with self._errors():
                        self._reader = self._open([i for i, name in enumerate(self._schema.names) if name in found])
        except BaseException:
            self.close()
            raise

    def _open(self, fields: list[int] | None) -> Any:
        """A reader from the start, of the top-level columns of these numbers, or of all."""
        if self._file is not None:
            self._file.close()
        self._file = native(self.source.path)
        self._fields = fields
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        open_it = pa.ipc.open_file if self.is_file else pa.ipc.open_stream
        return open_it(self._file, options=options)

    @property
    def schema(self) -> Any:
        """Of the file, whatever columns are read."""
        return self._schema

    @property
    def footer(self) -> Any:
        """Key-value metadata of a file's footer; None for a stream and for a file without."""
        return getattr(self._reader, "metadata", None) if self.is_file else None  # since pyarrow 21

    @property
    def bytes_read(self) -> int:
        return self._bytes

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError, EOFError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(self.source, error) from error
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"truncated, corrupt or unreadable Arrow data after {self._rows} rows ({why})",
                "get a whole copy of the file, or pass --on-bad-file skip",
                place=self.source.name,
            ) from error

    def batches(self) -> Iterator[tuple[Any, Any, int]]:
        """Every record batch from where the reader stands, checked; its own metadata; where it ends in the file."""
        number = 0
        while True:
            with self._errors():
                if self.is_file:
                    if number == self._reader.num_record_batches:
                        return
                    batch, about = self._reader.get_batch_with_custom_metadata(number)
                    end = self.source.size * (number + 1) // self._reader.num_record_batches
                else:
                    try:
                        batch, about = self._reader.read_next_batch_with_custom_metadata()
                    except StopIteration:
                        return
                    end = self._file.tell()
                check(batch)
            number += 1
            yield batch, about, min(end, self.source.size)

    def __iter__(self) -> Iterator[ColumnChunk]:
        for number, (batch, _, end) in enumerate(self.batches()):
            start = 0
            held: list[Any] = []
            held_rows = held_bytes = 0
            for piece in pieces(batch, OVERSIZE * self._batch):
                held.append(piece)
                held_rows += piece.num_rows
                held_bytes += nbytes_of(piece)
                last = start + held_rows == batch.num_rows
                if held_bytes >= self._batch or last:
                    nbytes = (
                        (end - self._bytes) if last else (end - self._bytes) * held_rows // (batch.num_rows - start)
                    )
                    ref = ChunkRef(self._rows, held_rows, number, start, 0)
                    self._rows += held_rows
                    self._bytes += nbytes
                    start += held_rows
                    yield self._chunk(nbytes, ref, held)
                    held, held_rows, held_bytes = [], 0, 0
        self._bytes = self.source.size

    def _chunk(self, nbytes: int, ref: ChunkRef, batches: list[Any]) -> ColumnChunk:
        return ColumnChunk(self.file_index, nbytes, ref, batches, self.source.name, self._schema, self._read)

    def read_refs(self, refs: Sequence[ChunkRef]) -> Iterator[ColumnChunk]:
        if any(a[2:4] >= b[2:4] for a, b in pairwise(refs)):
            raise InternalError("chunks are read again in the order of the file")
        if not self.is_file and refs:
            with self._errors():
                self._reader = self._open(self._fields)
        at = -1
        batch: Any = None
        stream = self.batches() if not self.is_file else None
        for ref in refs:
            while at < ref.part:
                if stream is not None:
                    batch = next(stream, (None,))[0]
                    at += 1
                else:
                    with self._errors():
                        batch = self._reader.get_batch(ref.part)
                        check(batch)
                    at = ref.part
            if batch is None or ref.offset + ref.rows > batch.num_rows:
                raise InternalError(
                    f"{self.source.path}: record batch {ref.part} ends before row {ref.offset + ref.rows}"
                )
            nbytes = self.source.size * ref.rows // max(self._rows, ref.first_row + ref.rows)
            self._bytes += nbytes
            yield self._chunk(nbytes, ref, [batch.slice(ref.offset, ref.rows)])

    def content_hash(self) -> str:
        if self._content_hash is None:
            self._content_hash = hash_file(self.source)
        return self._content_hash

    def compression(self) -> str | None:
        """Codec of the first record batch's buffers: 'lz4', 'zstd' or None. pyarrow does not say."""
        with self._errors(), native(self.source.path) as file:
            if self.is_file:
                file.seek(8)
            messages = pa.ipc.MessageReader.open_stream(file)
            while True:
                try:
                    message = messages.read_next_message()
                except StopIteration:
                    return None
                if message.type == "record batch":
                    return body_codec(message.metadata)

    def __enter__(self) -> ArrowReader:
        return self

    def close(self) -> None:
        self._check.close()
        if self._file is not None:
            self._file.close()


def check(batch: Any) -> None:
    """Raise ArrowInvalid for a batch whose buffers are not as its types ask; texts need not be UTF-8."""
    batch.validate()
    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise
            _without_utf8(column).validate(full=True)


def _without_utf8(column: Any) -> Any:
    """The column with bytes in place of texts, where Arrow can take it so: the same buffers under another name."""
    if isinstance(column.type, pa.BaseExtensionType):
        return _without_utf8(column.storage)
    return column.view(_bytes_type(column.type))


def _bytes_type(kind: Any) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return _bytes_type(kind.storage_type)
    for test, other in (
        (pa.types.is_string, pa.binary()),
        (pa.types.is_large_string, pa.large_binary()),
        (pa.types.is_string_view, pa.binary_view()),
    ):
        if test(kind):
            return other
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _bytes_type(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_bytes_type(field.type)) for field in kind])
    for test, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list_view, pa.list_view),
        (pa.types.is_large_list_view, pa.large_list_view),
    ):
        if test(kind):
            return make(kind.value_field.with_type(_bytes_type(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_bytes_type(kind.value_type)), kind.list_size)
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_bytes_type(kind.key_type))
        return pa.map_(key, kind.item_field.with_type(_bytes_type(kind.item_type)), kind.keys_sorted)
    return kind


def body_codec(metadata: Any) -> str | None:
    """Codec of a RecordBatch message, from its flatbuffer (format/Message.fbs: Message.header is field 2,
    RecordBatch.compression field 3, BodyCompression.codec field 0)."""
    data = np.frombuffer(metadata, np.uint8).tobytes()

    def number(at: int, size: int, signed: bool = False) -> int:
        if at < 0 or at + size > len(data):
            raise pa.ArrowInvalid("the header of a record batch is cut")
        return int.from_bytes(data[at : at + size], "little", signed=signed)

    def field(table: int, slot: int) -> int:
        """Where a field of a table is; 0 where it has its default."""
        vtable = table - number(table, 4, signed=True)
        if number(vtable, 2) <= 4 + 2 * slot:
            return 0
        inside = number(vtable + 4 + 2 * slot, 2)
        return table + inside if inside else 0

    def table_at(place: int) -> int:
        return place + number(place, 4) if place else 0

    batch = table_at(field(number(0, 4), 2))
    compression = table_at(field(batch, 3)) if batch else 0
    if not compression:
        return None
    codec = field(compression, 0)
    return _CODECS.get(number(codec, 1, signed=True) if codec else 0)
