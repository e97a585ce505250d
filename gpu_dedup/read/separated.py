"""CSV and TSV: records under a header row, taken apart by the backend; their bytes are kept as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import I64, MISSING, ROW_BAD, ROW_BLANK, ROW_SKIPPED, ROW_TEXT, U8, Bool, Rows, Tape
from gpu_dedup.errors import InputError, InternalError
from gpu_dedup.read.chunks import LISTS_IN, ChunkRef, columns_here, only_one, quoted, why_not_utf8
from gpu_dedup.read.discover import Source
from gpu_dedup.read.lines import LinesChunk, RecordReader

DELIMITERS = {"csv": ord(","), "tsv": ord("\t")}
_ENDED = 0  # of the ways in which `scan_csv` says that the last record ends
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


class CsvChunk(LinesChunk):
    """Whole records of a file, without its header."""

    def __init__(
        self,
        file_index: int,
        nbytes: int,
        ref: ChunkRef,
        data: U8,
        bom: bytes,
        starts: I64 | None,
        names: Sequence[str],
        first_line: int | None,
        source: Source,
        backend: Backend,
    ) -> None:
        super().__init__(file_index, nbytes, ref, data, bom)
        self._starts = starts
        self._names = names
        self._first_line = first_line  # physical line of the first record, from 1; None where it was not counted
        self._source = source
        self._backend = backend

    def lines(self) -> I64:
        if self._starts is None:
            self._starts, _ = self._backend.scan_csv(self.data, self.size, DELIMITERS[self._source.format])
            if len(self._starts) != self.ref.rows + 1:
                raise InternalError(f"{self._source.path}: other records than before at byte {self.ref.offset}")
        return self._starts

    def _column(self, name: str) -> int | None:
        if name not in self._names:
            return None
        only_one(self._names, name, name, self._source.name)
        return self._names.index(name)

    def parse(
        self, backend: Backend, fields: Sequence[str], extra: Sequence[str] = (), want: Bool | None = None
    ) -> Rows:
        if not self.ref.rows and not self._names:  # a file without a header: nothing is wrong with an empty one
            none = Tape(self.data, np.zeros(1, np.int64))
            return Rows(self.first_row, none, np.zeros(0, np.uint8), [], {name: [] for name in extra})
        texts = [column for name in fields if (column := self._column(name)) is not None]
        if not texts:
            raise InputError(
                f"no column {quoted(fields)} ({columns_here(self._names, fields)})",
                "name the right one with --text-field, or pass --on-bad-file skip",
                place=self._source.name,
            )
        more = {name: self._column(name) for name in extra}
        asked = list(dict.fromkeys([*texts, *(column for column in more.values() if column is not None)]))
        starts = self.lines()
        delimiter = DELIMITERS[self._source.format]
        counts, spans, kinds = backend.split_csv(self.data, starts, delimiter, np.array(asked, np.int64), want)
        whole = counts == len(self._names)
        status = np.full(len(counts), ROW_BAD, np.uint8)
        status[counts == 0] = ROW_BLANK
        status[counts == -2] = ROW_SKIPPED
        utf8 = backend.valid_utf8(Tape(self.data, starts))
        good = whole & utf8
        status[good] = ROW_TEXT
        errors = [
            (self.first_row + i, self._why(i, int(counts[i]))) for i in np.flatnonzero(status == ROW_BAD).tolist()
        ]
        first = len(texts)
        tape = backend.csv_texts(
            self.data, np.ascontiguousarray(spans[:, :first]), np.ascontiguousarray(kinds[:, :first]), good
        )
        values: dict[str, list[Any]] = {}
        for name, column in more.items():
            if column is None:
                values[name] = [MISSING] * len(counts)
                continue
            at = asked.index(column)
            found = backend.csv_texts(
                self.data,
                np.ascontiguousarray(spans[:, at : at + 1]),
                np.ascontiguousarray(kinds[:, at : at + 1]),
                good,
            )
            values[name] = [text if ok else MISSING for text, ok in zip(found.to_list(), good.tolist(), strict=True)]
        return Rows(self.first_row, tape, status, errors, values)

    def items(self, backend: Backend, field: str, extra: Sequence[str] = (), want: Bool | None = None) -> Rows:
        raise InputError("CSV and TSV hold no lists", LISTS_IN, place=self._source.name)

    def records(self, most: int) -> list[dict[str, int | None]]:
        names = [name for name in self._names if self._names.count(name) == 1]
        if not names:
            return []
        rows = self.parse(self._backend, names[:1], names)
        good = np.flatnonzero(rows.status == ROW_TEXT)[:most].tolist()
        return [{name: len(rows.fields[name][row]) for name in names} for row in good]

    def _why(self, i: int, count: int) -> str:
        starts = self.lines()
        record = self.data[starts[i] : starts[i + 1]].tobytes()
        if count == -1:
            why = "a quote that is opened is not closed before the end of the file"
        elif count != len(self._names):
            fields = f"{count} field" + ("s" if count != 1 else "")
            why = f"{fields} where the header has {len(self._names)}"
        else:
            why = why_not_utf8(record)
        if self._first_line is None:
            return why
        return f"{why} (line {self._first_line + _line_ends(self.data[: starts[i]].tobytes())})"

    def keeper_values(self, values: list[Any]) -> list[Any]:
        """Numbers where they are written as JSON writes them; an empty field is no value."""
        return [_value(value) if isinstance(value, str) else value for value in values]


def _value(text: str) -> Any:
    if not text:
        return None
    if not _JSON_NUMBER.fullmatch(text):
        return text
    try:
        return json.loads(text)
    except ValueError:  # more digits than int() takes
        return text


def _line_ends(data: bytes) -> int:
    """LF, CR LF and lone CR, as editors count them."""
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


class CsvReader(RecordReader):
    """A CSV or TSV file, compressed or not, in chunks of whole records.

    The header is the first record that is not an empty line. It belongs to the file, as the BOM does, not to a row.
    """

    unit = "record"
    by_line = False

    def __init__(self, source: Source, batch_bytes: int, file_index: int, backend: Backend) -> None:
        super().__init__(source, batch_bytes, file_index)
        self.what = source.format.upper()
        self.ending = f".{source.format}"
        self._backend = backend
        self._delimiter = DELIMITERS[source.format]
        self._names: list[str] | None = None
        self._found = np.zeros(1, np.int64)  # starts of the records of the next chunk
        self._lines = 1  # physical line where it begins

    def head(self, data: U8, filled: int, ended: bool) -> int | None:
        skip = super().head(data, filled, ended) or 0
        rest = data[skip:]
        starts, state = self._backend.scan_csv(rest, filled - skip, self._delimiter)
        sure = len(starts) - 1 if ended or state == _ENDED else len(starts) - 2
        for i in range(sure):
            end = int(starts[i + 1])
            if rest[starts[i] : end].tobytes().strip(b"\r\n"):
                self._names = self._header(rest, starts[i : i + 2])
                self._lines = 1 + _line_ends(rest[:end].tobytes())
                return skip + end
        return filled if ended else None

    def _header(self, data: U8, starts: I64) -> list[str]:
        counts, _, _ = self._backend.split_csv(data, starts, self._delimiter, np.zeros(0, np.int64), None)
        if counts[0] < 0:
            raise InputError(
                "a quote in the header is not closed",
                "mend it, or pass --on-bad-file skip",
                place=self.source.name,
            )
        columns = np.arange(counts[0])
        _, spans, kinds = self._backend.split_csv(data, starts, self._delimiter, columns, None)
        good = np.ones(1, np.bool_)
        names = []
        for k in columns.tolist():
            tape = self._backend.csv_texts(
                data, np.ascontiguousarray(spans[:, k : k + 1]), np.ascontiguousarray(kinds[:, k : k + 1]), good
            )
            try:
                names.append(tape[0].decode())
            except UnicodeDecodeError as error:
                raise InputError(
                    f"the header is not valid UTF-8 (column {k + 1}, byte {error.start + 1})",
                    "convert the file to UTF-8 (iconv -t UTF-8), or pass --on-bad-file skip",
                    place=self.source.name,
                ) from None
        return names

    def cut(self, data: U8, searched: int, filled: int, ended: bool) -> int:
        starts, state = self._backend.scan_csv(data, filled, self._delimiter)
        self._found = starts if ended or state == _ENDED else starts[: max(1, len(starts) - 1)]
        return int(self._found[-1])

    def count(self, data: U8, size: int) -> int:
        return len(self._found) - 1

    def chunk(self, nbytes: int, ref: ChunkRef, data: U8, bom: bytes) -> CsvChunk:
        starts, line = None, None
        if self._started:
            starts, line = self._found, self._lines
            self._lines += _line_ends(data[: ref.size].tobytes())
        return CsvChunk(
            self.file_index, nbytes, ref, data, bom, starts, self._names or [], line, self.source, self._backend
        )

    def read_refs(self, refs: Sequence[ChunkRef]) -> Iterator[Any]:
        if refs and self._names is None:
            beginning = CsvReader(self.source, 1 << 16, self.file_index, self._backend)
            with beginning:
                next(iter(beginning), None)
            self._names = beginning._names
        return super().read_refs(refs)
