"""Surviving records of a Parquet file: same schema, same metadata, same codecs, row groups of the same scale.

Values pass through Arrow unchanged; nothing is concatenated, cast or parsed, so that nested columns, dictionaries and
texts of any total size come through. What cannot be kept: page sizes, page checksums, Bloom filters, compression levels
and the name of the writing program, none of which is part of the table.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpu_dedup.batch import Bool
from gpu_dedup.errors import InputError, InternalError, OutputError, disk_error, shown
from gpu_dedup.write.files import FileWriter

BATCH_BYTES = 16 << 20  # decoded bytes that a batch aims at, from the sizes in the row group's metadata
BATCH_ROWS = 4096  # and no more rows: a column of few long values repeated decodes to far more than its metadata says
GROUP_BYTES = 256 << 20  # surviving Arrow bytes that are held before a row group is written, whatever its scale
READ_BUFFER = 1 << 20  # column chunks are streamed through this, never read whole
_LEVELS = {"gzip": 6, "zstd": 3}  # Arrow's own are 9 (five times slower for nothing) and 1
_DELTAS = ("DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT")


class ParquetWriter(FileWriter):
    """A Parquet file of surviving records.

    path     the (temporary) name; OutputError where it cannot be written
    source   path of the input, or the open file (a path is better: it is opened so that column chunks are streamed)
    file     the source, open, where `source` is no path of this machine but its name
    threads  let Arrow's own pool decode columns at once; changes no byte

    As a context it closes the file at the end; after an error it only lets go of it. Raises InputError for a source
    that is not Parquet.
    """

    def __init__(
        self, path: str, source: pq.ParquetFile | str, threads: bool = True, file: pa.NativeFile | None = None
    ) -> None:
        self.path = path
        self.rows_written = 0
        self._source = shown(source) if isinstance(source, str) else "the Parquet input"
        self._own = isinstance(source, str)
        self._file: Any = _open(source, file) if isinstance(source, str) else source
        self._threads = threads
        self._sink: Any = None
        self._writer: Any = None
        self._closed = False

    def copy_rows(self, keep: Bool, advance: Callable[[int], object] | None = None) -> int:
        """Write the records i of the source with keep[i], in order; their number comes back. To be called once.

        keep     bool[n]; records from n on are left out
        advance  is told the compressed bytes of each row group as it is done

        Memory: one row group of survivors, at most about GROUP_BYTES (a single batch may pass it), plus a batch.
        A row group of the output has as many rows as the largest of the input; the last one has the rest. Empty ones
        are dropped, but for one where no record is kept.
        Raises InputError for a damaged file, OutputError for a disk that refuses or a column that pyarrow cannot write.
        """
        if self._writer is not None or self._closed:
            raise InternalError(f"{self.path}: one file in, one file out")
        file = self._file
        metadata = file.metadata
        if len(keep) > metadata.num_rows:
            raise InternalError(f"{len(keep)} keep bits for a file of {metadata.num_rows} records")
        mask = np.zeros(metadata.num_rows, np.bool_)
        mask[: len(keep)] = keep
        largest = max((metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)), default=1)
        return self._write_all(self._survivors(mask, advance), largest)

    def write_batches(self, parts: Iterator[list[Any]], largest: int) -> int:
        """Write record batches of the source's schema instead of its own records, in row groups of `largest` rows."""
        return self._write_all((batch for part in parts for batch in part), largest)

    def _write_all(self, batches: Iterator[Any], largest: int) -> int:
        file, metadata = self._file, self._file.metadata
        try:
            schema = file.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise _input_error(self._source, error) from error
        options, kept_schema = _settings(file, schema, self._source)
        try:
            # As bytes: Arrow takes no other name that is not UTF-8.
            self._sink = pa.OSFile(os.fsencode(self.path), "wb")
            self._writer = pq.ParquetWriter(self._sink, kept_schema, **options)
        except OSError as error:
            raise disk_error(error, self.path) from error
        held: list[Any] = []
        held_rows = held_bytes = 0
        for batch in batches:
            while batch.num_rows:
                part = batch.slice(0, largest - held_rows)
                batch = batch.slice(part.num_rows)
                held.append(part)
                held_rows += part.num_rows
                held_bytes += _nbytes(part)
                if held_rows == largest or held_bytes >= GROUP_BYTES:
                    self._write(held, kept_schema)
                    held, held_rows, held_bytes = [], 0, 0
        if held:
            self._write(held, kept_schema)
        if not self.rows_written and metadata.num_row_groups:
            # One empty row group, as pyarrow writes an empty table: up to version 18 it cannot read a file without.
            self._write([pa.RecordBatch.from_pylist([], schema)], kept_schema)
        if metadata.metadata:
            self._writer.add_key_value_metadata(metadata.metadata)
        return self.rows_written

    def _survivors(self, keep: Bool, advance: Callable[[int], object] | None) -> Iterator[Any]:
        """Batches of kept records, in order; row groups without one are not read."""
        file, name = self._file, self._source
        row = 0
        for group in range(file.metadata.num_row_groups):
            about = file.metadata.row_group(group)
            end = row + about.num_rows
            if about.num_rows and keep[row:end].any():
                each = max(1, about.total_byte_size // about.num_rows)
                rows = int(min(BATCH_ROWS, max(1, BATCH_BYTES // each)))
                batches = file.iter_batches(batch_size=rows, row_groups=[group], use_threads=self._threads)
                while True:
                    try:
                        batch = next(batches)
                    except StopIteration:
                        break
                    except (pa.ArrowException, OSError) as error:
                        raise _input_error(name, error) from error
                    if row + batch.num_rows > end:
                        raise InputError(
                            f"{name}: row group {group} holds more records than it declares; write it anew"
                        )
                    yield filter_batch(batch, keep[row : row + batch.num_rows])
                    row += batch.num_rows
                if row != end:
                    raise InputError(f"{name}: row group {group} holds fewer records than it declares; write it anew")
            row = end
            if advance is not None:
                advance(sum(about.column(i).total_compressed_size for i in range(about.num_columns)))

    def _write(self, batches: list[Any], schema: Any) -> None:
        # A table of many chunks: joining them would pass the 2 GiB that a column of 32-bit offsets can hold.
        table = pa.Table.from_batches(batches, batches[0].schema).replace_schema_metadata(schema.metadata)
        try:
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        except OSError as error:
            raise disk_error(error, self.path) from error
        except pa.ArrowException as error:
            raise _schema_error(self._source, str(error)) from error
        self.rows_written += table.num_rows

    def close(self) -> None:
        """Write the footer and close. Raises OutputError."""
        if self._own:
            self._file.close(force=True)
        if self._writer is None or self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
            self._sink.close()
        except OSError as error:
            self._drop()
            raise disk_error(error, self.path) from error

    def abort(self) -> None:
        """Let go of the file without completing it; whoever gave the name removes it."""
        if self._own:
            self._file.close(force=True)
        if not self._closed:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        # pyarrow can only let go of a file by writing its footer; on a full disk that fails too.
        if self._writer is not None:
            try:
                self._writer.close()
            except (OSError, pa.ArrowException):
                pass
            finally:
                self._writer.is_open = False  # or its destructor would try again
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._sink.close()


def _open(path: str, file: Any) -> Any:
    try:
        # As bytes: Arrow takes no other name that is not UTF-8.
        return pq.ParquetFile(file or pa.OSFile(os.fsencode(path)), buffer_size=READ_BUFFER, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise _input_error(shown(path), error) from error


def _input_error(name: str, error: Exception) -> InputError:
    text = str(error).splitlines()
    return InputError(
        f"{name}: cannot be read as Parquet ({text[0] if text else type(error).__name__}); write or fetch it anew"
    )


def _schema_error(name: str, what: str) -> OutputError:
    return OutputError(
        f"{name}: pyarrow {pa.__version__} cannot write this Parquet file back unchanged ({what.splitlines()[0]}); "
        "use a newer pyarrow, or convert the file to JSONL first"
    )


def _nbytes(batch: Any) -> int:
    try:
        return int(batch.nbytes)
    except pa.ArrowException:  # views have no sizes of slices before Arrow 22: the whole buffers, if anything too much
        return int(batch.get_total_buffer_size())


def filter_batch(batch: Any, keep: Bool) -> Any:
    """The records of a batch that are kept."""
    if keep.all():
        return batch
    if not keep.any():
        return batch.slice(0, 0)
    mask = pa.array(keep)
    return pa.RecordBatch.from_arrays(
        [_filter_column(column, mask, keep) for column in batch.columns], schema=batch.schema
    )


def _filter_column(column: Any, mask: Any, keep: Bool) -> Any:
    try:
        return column.filter(mask)
    except pa.ArrowNotImplementedError:
        # No kernel for this type (string_view and what holds one, as of Arrow 26): the kept stretches, joined.
        padded = np.zeros(len(keep) + 2, np.bool_)
        padded[1:-1] = keep
        edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
        return pa.concat_arrays(
            [column.slice(begin, end - begin) for begin, end in zip(edges[0::2], edges[1::2], strict=True)]
        )


def _settings(file: Any, schema: Any, name: str) -> tuple[dict[str, Any], Any]:
    """Options for a writer whose file has the schema of `file`, physical and logical, and the schema to give it.

    The key-value metadata is added at the end as it was read, ARROW:schema included, so Arrow must not store its own:
    that would add it to files of other programs, and re-type what Arrow reads in another type than it was written in.
    How a Parquet schema came about (names inside lists, INT96 times, format version) is not on record, so the few ways
    that Arrow knows are tried on an empty file in memory.
    """
    options = _column_options(file)
    version = str(file.metadata.format_version)
    versions = [version] if version in ("1.0", "2.4", "2.6") else []
    versions += [other for other in ("2.6", "1.0") if other not in versions]
    int96 = any(file.schema.column(i).physical_type == "INT96" for i in range(len(file.schema)))
    plain = schema.remove_metadata()
    logical: dict[str, Any] | None = None
    for candidate in versions:
        for compliant in (True, False):
            for as_integer in (False, True):
                ways = {
                    "version": candidate,
                    "use_compliant_nested_type": compliant,
                    "use_deprecated_int96_timestamps": int96,
                }
                if as_integer:
                    ways["store_decimal_as_integer"] = True
                try:
                    again = _empty_copy(file, plain, ways)
                except (pa.ArrowException, TypeError):  # TypeError: an option that this pyarrow does not have yet
                    continue
                if not again.schema_arrow.equals(schema, check_metadata=True):
                    continue
                if again.schema.equals(file.schema):
                    return {**options, **ways, "store_schema": False}, plain
                logical = logical or ways
    if logical is None:
        raise _schema_error(name, "schema")
    # The same table, stored with other physical types: no column path can be relied on.
    return {**logical, "store_schema": False, "compression": _common_codec(file)}, plain


def _empty_copy(file: Any, schema: Any, ways: dict[str, Any]) -> Any:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, store_schema=False, **ways) as writer:
        if file.metadata.metadata:
            writer.add_key_value_metadata(file.metadata.metadata)
    return pq.ParquetFile(pa.BufferReader(sink.getvalue()))


def _column_options(file: Any) -> dict[str, Any]:
    """Codec, dictionary, encoding and statistics of each column and the sorting order, as in the first row group."""
    metadata = file.metadata
    if not metadata.num_row_groups:
        return {}
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(metadata.num_columns)]
    codecs = {c.path_in_schema: _codec(c.compression) for c in columns}
    dictionaries = [c.path_in_schema for c in columns if any("DICTIONARY" in e for e in c.encodings)]
    encodings = {}
    for column in columns:
        used = [e for e in column.encodings if e in _DELTAS]
        if used and column.path_in_schema not in dictionaries:
            encodings[column.path_in_schema] = used[0]
    options: dict[str, Any] = {
        "compression": codecs,
        "compression_level": {path: _LEVELS[codec] for path, codec in codecs.items() if codec in _LEVELS} or None,
        "use_dictionary": dictionaries or False,
        "column_encoding": encodings or None,
        "write_statistics": [c.path_in_schema for c in columns if c.is_stats_set] or False,
        "write_page_index": any(getattr(c, "has_column_index", False) for c in columns),
    }
    orders = {metadata.row_group(i).sorting_columns for i in range(metadata.num_row_groups)}
    if len(orders) == 1 and (order := orders.pop()):
        options["sorting_columns"] = order
    return options


def _codec(name: str) -> str:
    lowered = name.lower()
    return {"uncompressed": "none", "lz4_raw": "lz4"}.get(lowered, lowered)


def _common_codec(file: Any) -> str:
    if not file.metadata.num_row_groups:
        return "snappy"
    group = file.metadata.row_group(0)
    sizes: dict[str, int] = {}
    for i in range(file.metadata.num_columns):
        column = group.column(i)
        codec = _codec(column.compression)
        sizes[codec] = sizes.get(codec, 0) + column.total_compressed_size
    return max(sizes, key=lambda codec: (sizes[codec], codec))
