"""A source opened by its format, and single rows of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_dedup.backend import Backend, host_backend
from gpu_dedup.batch import ROW_TEXT
from gpu_dedup.errors import InputError
from gpu_dedup.read import remote
from gpu_dedup.read.chunks import Reader
from gpu_dedup.read.discover import Source
from gpu_dedup.read.jsonl import JsonlReader
from gpu_dedup.read.separated import CsvReader
from gpu_dedup.read.text import DocumentReader, LineReader

LOOK_BYTES = 4 << 20  # batch of read_rows


def open_source(
    source: Source,
    batch_bytes: int,
    file_index: int = 0,
    columns: Sequence[str] | None = None,
    later: Sequence[str] = (),
    backend: Backend | None = None,
) -> Reader:
    """Open a file for reading in chunks.

    batch_bytes  (decompressed) bytes per chunk, about; a longer line makes a larger chunk. It never changes a row
    file_index   handed on to the chunks
    columns      every name that `parse` will be asked for, so that a file of columns gives no other; None: all of them
    backend      finds records where that takes more than line ends (CSV); None: NumPy
    later        names that `parse` will only be asked for in a later pass: nothing of them is read

    Raises InputError if the file is not as it was discovered, is no Parquet or Arrow file that can be read, or has
    several columns of a name in `columns` or `later`.
    """
    if source.format == "memory":
        from gpu_dedup.read.memory import ColumnReader, ColumnSource

        assert isinstance(source, ColumnSource)
        return ColumnReader(source, batch_bytes, file_index)
    if source.format == "parquet":
        from gpu_dedup.read.parquet import ParquetReader

        return ParquetReader(source, batch_bytes, file_index, columns, later)
    if source.format == "arrow":
        from gpu_dedup.read.arrow import ArrowReader

        return ArrowReader(source, batch_bytes, file_index, columns, later)
    if source.format in ("csv", "tsv"):
        return CsvReader(source, batch_bytes, file_index, backend or host_backend("numpy"))
    simple: dict[str, type[JsonlReader] | type[LineReader] | type[DocumentReader]] = {
        "jsonl": JsonlReader,
        "lines": LineReader,
        "txt": DocumentReader,
    }
    return simple[source.format](source, batch_bytes, file_index)


def state_of(path: str) -> tuple[int, int]:
    """Size and time of a file, as a Source has them; for a URL what stands for the time. Raises OSError, InputError."""
    if remote.is_remote(path):
        return remote.state(path)
    info = os.stat(path)
    return info.st_size, info.st_mtime_ns


def read_rows(
    source: Source,
    rows: Sequence[int],
    fields: Sequence[str],
    extra: Sequence[str],
    backend: Backend,
    pretokenized: bool = False,
) -> dict[int, tuple[bytes | None, dict[str, Any]]]:
    """Some rows of a file, for a person to look at: row -> (text, or None if it has none; value of each extra field).

    pretokenized: the one field is a list of tokens.
    The file is read from the start to the last of them. Raises InputError if it has not so many rows.
    """
    wanted = np.unique(np.asarray(rows, np.int64))
    found: dict[int, tuple[bytes | None, dict[str, Any]]] = {}
    with open_source(source, LOOK_BYTES, 0, [*fields, *extra], backend=backend) as reader:
        for chunk in reader:
            inside = wanted[(wanted >= chunk.first_row) & (wanted < chunk.first_row + chunk.count_rows())]
            if len(inside):
                want = np.zeros(chunk.count_rows(), np.bool_)
                want[inside - chunk.first_row] = True
                if pretokenized:
                    parsed = chunk.items(backend, fields[0], extra, want)
                else:
                    parsed = chunk.parse(backend, fields, extra, want)
                for row in inside.tolist():
                    i = row - chunk.first_row
                    text = parsed.tape[i] if parsed.status[i] == ROW_TEXT else None
                    found[row] = text, {name: values[i] for name, values in parsed.fields.items()}
            if len(found) == len(wanted):
                return found
    missing = next(row for row in wanted.tolist() if row not in found)
    raise InputError(f"{source.name}: it has no row {missing}; rows are numbered from 0")
