"""keep.parquet: one bit for each row of the input, for who writes the rows later, or undoes what was written.

    file   string (dictionary), path below the common parent, as in removed.parquet
    row    int64, physical line or record of the file, from 0; every one of them, blank lines too
    keep   bool

In input order. Key-value metadata: format, version, recipe fingerprint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from gpu_dedup.batch import Bool
from gpu_dedup.errors import InputError, disk_error, shown

MASK = "_gpu_dedup/keep.parquet"
FORMAT = "gpu-dedup keep"
VERSION = 1
BLOCK = 1 << 20  # rows of a row group, at most


class MaskWriter:
    """Writes keep.parquet file by file.

    path         the (temporary) name; OutputError where it cannot be written
    fingerprint  of the recipe
    """

    def __init__(self, path: str, fingerprint: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self._schema = pa.schema(
            [("file", pa.dictionary(pa.int32(), pa.string())), ("row", pa.int64()), ("keep", pa.bool_())],
            {"format": FORMAT, "version": str(VERSION), "fingerprint": fingerprint},
        )
        self._sink: Any = None
        try:
            self._sink = pa.OSFile(os.fsencode(path), "wb")
            self._writer = pq.ParquetWriter(
                self._sink, self._schema, compression="zstd", use_dictionary=["file"],
                column_encoding={"row": "DELTA_BINARY_PACKED"},
            )  # fmt: skip
        except OSError as error:
            if self._sink is not None:
                self._sink.close()
            raise disk_error(error, path) from error

    def append(self, file: str, keep: Bool) -> None:
        """Add all rows of a file. Raises OutputError."""
        import pyarrow as pa

        for start in range(0, len(keep), BLOCK):
            part = np.ascontiguousarray(keep[start : start + BLOCK])
            names = pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(len(part), np.int32)), pa.array([file], pa.string())
            )
            rows = pa.array(np.arange(start, start + len(part), dtype=np.int64))
            table = pa.Table.from_arrays([names, rows, pa.array(part)], schema=self._schema)
            try:
                self._writer.write_table(table)
            except OSError as error:
                raise disk_error(error, self.path) from error

    def __enter__(self) -> MaskWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._writer.close()
            self._sink.close()
        except OSError as problem:
            self._writer.is_open = False
            if kind is None:
                raise disk_error(problem, self.path) from problem


def read_mask(folder: str) -> dict[str, Bool]:
    """Keep bits by file of the run in `folder`. Raises InputError where there are none that can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(folder, MASK)
    parts: dict[str, list[Bool]] = {}
    try:
        for name, keep in _runs(pq.ParquetFile(pa.OSFile(os.fsencode(path))), path):
            parts.setdefault(name, []).append(keep)
    except FileNotFoundError:
        raise InputError(
            "no keep mask here",
            "give the folder of a run with --write mask or --keep-removed",
            place=shown(path),
        ) from None
    except (pa.ArrowException, OSError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot be read as a keep mask ({why})", "run again", place=shown(path)) from None
    return {name: np.concatenate(found) for name, found in parts.items()}


def _runs(file: Any, path: str) -> Iterator[tuple[str, Bool]]:
    about = file.schema_arrow.metadata or {}
    if about.get(b"format") != FORMAT.encode() or about.get(b"version") != str(VERSION).encode():
        raise InputError("not a keep mask of this version", "run again with this version", place=shown(path))
    at: dict[str, int] = {}
    for group in range(file.num_row_groups):
        table = file.read_row_group(group)
        names = table["file"].unique().to_pylist()
        rows = table["row"].to_numpy()
        if len(names) != 1 or len(rows) == 0 or not np.array_equal(rows, at.get(names[0], 0) + np.arange(len(rows))):
            raise InputError("rows are missing or out of order", "run again", place=shown(path))
        at[names[0]] = int(rows[-1]) + 1
        yield names[0], np.asarray(table["keep"].to_numpy(), np.bool_)
