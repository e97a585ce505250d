"""A column of texts in memory, read as a file is: chunks in row order, the same checks, the same words for a bad row.

Whatever holds the texts is asked by what it can do, never by importing its package. What gives Arrow memory (pyarrow,
polars, pandas with Arrow strings, Hugging Face datasets) is read in place; Python strings become Arrow batch by batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from gpu_dedup import columns
from gpu_dedup.backend import Backend
from gpu_dedup.batch import MISSING, ROW_BAD, ROW_SKIPPED, ROW_TEXT, Bool, Rows
from gpu_dedup.errors import InputError, InternalError
from gpu_dedup.read.chunks import ChunkRef, Reader, quoted, replaced
from gpu_dedup.read.discover import Source
from gpu_dedup.read.parquet import OVERSIZE, ColumnChunk, _as_bytes, _python, is_text, nbytes_of, pieces

FORMAT = "memory"
FIRST_ROWS = 256  # of Python values that are turned into Arrow at once; then as many as make up a quarter of a batch
MOST_ROWS = 1 << 14
SAMPLE = 1000  # values that are looked at to guess the size of a column

Odd = dict[int, "bytes | str"]  # row of a piece: its text (WTF-8) that Arrow cannot hold, or why it has none


class Column(Protocol):
    """n values. `pieces` are for texts, `values` for ids and the keeper's field."""

    def __len__(self) -> int: ...
    def pieces(self, start: int, stop: int) -> Iterator[tuple[Any, Odd]]:
        """Arrow arrays of text that make up rows start to stop, and what is odd in each. An array that stands for bytes
        elsewhere too (a dictionary, views) is made plain, so that its size is its own."""
        ...

    def values(self, start: int, stop: int) -> list[Any]:
        """Python values of rows start to stop; what means "nothing there" to NumPy or pandas is None."""
        ...

    def guess_bytes(self) -> int:
        """About how many bytes of text there are."""
        ...

    def check_text(self, name: str) -> None:
        """Raises InputError if the whole column is of a type that is no text."""
        ...


class ArrowColumn:
    """A ChunkedArray of any type."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._words: dict[int, Any] = {}  # dictionaries as large_binary, by chunk

    def __len__(self) -> int:
        return len(self._array)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[Any, Odd]]:
        at = 0
        for number, chunk in enumerate(self._array.chunks):
            low, high = max(start, at), min(stop, at + len(chunk))
            for first in range(low, high, MOST_ROWS):
                part = chunk.slice(first - at, min(MOST_ROWS, high - first))
                yield self._plain(part, number), {}
            at += len(chunk)

    def _plain(self, part: Any, number: int) -> Any:
        if isinstance(part.type, pa.BaseExtensionType):
            part = part.storage
        if pa.types.is_dictionary(part.type):
            if number not in self._words:
                self._words = {number: _as_bytes(part.dictionary)}
            return pa.DictionaryArray.from_arrays(part.indices, self._words[number]).dictionary_decode()
        if pa.types.is_string_view(part.type) or pa.types.is_binary_view(part.type):
            return _as_bytes(part)
        return part

    def values(self, start: int, stop: int) -> list[Any]:
        return [value for chunk in self._array.slice(start, stop - start).chunks for value in _python(chunk)]

    def guess_bytes(self) -> int:
        if pa.types.is_dictionary(self._array.type):
            return _sampled(self)
        return int(self._array.get_total_buffer_size()) if len(self) else 0

    def check_text(self, name: str) -> None:
        if not is_text(self._array.type):
            raise InputError(f"{name}: the column holds {self._array.type}, not text; give a column of strings")


class SliceColumn:
    """Anything whose slices are lists, NumPy arrays or ChunkedArrays."""

    def __init__(self, count: int, get: Callable[[int, int], Any]) -> None:
        self._count = count
        self._get = get
        self._step = FIRST_ROWS

    def __len__(self) -> int:
        return self._count

    def pieces(self, start: int, stop: int) -> Iterator[tuple[Any, Odd]]:
        at = start
        step = FIRST_ROWS
        while at < stop:
            part = self._get(at, min(stop, at + step))
            rows = len(part)
            if rows != min(stop, at + step) - at:
                raise InputError(f"the column gave {rows} rows where it has {min(stop, at + step) - at}")
            size = 0
            found = ArrowColumn(part).pieces(0, rows) if isinstance(part, pa.ChunkedArray) else [_arrow(part)]
            for array, odd in found:
                size += array.nbytes
                yield array, odd
            at += rows
            step = max(1, min(MOST_ROWS, 2 * step, (1 << 20) * rows // max(size, 1)))

    def values(self, start: int, stop: int) -> list[Any]:
        part = self._get(start, stop)
        if isinstance(part, pa.ChunkedArray):
            return ArrowColumn(part).values(0, len(part))
        return [_scalar(value) for value in (part.tolist() if isinstance(part, np.ndarray) else part)]

    def guess_bytes(self) -> int:
        return _sampled(self)

    def check_text(self, name: str) -> None:
        return  # every value is looked at for itself


def _sampled(column: Column) -> int:
    """Bytes of all texts by those of a few stretches of the column."""
    count = len(column)
    size = rows = 0
    for start in range(0, count, max(1, count // 10)):
        stop = min(count, start + SAMPLE // 10)
        size += sum(array.nbytes for array, _ in column.pieces(start, stop))
        rows += stop - start
    return size * count // rows if rows else 0


def _nothing(value: Any) -> bool:
    """None, NaN, and what pandas and NumPy put where nothing is."""
    if value is None or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant"):
        return True
    if isinstance(value, (float, np.floating, np.datetime64, np.timedelta64)):
        return bool(value != value)
    return False


def _scalar(value: Any) -> Any:
    if _nothing(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _arrow(values: Any) -> tuple[Any, Odd]:
    """Python or NumPy values as an Arrow array of text. Where one of them is odd, each is looked at."""
    try:
        # pyarrow would import pandas to look for its kinds of nothing; where nobody has, there are none.
        if "pandas" in sys.modules:
            return pa.array(values, pa.large_string(), from_pandas=True), {}
        return columns.texts(values), {}
    except (pa.ArrowException, AttributeError, TypeError, ValueError):  # UnicodeError is a ValueError
        pass
    odd: Odd = {}
    plain: list[bytes | None] = []
    for row, value in enumerate(values):
        plain.append(None)
        if isinstance(value, str):
            try:
                plain[-1] = value.encode()
            except UnicodeEncodeError:
                odd[row] = wtf8(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            plain[-1] = bytes(value)
        elif not _nothing(value):
            odd[row] = f"the text is of type {type(value).__name__}, not a string"
    return columns.binary(plain), odd


def wtf8(text: str) -> bytes:
    """UTF-8, lone surrogates as three bytes. Two that make a pair are one code point, as they are to `json.loads`."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return whole.encode("utf-8", "surrogatepass")


def column_of(values: Any, name: str) -> Column:
    """A column of whatever the caller has: see the module's head. `name` is what messages call it.

    Raises InputError for what is no column: a single text, a table, an array of several dimensions, an iterator.
    """
    if isinstance(values, pa.ChunkedArray):
        return ArrowColumn(values)
    if isinstance(values, pa.Array):
        return ArrowColumn(pa.chunked_array([values]))
    if isinstance(values, (str, bytes, bytearray)):
        raise InputError(f"{name}: this is a single {type(values).__name__}, not a column; give a list of texts")
    if hasattr(values, "column_names") or hasattr(values, "columns") or isinstance(values, Mapping):
        raise InputError(f"{name}: this is a table ({type(values).__name__}); give one of its columns: data['text']")
    if isinstance(values, Set) or not hasattr(values, "__len__"):
        raise InputError(
            f"{name}: a {type(values).__name__} has no order of rows that could be read twice; give a list of it"
        )
    dimensions = getattr(values, "ndim", 1)
    if isinstance(dimensions, int) and dimensions != 1:
        raise InputError(f"{name}: this array has {dimensions} dimensions; give one column")
    if isinstance(values, np.ndarray):
        return _numpy(values)
    if hasattr(values, "source") and hasattr(values, "column_name"):
        return _datasets(values)
    if str(getattr(values, "dtype", "")) != "object":  # pandas' own objects are Python's
        for ask in (_stream, _array):
            try:
                found = ask(values)
            except (pa.ArrowException, TypeError, ValueError):
                continue
            if found is not None:
                return ArrowColumn(found)
    if hasattr(values, "to_numpy"):
        return _numpy(values.to_numpy())
    if hasattr(values, "__array__"):
        return _numpy(np.asarray(values))
    try:
        values[0:0]
    except (TypeError, KeyError, AttributeError):
        raise InputError(
            f"{name}: {type(values).__name__} is no column that is known here; give a list of texts"
        ) from None
    return SliceColumn(len(values), lambda start, stop: values[start:stop])


def _stream(values: Any) -> Any:
    return pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else None


def _array(values: Any) -> Any:
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_array__"):
        array = pa.array(values)
    elif hasattr(values, "to_arrow"):
        array = values.to_arrow()
    else:
        return None
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _numpy(values: Any) -> Column:
    if values.dtype.kind in "biufmM" and not isinstance(values, np.ma.MaskedArray):
        return ArrowColumn(pa.chunked_array([pa.array(values, from_pandas=True)]))
    if values.dtype.kind == "O" and not isinstance(values, np.ma.MaskedArray):
        return SliceColumn(len(values), lambda start, stop: values[start:stop])
    return SliceColumn(len(values), lambda start, stop: values[start:stop].tolist())


def _datasets(values: Any) -> Column:
    """A column of a Hugging Face dataset: as Arrow if nothing but its own rows stand behind it (a transform may)."""
    kind = getattr(values.source, "format", None)
    if isinstance(kind, dict) and kind.get("type") in (None, "arrow") and hasattr(values.source, "with_format"):
        values = values.source.with_format("arrow")[values.column_name]
    return SliceColumn(len(values), lambda start, stop: values[start:stop])


@dataclass(frozen=True)
class ColumnSource(Source):
    """A column that is read like a file.

    text_field  the name under which `parse` is asked for the texts
    texts       its values
    others      other fields of the same rows: ids, the keeper's
    """

    text_field: str = "text"
    texts: Any = None
    others: dict[str, Any] = field(default_factory=dict)


def column_source(values: Any, text_field: str, others: Mapping[str, Any], name: str = "texts") -> ColumnSource:
    """A source of the texts in `values`, a column of any kind (see `column_of`).

    text_field  name of the text, as the recipe has it
    others      further columns by the names of their fields, as long as the first
    Raises InputError for what is no column, and for columns of different length.
    """
    texts = column_of(values, name)
    texts.check_text(name)
    more = {}
    for other, given in others.items():
        more[other] = column_of(given, other)
        if len(more[other]) != len(texts):
            raise InputError(f"{len(more[other])} values of {quoted([other])} for {len(texts)} {name}; give as many")
    size = max(texts.guess_bytes(), len(texts))
    return ColumnSource(name, name, FORMAT, "", size, 0, text_field, texts, more)


class MemoryChunk(ColumnChunk):
    """Consecutive rows of a column; `odd` by row of the chunk."""

    def __init__(self, source: ColumnSource, index: int, nbytes: int, ref: ChunkRef, arrays: list[Any], odd: Odd):
        schema = pa.schema([pa.field(source.text_field, arrays[0].type)])
        batches = [pa.RecordBatch.from_arrays([array], names=[source.text_field]) for array in arrays]
        super().__init__(index, nbytes, ref, batches, source.path, schema, {source.text_field})
        self._source = source
        self._odd = odd

    def parse(
        self, backend: Backend, fields: Sequence[str], extra: Sequence[str] = (), want: Bool | None = None
    ) -> Rows:
        rows = super().parse(backend, fields, (), want)
        if self._odd:
            rows = self._mended(rows)
        return replace(rows, fields={name: self._extra(name, rows.status) for name in extra})

    def _mended(self, rows: Rows) -> Rows:
        status = rows.status.copy()
        errors = dict(rows.errors)
        texts: dict[int, bytes] = {}
        for row, what in self._odd.items():
            if status[row] == ROW_SKIPPED:
                continue
            if isinstance(what, bytes):
                status[row] = ROW_TEXT
                texts[row] = what
                errors.pop(self.first_row + row, None)
            else:
                status[row] = ROW_BAD
                errors[self.first_row + row] = what
        return replace(rows, tape=replaced(rows.tape, texts), status=status, errors=sorted(errors.items()))

    def _extra(self, name: str, status: Any) -> list[Any]:
        column = self._source.others.get(name)
        out: list[Any] = [MISSING] * len(status)
        if column is not None:
            found = column.values(self.first_row, self.first_row + len(status))
            for row in np.flatnonzero(status == ROW_TEXT).tolist():
                out[row] = found[row]
        return out


class ColumnReader(Reader):
    """A column in chunks of about so many bytes."""

    def __init__(self, source: ColumnSource, batch_bytes: int, file_index: int) -> None:
        self.source = source
        self.file_index = file_index
        self._batch = batch_bytes
        self._bytes = 0

    @property
    def bytes_read(self) -> int:
        return self._bytes

    def __iter__(self) -> Iterator[MemoryChunk]:
        count = len(self.source.texts)
        held: list[Any] = []
        odd: Odd = {}
        first = rows = size = 0
        for array, strange in self.source.texts.pieces(0, count):
            at = 0
            for piece in pieces(pa.RecordBatch.from_arrays([array], names=["text"]), OVERSIZE * self._batch):
                odd.update((rows + row - at, what) for row, what in strange.items() if at <= row < at + piece.num_rows)
                at += piece.num_rows
                if held and held[0].type != piece.column(0).type:  # odd values came as bytes
                    held = [_as_bytes(one) for one in held]
                    held.append(_as_bytes(piece.column(0)))
                else:
                    held.append(piece.column(0))
                rows += piece.num_rows
                size += nbytes_of(piece)
                if size >= self._batch:
                    yield self._chunk(first, rows, held, odd)
                    first += rows
                    held, odd, rows, size = [], {}, 0, 0
        if held:
            yield self._chunk(first, rows, held, odd)

    def _chunk(self, first: int, rows: int, arrays: list[Any], odd: Odd) -> MemoryChunk:
        nbytes = self.source.size * (first + rows) // len(self.source.texts) - self._bytes
        self._bytes += nbytes
        return MemoryChunk(self.source, self.file_index, nbytes, ChunkRef(first, rows, 0, 0, 0), arrays, odd)

    def read_refs(self, refs: Sequence[ChunkRef]) -> Iterator[MemoryChunk]:
        for ref in refs:
            arrays: list[Any] = []
            odd: Odd = {}
            rows = 0
            for array, strange in self.source.texts.pieces(ref.first_row, ref.first_row + ref.rows):
                odd.update((rows + row, what) for row, what in strange.items())
                rows += len(array)
                arrays.append(array)
            if rows != ref.rows:
                raise InternalError(f"{self.source.path}: {rows} rows where there were {ref.rows}")
            if any(array.type != arrays[0].type for array in arrays):
                arrays = [_as_bytes(array) for array in arrays]
            yield MemoryChunk(self.source, self.file_index, 0, ref, arrays, odd)

    def content_hash(self) -> None:
        """None: nothing outlives the call that could be held against it."""
        return None

    def close(self) -> None:
        return
