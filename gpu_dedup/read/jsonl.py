"""JSON lines: chunks of whole lines, and what each line means.

The backend's fast road takes lines apart; what it would rather not judge goes to `json.loads`, which is the definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from gpu_dedup.backend import LINE_ODD, Backend
from gpu_dedup.batch import I64, MISSING, ROW_BAD, ROW_BLANK, ROW_SKIPPED, ROW_TEXT, U8, Bool, Rows, Tape
from gpu_dedup.errors import InternalError
from gpu_dedup.read import items
from gpu_dedup.read.chunks import PAD, ChunkRef, fields_here, quoted, replaced
from gpu_dedup.read.lines import LinesChunk, RecordReader

# As in the fast road (kernels/jsonl_ref.py): json.loads recurses, and how deep it may differs between interpreters.
MAX_DEPTH = 500
_CR_BETWEEN = re.compile(rb"\}[ \t]*\r[ \t\r]*\{")


class _LongInt(int):
    """An integer of more digits than int() reads and str() writes (sys.set_int_max_str_digits); exact, printable."""

    def __repr__(self) -> str:
        return str(Decimal(int(self)))

    __str__ = __repr__


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        return _LongInt(Decimal(digits))


def loads(text: str) -> Any:
    """json.loads, integers of any length included."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_whole)


# The closing quote is optional, so that a string without an end is passed over once and not tried again at each quote.
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{\]}]', re.DOTALL)


def _too_deep(line: bytes) -> bool:
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(line):
        first = line[match.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


_KINDS = {str: "a string", bool: "true or false", type(None): "null", list: "a list", dict: "an object"}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def lookup(record: dict[str, Any], name: str) -> Any:
    """The field of this name, else what lies at the end of the dotted path; MISSING where neither is there."""
    if name in record:
        return record[name]
    if "." not in name:
        return MISSING
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _complaint(error: json.JSONDecodeError) -> str:
    """What json.loads says, in the words of Python 3.10 to 3.12 (3.13 has its own for a comma before a bracket)."""
    what, at = error.msg.removesuffix(" at").rstrip(": "), error.pos
    if what.startswith("Illegal trailing comma"):
        what = "Expecting property name enclosed in double quotes" if what.endswith("object") else "Expecting value"
        at += 1
        while error.doc[at : at + 1] in (" ", "\t", "\r"):
            at += 1
    return f"{what} at column {at + 1}"


def record_of(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The object on a line (without its LF), by json.loads: (record, '') or (None, why the row is bad)."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, f"not valid UTF-8 at byte {error.start + 1}"
    if _too_deep(line):
        return None, f"nested more than {MAX_DEPTH} levels deep"
    try:
        record = loads(text)
    except json.JSONDecodeError as error:
        return None, f"not valid JSON: {_complaint(error)}"
    return (record, "") if isinstance(record, dict) else (None, f"not an object but {_kind(record)}")


def judge_items(line: bytes, field: str) -> tuple[dict[str, Any] | None, bytes, str]:
    """The same as `judge`, where the field is a list of tokens."""
    record, reason = record_of(line)
    if record is None:
        return None, b"", reason
    value = lookup(record, field)
    if isinstance(value, list):
        try:
            return record, items.text_of(value).encode("utf-8", "surrogatepass"), ""
        except ValueError as error:
            return None, b"", f'field "{quoted([field])}": {error}'
    if value is MISSING:
        here = fields_here(list(record), [field]) if record else "the object is empty"
        return None, b"", f'no field "{quoted([field])}" ({here}; name the right one with --pretokenized)'
    return None, b"", f'field "{quoted([field])}" is {_kind(value)}, not a list'


def judge(line: bytes, fields: Sequence[str]) -> tuple[dict[str, Any] | None, bytes, str]:
    """What a line (without its LF) is, by json.loads: (record, text, '') or (None, b'', why the row is bad)."""
    record, reason = record_of(line)
    if record is None:
        return None, b"", reason
    parts = []
    for name in fields:
        value = lookup(record, name)
        if isinstance(value, str):
            parts.append(value.encode("utf-8", "surrogatepass"))
        elif value is not None and value is not MISSING:
            return None, b"", f'field "{quoted([name])}" is {_kind(value)}, not a string'
    if not parts:
        here = "the object is empty"
        if record and any(lookup(record, name) is not MISSING for name in fields):
            here = f"fields here: {quoted(list(record))}"
        elif record:
            here = f"{fields_here(list(record), fields)}; name the right one with --text-field"
        if len(fields) > 1:
            return None, b"", f"no text in any of the fields {quoted(fields)} ({here})"
        if lookup(record, fields[0]) is None:
            return None, b"", f'field "{quoted(fields)}" is null'
        return None, b"", f'no field "{quoted(fields)}" ({here})'
    return record, b"\n".join(parts), ""


def kind_of_file(line: bytes, first: bool, reason: str) -> str:
    """The reason why a line is bad, and, where it shows, that the whole file is not one record a line.

    first  whether it is the file's first line
    """
    if _CR_BETWEEN.search(line):
        return f"{reason} (records are parted by CR alone here: convert the line ends to LF, tr '\\r' '\\n')"
    if not first:
        return reason
    start = line.strip(b" \t\r")
    array = start == b"[" or (start.startswith(b"[") and start[1:].lstrip(b" \t\r").startswith(b"{"))
    if array:
        return f"{reason} (one record a line is expected; this looks like a JSON array: convert it (jq -c .[]))"
    if start == b"{":
        return f"{reason} (one record a line is expected; this looks like JSON over many lines: convert it (jq -c .))"
    return reason


class JsonlChunk(LinesChunk):
    """Whole lines of a file of JSON lines."""

    def parse(
        self, backend: Backend, fields: Sequence[str], extra: Sequence[str] = (), want: Bool | None = None
    ) -> Rows:
        taken = backend.extract_jsonl(self.data, self.size, fields, extra, want)
        if len(taken.status) != self.ref.rows:
            raise InternalError(f"{len(taken.status)} rows where {self.ref.rows} lines were counted")
        self._starts = starts = taken.starts
        status = taken.status
        values = self._values(taken.spans, status, extra)
        texts: dict[int, bytes] = {}
        errors: list[tuple[int, str]] = []
        for i in np.flatnonzero(status == LINE_ODD).tolist():
            line = self.data[starts[i] : starts[i + 1]].tobytes().removesuffix(b"\n")
            record, text, reason = judge(line, fields)
            if record is None:
                status[i] = ROW_BAD
                errors.append((self.first_row + i, kind_of_file(line, self.first_row + i == 0, reason)))
                continue
            status[i] = ROW_TEXT
            texts[i] = text
            for name in extra:
                values[name][i] = lookup(record, name)
        return Rows(self.first_row, replaced(taken.tape, texts), status, errors, values)

    def items(self, backend: Backend, field: str, extra: Sequence[str] = (), want: Bool | None = None) -> Rows:
        starts, n = self.lines(), self.ref.rows
        status = np.full(n, ROW_SKIPPED, np.uint8)
        values: dict[str, list[Any]] = {name: [MISSING] * n for name in extra}
        parts: list[bytes] = [b""] * n
        errors: list[tuple[int, str]] = []
        for i in range(n) if want is None else np.flatnonzero(want).tolist():
            line = self.data[starts[i] : starts[i + 1]].tobytes().removesuffix(b"\n")
            if not line.strip(b" \t\r"):
                status[i] = ROW_BLANK
                continue
            record, parts[i], reason = judge_items(line, field)
            status[i] = ROW_TEXT if record is not None else ROW_BAD
            if record is None:
                errors.append((self.first_row + i, kind_of_file(line, self.first_row + i == 0, reason)))
                continue
            for name in extra:
                values[name][i] = lookup(record, name)
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        blob = np.frombuffer(bytearray(b"".join([*parts, bytes(PAD)])), np.uint8)
        return Rows(self.first_row, Tape(blob, offsets), status, errors, values)

    def records(self, most: int) -> list[dict[str, int | None]]:
        out: list[dict[str, int | None]] = []
        for line in self.data[: self.size].tobytes().split(b"\n"):
            if len(out) == most:
                break
            try:
                record = None if _too_deep(line) else loads(line.decode("utf-8"))
            except ValueError:
                continue
            if isinstance(record, dict):
                out.append({name: len(v) if isinstance(v, str) else None for name, v in record.items()})
        return out

    def _values(self, spans: I64, status: U8, extra: Sequence[str]) -> dict[str, list[Any]]:
        """Python values of the raw values that the fast road has found (and checked: each is a whole JSON value)."""
        values: dict[str, list[Any]] = {}
        view = self.data.data
        for x, name in enumerate(extra):
            found = np.flatnonzero(spans[:, x, 0] >= 0)
            column: list[Any] = [MISSING] * len(status)
            if len(found):
                # One call for all of them: a call costs more than a value.
                first, end = spans[found, x, 0].tolist(), spans[found, x, 1].tolist()
                raw = b",".join([view[a:b] for a, b in zip(first, end, strict=True)])
                for i, value in zip(found.tolist(), loads(f"[{raw.decode()}]"), strict=True):
                    column[i] = value
            values[name] = column
        return values


class JsonlReader(RecordReader):
    """A JSONL file, compressed or not, in chunks of whole lines."""

    def chunk(self, nbytes: int, ref: ChunkRef, data: U8, bom: bytes) -> JsonlChunk:
        return JsonlChunk(self.file_index, nbytes, ref, data, bom)
