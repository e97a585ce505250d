"""Delimited text (CSV, TSV) taken apart, the definition: records, their fields, and the fields' texts.

    scan(data, size, delimiter)                        where the records begin
    split(data, starts, delimiter, columns, want)      fields of each record, and where the wanted ones are
    texts(data, spans, kinds, good)                    the wanted fields without their quotes, joined by LF

The dialect is that of Python's csv module with its defaults (RFC 4180, and what to make of its breach): a record ends
at LF, CR LF or a lone CR outside quotes; a field that begins with `"` is quoted to the next `"` that is not doubled;
what stands between that and the delimiter belongs to the field as it is; a `"` elsewhere is a character like any other.
An empty line is a record without fields. One thing differs: a quote that is not closed is reported, not taken to end.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

PAD = 64  # spare bytes after the records in data, and after the last text in the blob

# How a field is written. The text of PLAIN is the field; of QUOTED what is between its quotes; DOUBLED has doubled
# quotes in there; MIXED has something behind the closing quote; OPEN has no closing quote.
PLAIN, QUOTED, DOUBLED, MIXED, OPEN = 0, 1, 2, 3, 4
# How the last record ends: with LF, with a CR that an LF may follow, with neither, or inside quotes.
ENDED, AT_CR, UNENDED, IN_QUOTES = 0, 1, 2, 3

_I64 = npt.NDArray[np.int64]
_U8 = npt.NDArray[np.uint8]
_QUOTE = 34


def check(data: _U8, size: int, delimiter: int) -> None:
    """Refuse arguments that would make a kernel read outside its arrays, or a delimiter that cannot be told apart."""
    if not 0 <= size <= len(data) - PAD:
        raise ValueError(f"{len(data)} bytes cannot hold {size} bytes of records and {PAD} spare ones")
    if not 0 < delimiter < 128 or delimiter in (10, 13, _QUOTE):
        raise ValueError(f"byte {delimiter} cannot part fields")


def check_starts(data: _U8, starts: _I64, delimiter: int, columns: _I64) -> None:
    """Refuse starts of records outside the data, and columns that are negative or given twice."""
    if len(starts) < 1 or starts[0] < 0 or np.any(np.diff(starts) < 0):
        raise ValueError("starts of records must not be negative and must not descend")
    check(data, int(starts[-1]), delimiter)
    if np.any(columns < 0) or len(np.unique(columns)) != len(columns):
        raise ValueError(f"columns {columns.tolist()} must be 0 or more, and none twice")


def check_spans(data: _U8, spans: _I64, kinds: _U8, good: npt.NDArray[np.bool_]) -> None:
    """Refuse spans outside the data."""
    if spans.shape != (*kinds.shape, 2) or len(good) != len(kinds):
        raise ValueError(f"spans {spans.shape}, kinds {kinds.shape} and {len(good)} marks do not belong together")
    used = spans[good]
    if used.size and (used.min() < 0 or used.max() > len(data) - PAD or np.any(used[:, :, 0] > used[:, :, 1])):
        raise ValueError("a span leaves the data")


def _field(raw: bytes, at: int, end: int, stop: re.Pattern[bytes]) -> tuple[int, int]:
    """Where the field that begins at `at` ends (at a delimiter, a line end or `end`), and how it is written."""
    kind, behind = PLAIN, at
    if raw.startswith(b'"', at, end):
        kind, behind = QUOTED, at + 1
        while True:
            quote = raw.find(b'"', behind, end)
            if quote < 0:
                return end, OPEN
            behind = quote + 1
            if raw.startswith(b'"', behind, end):
                kind, behind = DOUBLED, behind + 1
            else:
                break
    found = stop.search(raw, behind, end)
    last = found.start() if found else end
    return last, MIXED if kind != PLAIN and last > behind else kind


def _line_end(raw: bytes, at: int, end: int) -> int:
    """Bytes of the line end at `at`; 0 where there is none."""
    if raw.startswith(b"\r\n", at, end):
        return 2
    return 1 if raw.startswith((b"\r", b"\n"), at, end) else 0


def _stop(delimiter: int) -> re.Pattern[bytes]:
    return re.compile(b"[\r\n" + re.escape(bytes([delimiter])) + b"]")


def scan(data: _U8, size: int, delimiter: int) -> tuple[_I64, int]:
    """Where records begin, the first of them at 0.

    data       uint8[>= size + 64]
    delimiter  a byte of ASCII other than a quote or a line end
    returns    int64[n + 1]: record i is data[starts[i]:starts[i + 1]], its line end included; starts[n] = size
               how the last record ends: ENDED (also where there is none), AT_CR, UNENDED, IN_QUOTES

    Raises ValueError if the 64 spare bytes are missing.
    """
    check(data, size, delimiter)
    raw, stop = data[:size].tobytes(), _stop(delimiter)
    starts = [0]
    at, state = 0, ENDED
    while at < size:
        kind = PLAIN
        while True:
            at, kind = _field(raw, at, size, stop)
            if at == size or _line_end(raw, at, size):
                break
            at += 1
        if kind == OPEN:
            state = IN_QUOTES
        elif at == size:
            state = UNENDED
        else:
            state = AT_CR if raw[at:] == b"\r" else ENDED
            at += _line_end(raw, at, size)
        starts.append(at)
    return np.array(starts, np.int64), state


def split(
    data: _U8, starts: _I64, delimiter: int, columns: _I64, want: npt.NDArray[np.bool_] | None
) -> tuple[_I64, _I64, _U8]:
    """Fields of each record.

    data       uint8[>= starts[-1] + 64]
    starts     int64[n + 1], as `scan` gives them
    columns    int64[k], numbers of the wanted fields, in any order, none twice
    want       bool[n] or None for all; other records are not looked at
    returns    counts  int64[n]: fields of the record, 0 for an empty line; -1 if a quote in it is not closed; -2 where
                       it is not wanted
               spans   int64[n, k, 2]: first byte of the field and the byte after it; -1, -1 where there is none
               kinds   uint8[n, k]: PLAIN ... OPEN; PLAIN where there is none
    """
    check_starts(data, starts, delimiter, columns)
    n = len(starts) - 1
    stop = _stop(delimiter)
    counts = np.zeros(n, np.int64)
    spans = np.full((n, len(columns), 2), -1, np.int64)
    kinds = np.zeros((n, len(columns)), np.uint8)
    slot = {int(column): k for k, column in enumerate(columns)}
    raw = data[: starts[-1]].tobytes()
    for i in range(n):
        if want is not None and not want[i]:
            counts[i] = -2
            continue
        at, end = int(starts[i]), int(starts[i + 1])
        if at == end or _line_end(raw, at, end) == end - at:
            continue
        number = 0
        while True:
            last, kind = _field(raw, at, end, stop)
            if number in slot:
                spans[i, slot[number]] = at, last
                kinds[i, slot[number]] = kind
            number += 1
            if kind == OPEN:
                number = -1
                break
            if last == end or raw[last] != delimiter:
                break
            at = last + 1
        counts[i] = number
    return counts, spans, kinds


def texts(data: _U8, spans: _I64, kinds: _U8, good: npt.NDArray[np.bool_]) -> tuple[_U8, _I64]:
    """The fields of each record without their quotes, joined by LF.

    data     uint8[m]
    spans, kinds  as `split` gives them; every field of a good record is there
    good     bool[n]; other records give an empty text
    returns  blob uint8[offsets[n] + 64], offsets int64[n + 1] from 0
    """
    check_spans(data, spans, kinds, good)
    raw = data.tobytes()
    parts = []
    for i in range(len(good)):
        fields = []
        for (begin, end), kind in zip(spans[i].tolist(), kinds[i].tolist(), strict=True):
            if not good[i]:
                break
            if kind == PLAIN:
                fields.append(raw[begin:end])
                continue
            field = b""
            at = begin + 1
            while at < end:
                quote = raw.find(b'"', at, end)
                if quote < 0:
                    field, at = field + raw[at:end], end
                elif raw.startswith(b'""', quote, end):
                    field, at = field + raw[at : quote + 1], quote + 2
                else:  # the closing quote; what is behind it is taken as it is
                    field, at = field + raw[at:quote] + raw[quote + 1 : end], end
            fields.append(field)
        parts.append(b"\n".join(fields))
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return np.frombuffer(b"".join(parts) + bytes(PAD), np.uint8).copy(), offsets
