"""What the fast normalisers look up: the definition (normalise_ref) worked out for every code point, per set of steps.

A code point *starts* if a text may be cut before it: the results of the two parts are the result of the whole, through
both forms and the folding, whatever comes before or after. One that does not start *joins*: combining marks, Hangul
vowels and tails, and what decomposes or folds into something that begins with one. So a code point that starts and is
followed by one that starts has a result of its own, which is in these tables; only a cluster (one that starts, with all
that join it) has to be taken apart and composed.

A code point is *quick* if a cluster of nothing but quick ones, their combining classes not falling, is what its members
give one by one (the quick check of UAX #15, for both forms and the folding between them).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.normalise_ref import (
    ACCENT_MARKS,
    ACCENTS,
    DIGITS,
    LOWER,
    NFC,
    NFKC,
    NOSPACE,
    PUNCTUATION,
    S_BASE,
    S_COUNT,
    TAILS,
    VOWELS,
    WHITESPACE,
    check_steps,
    composed,
    folding,
    form_tables,
    letters,
)
from gpu_dedup.kernels.unicode import CODE_POINTS, DIGIT, PUNCT, SPACE, class_table

# An entry: uint32. Without SAME, SPACE_OUT and STRING: (entry >> 24) & 3 bytes of UTF-8 in the low 24 bits, first low.
SAME = 1 << 26  # the result is the code point itself; low 8 bits: combining class, if it joins
SPACE_OUT = 1 << 27  # white space: one blank unless there is one before (WHITESPACE), or nothing (NOSPACE)
STRING = 1 << 28  # low 24 bits: number of a string
JOINS = 1 << 29
QUICK = 1 << 30
LONGEST = 192  # no string is longer

# A code point in work: uint32, combining class in the high 8 bits, SECOND where it may compose with one before.
SECOND = 1 << 21

HASH_BITS = 12
HASH_FACTOR = 0x9E3779B97F4A7C15

SHIFT = 7
BLOCK = 1 << SHIFT


# Where each part begins is in the first words of the book.
ENTRY1, ENTRY2, STARTS, RECORD1, RECORD2, RECORDS, DATA, PAIRS, CLASS1, CLASS2 = range(10)


class Tables(NamedTuple):
    """What a kernel looks up, in two arrays (a kernel call costs time for each of its arrays).

    book     uint32[...]: the parts below, one after another; part X begins at book[book[X]] (after the first words)
    strings  uint8[...]: results of more than three bytes, or with white space and more; in them white space is U+0020
             (WHITESPACE), or there is none (NOSPACE)

    Two-stage parts: value(cp) = X2[X1[cp >> 7] * 128 + (cp & 127)]; X1 has 0x200000 >> 7 words, so that no four bytes,
    valid UTF-8 or not, lead outside.

    ENTRY1, ENTRY2    entry of a code point, see above
    STARTS            string k is strings[STARTS[k]:STARTS[k + 1]]
    RECORD1, RECORD2  row of RECORDS; row 0: class 0, no mapping
    RECORDS           rows of 8 words: bits of a code point in work above its own 21 | decomposition from, to | folding
                      from, to (places in DATA; from = to: none, from > to: it becomes nothing) | 0 0 0. Hangul
                      syllables are left to arithmetic
    DATA              decompositions as code points in work, foldings as plain code points
    PAIRS             1 << HASH_BITS rows of 4 words: first, second, primary composite, 0; all 0 where empty. The place
                      of a pair is (first << 21 | second) * HASH_FACTOR modulo 2**64 >> (64 - HASH_BITS), and on by one
                      where that is taken
    CLASS1, CLASS2    class bits, as kernels/unicode.py has them
    """

    book: npt.NDArray[np.uint32]
    strings: npt.NDArray[np.uint8]


def _two_stage(
    values: npt.NDArray[np.unsignedinteger],
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.unsignedinteger]]:
    """Equal blocks stored once; what lies beyond the last code point is as the last block (private use: plain)."""
    blocks: dict[bytes, int] = {}
    numbers = [blocks.setdefault(row.tobytes(), len(blocks)) for row in values.reshape(-1, BLOCK)]
    stage1 = np.full(0x200000 >> SHIFT, numbers[-1], np.uint16)
    stage1[: len(numbers)] = numbers
    return stage1, np.frombuffer(bytearray(b"".join(blocks)), values.dtype)


def _classes() -> npt.NDArray[np.uint8]:
    stage1, stage2 = class_table()
    return stage2.reshape(-1, BLOCK)[stage1].reshape(-1)


class _Shape:
    """What a form and the folding do to single code points.

    ACCENTS is Form C over decompositions that lack the accents; it goes with no other form and no folding here.
    """

    def __init__(self, steps: int) -> None:
        if steps & ACCENTS and steps & (NFC | NFKC | LOWER):
            raise ValueError("accents are dropped in a round of their own, after forms and folding")
        self.dropped = set(map(chr, ACCENT_MARKS)) if steps & ACCENTS else set()
        self.shaped = bool(steps & (NFC | NFKC | ACCENTS))
        self.lower = bool(steps & LOWER)
        form = form_tables(bool(steps & NFKC))
        self.ccc, self.pair = form.ccc, form.pair
        self.decomposition = form.decompose.table if self.shaped else {}
        if self.dropped:
            without = str.maketrans(dict.fromkeys(self.dropped))
            self.decomposition = {char: text.translate(without) for char, text in self.decomposition.items()}
            self.decomposition |= dict.fromkeys(self.dropped, "")
            self.pair = {both: char for both, char in self.pair.items() if both[1] not in self.dropped}
        self.fold = folding().table if self.lower else {}
        self.seconds = {key[1] for key in self.pair} | {chr(c) for c in (*VOWELS, *TAILS)} if self.shaped else set()
        # A starter is no place to cut if it, or a composite that begins with it, folds into something that joins.
        self.unsafe: set[str] = set()
        self.unsafe = {
            self._first(c) for c in (*self.fold, *self.pair.values()) if not self.starts(self.fold.get(c, c)[0])
        }

    def special(self) -> set[int]:
        """Code points that a form or the folding may treat in a way of their own; Hangul syllables aside."""
        known = {*self.decomposition, *self.fold, *self.seconds, *(self.ccc if self.shaped else ())}
        return {ord(char) for char in known if not S_BASE <= ord(char) < S_BASE + S_COUNT}

    def _first(self, char: str) -> str:
        """What a decomposition begins with; an accent that is dropped stands for itself."""
        return (self.decomposition.get(char, char) or char)[0]

    def starts(self, char: str) -> bool:
        if not self.shaped:
            return True
        first = self._first(char)
        return (
            first not in self.dropped
            and first not in self.ccc
            and first not in self.seconds
            and first not in self.unsafe
        )

    def formed(self, char: str) -> str:
        found = self.decomposition.get(char)
        return char if found is None else composed(found, self.ccc, self.pair)

    def quick(self, char: str) -> bool:
        folded = self.fold.get(char, char)
        if self.formed(char) != char or len(folded) != 1 or char in self.seconds or folded in self.seconds:
            return False
        if char in self.ccc:
            return folded == char
        return self.starts(char) and folded not in self.ccc and self.formed(folded) == folded


def _entries(steps: int) -> tuple[npt.NDArray[np.uint32], list[bytes]]:
    """Entry of every code point, and the strings."""
    shape = _Shape(steps)
    classes = _classes()
    entries = np.full(CODE_POINTS, SAME | QUICK, np.uint32)
    touched = (DIGIT if steps & DIGITS else 0) | (PUNCT if steps & PUNCTUATION else 0)
    touched |= SPACE if steps & (WHITESPACE | NOSPACE) else 0
    codes = sorted({*shape.special(), *np.flatnonzero(classes & touched).tolist()})
    # U+0001 starts, has no mapping and is no White_Space, so all results can be had from one text.
    results = letters("\x01".join(map(chr, codes)), steps).split("\x01") if codes else []
    blanks = dict.fromkeys(np.flatnonzero(classes & SPACE).tolist(), " " if steps & WHITESPACE else "")
    strings: dict[bytes, int] = {}
    for code, text in zip(codes, results, strict=True):
        char = chr(code)
        flags = (0 if shape.starts(char) else JOINS) | (QUICK if shape.quick(char) else 0)
        blank = bool(steps & (WHITESPACE | NOSPACE)) and len(text) == 1 and ord(text) in blanks
        if steps & (WHITESPACE | NOSPACE):
            text = text.translate(blanks)
        data = text.encode("utf-8", "surrogatepass")
        if blank:
            entries[code] = flags | SPACE_OUT
        elif text == char:
            entries[code] = flags | SAME | (shape.ccc.get(char, 0) if flags & JOINS else 0)
        elif len(data) <= 3 and not (steps & WHITESPACE and b" " in data):
            entries[code] = flags | len(data) << 24 | int.from_bytes(data, "little")
        else:
            entries[code] = flags | STRING | strings.setdefault(data, len(strings))
    return entries, list(strings)


def _pairs(pair: dict[str, str]) -> npt.NDArray[np.uint32]:
    size = 1 << HASH_BITS
    rows = np.zeros((size, 4), np.uint32)
    for both, composite in pair.items():
        first, second = map(ord, both)
        place = ((first << 21 | second) * HASH_FACTOR & 0xFFFFFFFFFFFFFFFF) >> (64 - HASH_BITS)
        while rows[place, 0]:
            place = (place + 1) % size
        rows[place] = first, second, ord(composite), 0
    return rows


def _records(steps: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Row of every code point, the rows, and the data they point to."""
    shape = _Shape(steps)
    none = (
        1,
        0,
    )  # a decomposition into nothing: its end before its beginning, because equal ends mean that it has none

    def work(char: str) -> int:
        return shape.ccc.get(char, 0) << 24 | (SECOND if char in shape.seconds else 0) | ord(char)

    numbers = np.zeros(CODE_POINTS, np.uint16)
    rows = [(0,) * 8]
    data: list[int] = []
    for code in sorted(shape.special()):
        char = chr(code)
        places = [len(data)]
        data += [work(c) for c in shape.decomposition.get(char, "")]
        places.append(len(data))
        data += [ord(c) for c in shape.fold.get(char, "")]
        places.append(len(data))
        numbers[code] = len(rows)
        apart = none if char in shape.dropped else (places[0], places[1])
        rows.append((work(char) ^ code, *apart, places[1], places[2], 0, 0, 0))
    return numbers, np.array(rows, np.uint32), np.array(data or [0], np.uint32)


@cache
def tables(steps: int) -> Tables:
    """The tables of a set of steps, made at the first call (some tens of milliseconds).

    Raises ValueError as normalise_ref.check_steps does, and for ACCENTS beside a form or LOWER.
    """
    check_steps(steps)
    entries, strings = _entries(steps)
    longest = max(map(len, strings), default=0)
    if longest > LONGEST:
        raise AssertionError(f"a code point becomes {longest} bytes; kernels leave room for {LONGEST}")
    starts = np.cumsum([0] + [len(text) for text in strings])
    numbers, records, data = _records(steps & (NFC | NFKC | LOWER | ACCENTS))
    stage1, stage2 = class_table()
    classes = np.full(0x200000 >> SHIFT, stage1[-1], np.uint16)
    classes[: len(stage1)] = stage1
    parts = [
        *_two_stage(entries),
        starts,
        *_two_stage(numbers),
        records,
        data,
        _pairs(_Shape(steps).pair),
    ]
    parts += [classes, stage2]
    places = np.cumsum([len(parts)] + [part.size for part in parts])
    book = np.concatenate([places[:-1], *(part.reshape(-1) for part in parts)]).astype(np.uint32)
    return Tables(book, np.frombuffer(bytearray(b"".join(strings) + b"\0"), np.uint8))
