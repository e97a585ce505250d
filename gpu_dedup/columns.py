"""Arrow arrays of NumPy arrays and strings, laid out here rather than by `pyarrow.array`.

`pyarrow.array`, `pyarrow.scalar` and `to_numpy` import pandas where it is installed, to see whether they were given
something of its kind: 0.2 s and 50 MB, for nothing that this package ever gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, U8, Bool


def _absent(absent: Bool | None) -> Any:
    """Arrow's bitmap of the values that are there; None where all are."""
    import pyarrow as pa

    if absent is None or not absent.any():
        return None
    return pa.py_buffer(np.packbits(~absent, bitorder="little"))


def integers(values: I64, absent: Bool | None = None) -> Any:
    """int64[n] of NumPy's integers; null where `absent`."""
    import pyarrow as pa

    data = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [_absent(absent), pa.py_buffer(data)])


def floats(values: Any) -> Any:
    """double[n]; null where a value is NaN."""
    import pyarrow as pa

    data = np.ascontiguousarray(values, np.float64)
    return pa.Array.from_buffers(pa.float64(), len(data), [_absent(np.isnan(data)), pa.py_buffer(data)])


def flags(values: Bool, absent: Bool | None = None) -> Any:
    """bool[n]; null where `absent`."""
    import pyarrow as pa

    bits = np.packbits(np.asarray(values, np.bool_), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [_absent(absent), pa.py_buffer(bits)])


def texts(values: Sequence[str | None]) -> Any:
    """large_string[n] of Python's strings, which must be Unicode without lone surrogates; null for None."""
    import pyarrow as pa

    return _bytes([None if value is None else value.encode() for value in values], pa.large_string())


def text_of(data: U8, lengths: I64, absent: Bool) -> Any:
    """large_string[n] of valid UTF-8, one text after the other; null where `absent`, which has the length 0.

    data  uint8[sum of lengths]; lengths int64[n]
    """
    import pyarrow as pa

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [_absent(absent), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_string(), len(lengths), buffers)


def binary(values: Sequence[bytes | None]) -> Any:
    """large_binary[n]; null for None."""
    import pyarrow as pa

    return _bytes(values, pa.large_binary())


def _bytes(values: Sequence[bytes | None], kind: Any) -> Any:
    import pyarrow as pa

    absent = np.fromiter((value is None for value in values), np.bool_, len(values))
    parts = [value or b"" for value in values]
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return pa.Array.from_buffers(
        kind, len(parts), [_absent(absent), pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    )


def named(names: Sequence[str | None], which: Any, absent: Bool | None = None) -> Any:
    """string[n]: names[which[i]]; null where `absent`, or where the name is None."""
    import pyarrow as pa

    return texts(names).cast(pa.string()).take(integers(which, absent))


def numbers(array: Any) -> I64:
    """int64[n] of an Arrow array of int64, without a copy; what stands for a null means nothing."""
    data = np.frombuffer(array.buffers()[1] or b"", np.int64)
    return data[array.offset : array.offset + len(array)]


def column(values: Any) -> Any:
    """The Arrow array of a list of strings or numbers (None: null) or of a NumPy array; Arrow's own are left alone."""
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        kinds: dict[str, Any] = {"i": integers, "u": integers, "f": floats, "b": flags}
        return kinds[values.dtype.kind](values)
    if all(value is None or isinstance(value, str) for value in values):
        return texts(list(values))
    return pa.array(values, from_pandas=True)
