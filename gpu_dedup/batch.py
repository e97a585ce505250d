"""Text in flight: one blob of UTF-8 bytes plus int64 offsets (Arrow's layout), never a Python string per document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gpu_dedup.errors import InternalError

U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
Bool: TypeAlias = npt.NDArray[np.bool_]

MAX_PAIRED = 1 << 32  # numbers that pairs are made of: two of them are one uint64


def pack_pairs(hi: I64, lo: I64) -> U64:
    """uint64[p]: hi << 32 | lo, which sorts as (hi, lo) does; each 0 <= number < MAX_PAIRED. Raises InternalError."""
    for numbers in (hi, lo):
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < MAX_PAIRED:
            raise InternalError(f"numbers {int(numbers.min())} to {int(numbers.max())} in a pair of 32 bits each")
    out: U64 = (hi.astype(np.uint64) << np.uint64(32)) | lo.astype(np.uint64)
    return out


def unpack_pairs(packed: U64) -> tuple[I64, I64]:
    """(hi, lo) of `pack_pairs`."""
    return (packed >> np.uint64(32)).astype(np.int64), (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)


# What a physical row turned out to be.
ROW_TEXT = 0  # has a text, possibly empty
ROW_BLANK = 1  # a blank line of JSONL: numbered, never written
ROW_BAD = 2  # malformed record, or a text that is null, missing, not a string, or not UTF-8
ROW_SKIPPED = 3  # the caller did not want this row (a later pass over some rows only); not parsed


@dataclass(frozen=True)
class Tape:
    """Texts of n documents in host memory.

    blob     uint8[>= offsets[-1]], UTF-8; lone surrogates as three bytes (WTF-8)
    offsets  int64[n + 1], non-decreasing, offsets[0] may be above 0
    """

    blob: U8
    offsets: I64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    def __getitem__(self, i: int) -> bytes:
        return self.blob[self.offsets[i] : self.offsets[i + 1]].tobytes()

    @classmethod
    def of(cls, texts: Iterable[str | bytes]) -> Tape:
        """Build from Python strings (lone surrogates allowed) or ready UTF-8 bytes. For tests and small things."""
        parts = [t.encode("utf-8", "surrogatepass") if isinstance(t, str) else t for t in texts]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(p) for p in parts], out=offsets[1:]) if parts else None
        return cls(np.frombuffer(b"".join(parts), np.uint8), offsets)

    def to_list(self) -> list[str]:
        return [self[i].decode("utf-8", "surrogatepass") for i in range(len(self))]


@dataclass(frozen=True)
class Rows:
    """One chunk of a file, taken apart: n physical rows in file order.

    first_row  number of the first row in its file (0-based physical line, or record number)
    tape       n texts; empty for rows that are not ROW_TEXT. Always valid UTF-8 (WTF-8)
    status     uint8[n], ROW_TEXT | ROW_BLANK | ROW_BAD | ROW_SKIPPED
    errors     (row in file, reason) of every ROW_BAD row, ascending; the reason is a phrase without the place
    fields     for each extra field asked for: a list of n Python values (str, int, float, bool, None, list, dict;
               MISSING where the record has no such field, and for rows that are not ROW_TEXT)
    """

    first_row: int
    tape: Tape
    status: U8
    errors: Sequence[tuple[int, str]]
    fields: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.status)

    def head(self, n: int) -> Rows:
        """The first n rows (all of them if there are no more)."""
        if n >= len(self):
            return self
        return Rows(
            self.first_row,
            Tape(self.tape.blob, self.tape.offsets[: n + 1]),
            self.status[:n],
            [(row, reason) for row, reason in self.errors if row < self.first_row + n],
            {name: values[:n] for name, values in self.fields.items()},
        )


def absent(n: int) -> I64:
    """int64[n], -1 throughout, in no memory: a column that a recipe has no use for. Read-only."""
    return np.broadcast_to(np.int64(-1), (n,))


class TypedText(str):
    """Text of a value that is no string; it sorts as the values do. `kind`: what the value was."""

    kind: str

    def __new__(cls, text: str, kind: str) -> TypedText:
        made = super().__new__(cls, text)
        made.kind = kind
        return made

    def __reduce__(self) -> tuple[type[TypedText], tuple[str, str]]:
        return TypedText, (str(self), self.kind)


def pair_slices(offsets: I64, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of bucket members with at most `most` pairs each (one member, where it alone has more).

    offsets  int64[t + 1]: where the pairs of each member begin
    """
    first, end = 0, len(offsets) - 1
    while first < end:
        last = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        last = min(max(last, first + 1), end)
        yield first, last
        first = last


class _Missing:
    """The record has no such field (null is a value of its own)."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()
