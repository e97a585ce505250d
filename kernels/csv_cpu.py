"""Delimited text taken apart, on the CPU: the same functions as ``csv_ref``, 64 bytes at a time to the next byte that
matters (a quote inside quotes; a delimiter or a line end outside), so that a long quoted text costs little more than a
copy of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.csv_ref import (
    AT_CR,
    DOUBLED,
    ENDED,
    IN_QUOTES,
    MIXED,
    OPEN,
    PAD,
    PLAIN,
    QUOTED,
    UNENDED,
    check,
    check_spans,
    check_starts,
)
from gpu_dedup.kernels.jit import frozen, inline, jit
from gpu_dedup.kernels.simd import copy64, ctz64, mask_eq

_U8 = npt.NDArray[np.uint8]
_I64 = npt.NDArray[np.int64]


@inline
def _next_quote(data: _U8, at: int, end: int) -> int:
    """The next quote in data[at:end], or end. Reads up to 63 bytes past the end."""
    while at < end:
        m = mask_eq(data, at, np.uint8(34))
        if m != np.uint64(0):
            return int(min(at + ctz64(m), end))
        at += 64
    return end


@inline
def _next_stop(data: _U8, at: int, end: int, delimiter: int) -> int:
    """The next delimiter or line end in data[at:end], or end. Reads up to 63 bytes past the end."""
    while at < end:
        m = mask_eq(data, at, np.uint8(delimiter)) | mask_eq(data, at, np.uint8(10)) | mask_eq(data, at, np.uint8(13))
        if m != np.uint64(0):
            return int(min(at + ctz64(m), end))
        at += 64
    return end


@inline
def _field(data: _U8, at: int, end: int, delimiter: int) -> tuple[int, int]:
    if at >= end or data[at] != 34:
        return _next_stop(data, at, end, delimiter), np.int64(PLAIN)
    kind = np.int64(QUOTED)
    behind = at + 1
    while True:
        quote = _next_quote(data, behind, end)
        if quote >= end:
            return end, np.int64(OPEN)
        behind = quote + 1
        if behind < end and data[behind] == 34:
            kind = np.int64(DOUBLED)
            behind += 1
        else:
            break
    last = _next_stop(data, behind, end, delimiter)
    if last > behind:
        kind = np.int64(MIXED)
    return last, kind


@jit
def _scan(data: _U8, size: int, delimiter: int) -> tuple[_I64, int]:
    starts = np.empty(1024, np.int64)
    starts[0] = 0
    n = np.int64(1)
    at = np.int64(0)
    state = np.int64(ENDED)
    while at < size:
        kind = np.int64(PLAIN)
        while True:
            at, kind = _field(data, at, size, delimiter)
            if at >= size or data[at] != delimiter:
                break
            at += 1
        if kind == OPEN:
            state = np.int64(IN_QUOTES)
        elif at >= size:
            state = np.int64(UNENDED)
        elif data[at] == 10:
            state = np.int64(ENDED)
            at += 1
        elif at + 1 < size:
            state = np.int64(ENDED)
            at += 2 if data[at + 1] == 10 else 1
        else:
            state = np.int64(AT_CR)
            at += 1
        if n == len(starts):
            grown = np.empty(2 * n, np.int64)
            grown[:n] = starts
            starts = grown
        starts[n] = at
        n += 1
    return starts[:n].copy(), state


def scan(data: _U8, size: int, delimiter: int) -> tuple[_I64, int]:
    """See csv_ref.scan."""
    check(data, size, delimiter)
    starts, state = _scan(frozen(data, np.uint8), size, delimiter)
    return starts, int(state)


@jit
def _split(
    data: _U8, starts: _I64, delimiter: int, slots: _I64, want: npt.NDArray[np.bool_], everything: bool,
    counts: _I64, spans: _I64, kinds: _U8,
) -> None:  # fmt: skip
    for i in range(len(counts)):
        if not everything and not want[i]:
            counts[i] = -2
            continue
        at, end = starts[i], starts[i + 1]
        size = end - at
        if size == 0 or (size == 1 and (data[at] == 10 or data[at] == 13)):
            continue
        if size == 2 and data[at] == 13 and data[at + 1] == 10:
            continue
        number = np.int64(0)
        while True:
            last, kind = _field(data, at, end, delimiter)
            if number < len(slots):
                k = slots[number]
                if k >= 0:
                    spans[i, k, 0] = at
                    spans[i, k, 1] = last
                    kinds[i, k] = np.uint8(kind)
            number += 1
            if kind == OPEN:
                number = np.int64(-1)
                break
            if last >= end or data[last] != delimiter:
                break
            at = last + 1
        counts[i] = number


def split(
    data: _U8, starts: _I64, delimiter: int, columns: _I64, want: npt.NDArray[np.bool_] | None
) -> tuple[_I64, _I64, _U8]:
    """See csv_ref.split."""
    check_starts(data, starts, delimiter, columns)
    n = len(starts) - 1
    slots = np.full(int(columns.max()) + 1 if len(columns) else 0, -1, np.int64)
    slots[columns] = np.arange(len(columns))
    counts = np.zeros(n, np.int64)
    spans = np.full((n, len(columns), 2), -1, np.int64)
    kinds = np.zeros((n, len(columns)), np.uint8)
    mask = np.zeros(0, np.bool_) if want is None else want
    _split(
        frozen(data, np.uint8), frozen(starts, np.int64), delimiter, slots, frozen(mask, np.bool_), want is None,
        counts, spans, kinds,
    )  # fmt: skip
    return counts, spans, kinds


@inline
def _copy(blob: _U8, to: int, data: _U8, begin: int, end: int) -> int:
    """Copy data[begin:end]; writes up to 63 bytes too many, which the next copy overwrites."""
    while begin < end:
        step = min(end - begin, np.int64(64))
        copy64(blob, to, data, begin)
        begin += step
        to += step
    return to


@jit
def _texts(data: _U8, spans: _I64, kinds: _U8, good: npt.NDArray[np.bool_], blob: _U8, offsets: _I64) -> None:
    to = np.int64(0)
    width = spans.shape[1]
    for i in range(len(good)):
        offsets[i] = to
        if not good[i]:
            continue
        for k in range(width):
            if k:
                blob[to] = np.uint8(10)
                to += 1
            at, end = spans[i, k, 0], spans[i, k, 1]
            kind = kinds[i, k]
            if kind == PLAIN:
                to = _copy(blob, to, data, at, end)
            elif kind == QUOTED:
                to = _copy(blob, to, data, at + 1, end - 1)
            else:
                at += 1
                while at < end:
                    quote = _next_quote(data, at, end)
                    to = _copy(blob, to, data, at, quote)
                    if quote >= end:
                        break
                    if quote + 1 < end and data[quote + 1] == 34:
                        blob[to] = np.uint8(34)
                        to += 1
                        at = quote + 2
                    else:
                        to = _copy(blob, to, data, quote + 1, end)
                        break
    offsets[len(good)] = to


def texts(data: _U8, spans: _I64, kinds: _U8, good: npt.NDArray[np.bool_]) -> tuple[_U8, _I64]:
    """See csv_ref.texts."""
    check_spans(data, spans, kinds, good)
    used = spans[good]
    room = int((used[:, :, 1] - used[:, :, 0]).sum()) + len(used) * max(0, spans.shape[1] - 1)
    blob = np.empty(room + 2 * PAD, np.uint8)
    offsets = np.zeros(len(good) + 1, np.int64)
    _texts(
        frozen(data, np.uint8), frozen(spans, np.int64), frozen(kinds, np.uint8), frozen(good, np.bool_), blob, offsets
    )
    end = int(offsets[-1])
    blob[end : end + PAD] = 0
    return blob[: end + PAD], offsets
