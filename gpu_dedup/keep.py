"""Keeper: which of several copies stays, as an order of all rows, and the head of each class of exact copies.

    first                 rows as given
    longest, shortest     code points of the raw text
    max:FIELD, min:FIELD  a field's value: numbers by value, exactly (2**53 + 1 is above 2.0**53); text by code point;
                          dates and times (Parquet has them) by time. null, a missing field and NaN come last either way
    none                  rows as given: nothing is kept by choice, but the order still has to be one

Ties go to the earlier row. Values of two kinds in one field have no order, nor have true and false, lists or objects:
an error that says where. In particular the text "10" is not the number 10.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, MISSING, U64, Bool
from gpu_dedup.errors import RecipeError
from gpu_dedup.recipe import Recipe

NUMBER, TEXT, DATE, TIME, DURATION, BYTES = "number", "text", "date", "time of day", "duration", "bytes"
LOCAL, ZONED = "timestamp without zone", "timestamp with zone"
ORDERED = {NUMBER, TEXT, DATE, TIME, DURATION, BYTES, LOCAL, ZONED}

# Exact type -> kind, for kinds with an order. Booleans are ints to Python, so subclasses are not asked.
KINDS: dict[type, str] = {
    int: NUMBER,
    float: NUMBER,
    Decimal: NUMBER,
    str: TEXT,
    bytes: BYTES,
    datetime.date: DATE,
    datetime.time: TIME,
    datetime.timedelta: DURATION,
}
UNORDERED: dict[type, str] = {bool: "boolean", list: "list", tuple: "list", dict: "object"}

EXACT_INT = 1 << 53  # whole numbers up to this have a float64 of their own
_ABSENT = (type(None), type(MISSING))


def _kind(value: Any) -> str | None:
    """Kind of a value that is there; None for a type that has no order."""
    if isinstance(value, datetime.datetime):  # a date to Python; also pandas' subclass with nanoseconds
        return LOCAL if value.tzinfo is None else ZONED
    return KINDS.get(type(value))


def _absent(value: Any) -> bool:
    """null, no such field, NaN: come last."""
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, _ABSENT)


def _shown(value: Any) -> str:
    """A value for an error message: short, on one line."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


class KeeperError(RecipeError):
    """A field's values cannot be put in order. `rows` are the positions that show it, one or two.

    The message names them by number; `named` gives the same message with places such as file:line.
    """

    def __init__(self, template: str, rows: tuple[int, ...], places: Sequence[str] | None = None) -> None:
        self.template, self.rows = template, rows
        super().__init__(template.format(*(places or [f"row {row}" for row in rows])))

    def named(self, place: Callable[[int], str]) -> KeeperError:
        """The error with place(row) for each row, such as 'data/a.jsonl:17'."""
        return KeeperError(self.template, self.rows, [place(row) for row in self.rows])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.template, self.rows, str(self))


def _rebuild(template: str, rows: tuple[int, ...], message: str) -> KeeperError:
    error = KeeperError(template, rows)
    error.args = (message,)
    return error


class KeeperColumn:
    """Values of the keeper's field, row after row, as compact as their kind allows.

    Numbers are held as int64 or as float64 where that loses nothing, batch by batch (9 bytes a row); larger whole
    numbers, decimals, text and times are held as they are. A value of another kind is refused when it comes, not at
    the end.

    met   (row, kind, value in words) of the first value that was there and, once one was refused, of that one: all that
          an error needs, so that columns of several processes can be held against each other before their values travel
    """

    def __init__(self, keep: str) -> None:
        """keep: 'max:FIELD' or 'min:FIELD', for messages."""
        self.keep = keep
        self._count = 0
        self.met: list[tuple[int, str, str]] = []
        self._chunks: list[tuple[Any, Bool]] = []  # int64, float64 or object values; True where there is one
        self._ints = self._floats = False  # whether there are such chunks
        self._wide = False  # an int64 chunk holds a number that float64 may not

    def __len__(self) -> int:
        return self._count

    @property
    def empty(self) -> bool:
        """True while no row had a value."""
        return not self.met

    def append(self, values: Sequence[Any]) -> None:
        """Add the values of the next rows: str, int, float, bool, None, MISSING, list, dict, or a Parquet time.

        Raises KeeperError at the first value without an order, or of another kind than the values before it.
        """
        types = set(map(type, values))
        there = types.difference(_ABSENT)
        kind = NUMBER if there <= {int, float, Decimal} else TEXT if there == {str} else None
        if there and (kind is None or not self.met or kind != self.met[0][1]):
            self._check_each(values)
        self._store(values, there, gaps=there != types)
        self._count += len(values)

    def _check_each(self, values: Sequence[Any]) -> None:
        """Find the first value that does not go with those before it; take note of the first value there is."""
        for place, value in enumerate(values):
            if not _absent(value):
                kind = _kind(value) or UNORDERED.get(type(value), f"value of type {type(value).__name__}")
                if not self.met or kind != self.met[0][1]:
                    self.meet(self._count + place, kind, _shown(value))

    def meet(self, row: int, kind: str, shown: str) -> None:
        """Take note of a value, told by its row, its kind and itself in words. Raises KeeperError as `append` does."""
        if self.met and kind == self.met[0][1]:
            return
        self.met.append((row, kind, shown))
        value = _braces(shown)
        if kind not in ORDERED:
            raise KeeperError(
                f"{{}}: keep {_braces(self.keep)} has no order for the {kind} {value}; "
                f"use a field of numbers or of text",
                (row,),
            )
        if len(self.met) > 1:
            first, first_kind, example = self.met[0]
            raise KeeperError(
                f"{{1}}: keep {_braces(self.keep)} finds the {kind} {value}, but the {first_kind} {_braces(example)} "
                f"at {{0}}; make the field one kind throughout, or keep by another",
                (first, row),
            )

    def extend(self, other: KeeperColumn) -> None:
        """Add the rows of another column, as if its values had been appended here. It is used up."""
        for row, kind, shown in other.met:
            self.meet(self._count + row, kind, shown)
        self._chunks += other._chunks
        self._ints |= other._ints
        self._floats |= other._floats
        self._wide |= other._wide
        self._count += other._count

    def _store(self, values: Sequence[Any], types: set[type], gaps: bool) -> None:
        """types: of the values that are there; gaps: some are null or missing."""
        if types <= {int, float}:
            there = np.ones(len(values), np.bool_)
            plain = values
            if gaps:
                there = np.array([value is not None and value is not MISSING for value in values], np.bool_)
                plain = [0 if value is None or value is MISSING else value for value in values]
            if float not in types:
                try:
                    whole = np.array(plain, np.int64)
                except OverflowError:
                    pass
                else:
                    self._ints = True
                    self._wide |= bool((whole > EXACT_INT).any() or (whole < -EXACT_INT).any())
                    self._chunks.append((whole, there))
                    return
            elif int not in types or all(type(value) is float or -EXACT_INT <= value <= EXACT_INT for value in plain):
                self._floats = True
                real = np.array(plain, np.float64)
                self._chunks.append((real, there & ~np.isnan(real)))
                return
        objects = np.empty(len(values), object)
        objects[:] = values
        self._chunks.append((objects, np.array([not _absent(value) for value in values], np.bool_)))

    def select(self, rows: I64) -> KeeperColumn:
        """The column of these rows, in this order."""
        values, there = self._merge()
        out = KeeperColumn(self.keep)
        out._count = len(rows)
        out._chunks = [(values[rows], there[rows])]
        return out

    def _merge(self) -> tuple[Any, Bool]:
        """One array of all values, int64, float64 or object, and where there is one."""
        if not self._chunks:
            return np.empty(0, np.int64), np.empty(0, np.bool_)
        if len(self._chunks) > 1:
            values: list[Any] = [chunk for chunk, _ in self._chunks]
            if self._ints and self._floats and self._wide:
                values = [chunk.astype(object) for chunk in values]
            # Among float64 a narrow int64 becomes float64 and loses nothing; among objects both become Python's.
            self._chunks = [(np.concatenate(values), np.concatenate([there for _, there in self._chunks]))]
        return self._chunks[0]

    def order(self, largest: bool) -> I64:
        """int64[n]: rows by value, the largest (or smallest) first, rows without one last, ties to the earlier row."""
        every, there = self._merge()
        rows = np.flatnonzero(there)
        values = every[rows]
        if values.dtype == object:
            # Python compares int, float and Decimal exactly, and text by code point. Reversed sorts stay stable.
            chosen = values.tolist()
            by_value = np.array(sorted(range(len(chosen)), key=chosen.__getitem__, reverse=largest), np.int64)
        else:
            if largest:
                values = ~values if values.dtype == np.int64 else -values  # ~x is -x - 1, which never overflows
            by_value = np.argsort(values, kind="stable")
        return np.concatenate([rows[by_value], np.flatnonzero(~there)]).astype(np.int64, copy=False)


def _braces(text: str) -> str:
    """Text that survives str.format."""
    return text.replace("{", "{{").replace("}", "}}")


def order(keep: str, count: int, chars: I64 | None = None, values: KeeperColumn | Sequence[Any] | None = None) -> I64:
    """Rows in keeper order: of several copies the one that comes first here stays.

    keep     first, none, longest, shortest, max:FIELD or min:FIELD
    count    number of rows n
    chars    int64[n], code points of each raw text; for longest and shortest
    values   n values of the field; for max and min
    returns  int64[n], a permutation of 0 to n - 1

    Raises KeeperError (a RecipeError) for values without a common order.
    """
    Recipe(keep=keep)  # refuses an unknown rule
    if keep in ("first", "none"):
        return np.arange(count, dtype=np.int64)
    if keep in ("longest", "shortest"):
        if chars is None or len(chars) != count:
            raise ValueError(f"keep {keep} needs the code points of {count} texts")
        by_length = np.argsort(-chars if keep == "longest" else chars, kind="stable")
        return by_length.astype(np.int64, copy=False)
    if values is None or len(values) != count:
        raise ValueError(f"keep {keep} needs the values of {count} rows")
    if not isinstance(values, KeeperColumn):
        column = KeeperColumn(keep)
        column.append(values)
        values = column
    return values.order(largest=keep.startswith("max:"))


def classes(digest: U64, length: I64, order: I64) -> I64:
    """Head of each row's class: the first row, in keeper order, with the same digest and length.

    digest   uint64[n, 2], of the normalised text
    length   int64[n], its bytes
    order    int64[k], the rows that take part, in keeper order
    returns  int64[n]: row of the head (a head's is itself); -1 for rows that take no part

    Sorts by the first word of the digest; by all of it only where two rows share that word and differ in the rest, as
    n**2 / 2**65 pairs do by chance.
    """
    out = np.full(len(digest), -1, np.int64)
    if not len(order):
        return out
    word = digest[order, 0]
    by_word = np.argsort(word, kind="stable")  # equal words stay in keeper order
    rows = order[by_word]
    word = word[by_word]
    del by_word
    same = word[1:] == word[:-1]
    beside = np.flatnonzero(same)
    left, right = rows[beside], rows[beside + 1]
    equal = (digest[left, 1] == digest[right, 1]) & (length[left] == length[right])
    if not equal.all():
        rows = order[np.lexsort((length[order], digest[order, 1], digest[order, 0]))]
        left, right = rows[:-1], rows[1:]
        same = (digest[left] == digest[right]).all(axis=1) & (length[left] == length[right])
    first = np.concatenate(([0], np.flatnonzero(~same) + 1))
    out[rows] = np.repeat(rows[first], np.diff(np.append(first, len(rows))))
    return out
