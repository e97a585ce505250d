"""Surviving records of an Arrow IPC file or stream: same schema and metadata, same codec, batch by batch.

A record batch of the input gives one of the output, without the rows that go; one without rows is left out. Values pass
through Arrow unchanged. What is not kept: which bytes Arrow chose for them (padding, delta dictionaries, endianness).
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pyarrow as pa

from gpu_dedup.batch import Bool
from gpu_dedup.errors import OutputError, disk_error, shown
from gpu_dedup.write.files import FileWriter
from gpu_dedup.write.parquet import filter_batch


class ArrowWriter(FileWriter):
    """An Arrow IPC file (`is_file`) or stream of surviving records.

    path         the (temporary) name; OutputError where it cannot be written
    schema       of the input, its metadata included
    footer       key-value metadata of the input's footer, or None
    compression  'lz4', 'zstd' or None

    As a context it closes the file at the end; after an error it only lets go of it.
    """

    def __init__(self, path: str, schema: Any, is_file: bool, footer: Any, compression: str | None) -> None:
        self.path = path
        self.rows_written = 0
        self._closed = False
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._sink: Any = None
        try:
            self._sink = pa.OSFile(os.fsencode(path), "wb")
            if is_file:
                about = {"metadata": dict(footer)} if footer else {}
                self._writer = pa.ipc.new_file(self._sink, schema, options=options, **about)
            else:
                self._writer = pa.ipc.new_stream(self._sink, schema, options=options)
        except OSError as error:
            if self._sink is not None:
                self._sink.close()
            raise disk_error(error, path) from error

    def write(self, batch: Any, keep: Bool, metadata: Any = None) -> None:
        """Add the kept rows of a record batch, under its own metadata. Raises OutputError."""
        part = filter_batch(batch, keep)
        if not part.num_rows:
            return
        try:
            self._writer.write_batch(part, custom_metadata=metadata)
        except OSError as error:
            raise disk_error(error, self.path) from error
        except pa.ArrowException as error:
            raise OutputError(
                f"{shown(self.path)}: pyarrow {pa.__version__} cannot write this Arrow data back "
                f"({str(error).splitlines()[0]}); use a newer pyarrow, or convert the file to JSONL first"
            ) from error
        self.rows_written += part.num_rows

    def close(self) -> None:
        """Write the end of the file and close. Raises OutputError."""
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
            self._sink.close()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._sink.close()
            raise disk_error(error, self.path) from error

    def abort(self) -> None:
        """Let go of the file without completing it; whoever gave the name removes it."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
            with contextlib.suppress(OSError):
                self._sink.close()
