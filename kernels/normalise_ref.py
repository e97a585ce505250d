"""Text as it is compared: Unicode form, case folding, digits, punctuation, white space. The definition, plain Python.

`steps` is a set of bits. Their order is the order of work, lowest bit first, with one exception: where a form and LOWER
are both on, the form is applied once more after the folding.

    bit          step         what becomes of the text
    HTML         html         tags out, character references in: another kernel's, before this one (html_ref)
    NFC          nfc          Normalization Form C
    NFKC         nfkc         Normalization Form KC
    LOWER        lower        full case folding (CaseFolding.txt, status C and F), then the same form again
    ACCENTS      accents      Normalization Form D, U+0300 to U+036F dropped (no other mark), Form C
    DIGITS       digits       each code point of category Nd becomes 0
    PUNCTUATION  punctuation  each code point of category P* or S* becomes one blank (U+0020)
    WHITESPACE   whitespace   runs of White_Space become one blank; none at either end
    NOSPACE      nospace      White_Space is removed

All by the tables of one Unicode version (kernels/unicode.py). Code points that this version does not assign, and lone
surrogates, pass through unchanged. A document's result depends on its own bytes alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.unicode import CODE_POINTS, DIGIT, PUNCT, SPACE, class_table, load

HTML = 1
NFC = 2
NFKC = 4
LOWER = 8
ACCENTS = 16
DIGITS = 32
PUNCTUATION = 64
WHITESPACE = 128
NOSPACE = 256

SUPPORTED = NFC | NFKC | LOWER | ACCENTS | DIGITS | PUNCTUATION | WHITESPACE | NOSPACE

PAD = 64  # spare bytes after the texts, so that kernels may read 64 bytes at a time

# Hangul syllables are composed and taken apart by arithmetic (The Unicode Standard, 3.12).
S_BASE, L_BASE, V_BASE, T_BASE = 0xAC00, 0x1100, 0x1161, 0x11A7
L_COUNT, V_COUNT, T_COUNT = 19, 21, 28
S_COUNT = L_COUNT * V_COUNT * T_COUNT
ACCENT_MARKS = range(0x300, 0x370)  # what ACCENTS drops

VOWELS = range(V_BASE, V_BASE + V_COUNT)
TAILS = range(T_BASE + 1, T_BASE + T_COUNT)


def check_steps(steps: int) -> None:
    """Raises ValueError for a set of bits that means nothing."""
    if steps & ~SUPPORTED:
        raise ValueError(f"steps {steps:#x} has bits that no kernel knows: {steps & ~SUPPORTED:#x}")
    for one, other in ((NFC, NFKC), (WHITESPACE, NOSPACE)):
        if steps & one and steps & other:
            raise ValueError(f"steps {steps:#x} holds both {one:#x} and {other:#x}, which exclude each other")


def charset(codes: Iterable[int]) -> str:
    """The regular expression that matches one of these code points."""
    found = np.unique(np.fromiter(codes, np.int64))
    breaks = np.flatnonzero(np.diff(found) > 1) + 1
    ranges = [(int(run[0]), int(run[-1])) for run in np.split(found, breaks)]
    return "[" + "".join(f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in ranges) + "]"


class Mapping:
    """Replaces single code points by texts; what is not in the table stays. (str.translate is slow on misses.)"""

    def __init__(self, table: dict[str, str]) -> None:
        self.table = table
        self.pattern = re.compile(charset(map(ord, table)))

    def __call__(self, text: str) -> str:
        return self.pattern.sub(lambda found: self.table[found[0]], text)


class Form(NamedTuple):
    """What a normalization form needs to know."""

    decompose: Mapping  # full, in canonical order; Hangul syllables included
    ccc: dict[str, int]  # canonical combining class where it is not 0
    pair: dict[str, str]  # first + second: primary composite; Hangul aside
    marks: re.Pattern[str]  # two or more code points with a combining class
    cluster: re.Pattern[str]  # what composition may change: code points that combine with one before, and that one
    suspect: re.Pattern[str]  # a text without any of these is in the form already (quick check of UAX #15)


def _table(name: str) -> dict[str, str]:
    arrays = load()
    codes, starts, data = (arrays[f"{name}_{part}"].tolist() for part in ("code", "start", "data"))
    chars = "".join(map(chr, data))
    return {chr(code): chars[low:high] for code, low, high in zip(codes, starts[:-1], starts[1:], strict=True)}


@cache
def form_tables(compatibility: bool) -> Form:
    """Tables of NFC, or of NFKC."""
    arrays = load()
    decomposition = _table("nfd")
    if compatibility:
        decomposition.update(_table("nfkd"))
    codes, values = arrays["ccc_code"].tolist(), arrays["ccc_value"].tolist()
    pairs = arrays["pair"].tolist()
    combining = [*codes, *(second for _, second, _ in pairs), *VOWELS, *TAILS]
    joining = charset(combining)
    ccc = {chr(code): value for code, value in zip(codes, values, strict=True)}
    pair = {chr(first) + chr(second): chr(both) for first, second, both in pairs}
    changed = [ord(char) for char, text in decomposition.items() if composed(text, ccc, pair) != char]
    for s in range(S_COUNT):
        leading, vowel, tail = s // (V_COUNT * T_COUNT), s // T_COUNT % V_COUNT, s % T_COUNT
        text = chr(L_BASE + leading) + chr(V_BASE + vowel)
        decomposition[chr(S_BASE + s)] = text + chr(T_BASE + tail) if tail else text
    return Form(
        Mapping(decomposition),
        ccc,
        pair,
        re.compile(charset(codes) + "{2,}"),
        re.compile(f"[^{joining[1:]}?{joining}+"),
        re.compile(charset(changed + combining)),
    )


@cache
def folding() -> Mapping:
    """Full case folding."""
    return Mapping(_table("fold"))


@cache
def members(bit: int) -> tuple[int, ...]:
    """Code points of a class bit of kernels/unicode.py."""
    stage1, stage2 = class_table()
    codes = np.arange(CODE_POINTS)
    classes = stage2[stage1[codes >> 7].astype(np.int64) * 128 + (codes & 127)]
    return tuple(np.flatnonzero(classes & bit).tolist())


@cache
def _spaces() -> re.Pattern[str]:
    return re.compile(charset(members(SPACE)) + "+")


@cache
def _any(bit: int) -> re.Pattern[str]:
    return re.compile(charset(members(bit)))


def combine(first: str, second: str, pair: dict[str, str]) -> str | None:
    """The primary composite of two code points, if there is one."""
    found = pair.get(first + second)
    if found is not None:
        return found
    leading, vowel = ord(first) - L_BASE, ord(second) - V_BASE
    if 0 <= leading < L_COUNT and 0 <= vowel < V_COUNT:
        return chr(S_BASE + (leading * V_COUNT + vowel) * T_COUNT)
    syllable, tail = ord(first) - S_BASE, ord(second) - T_BASE
    if 0 <= syllable < S_COUNT and syllable % T_COUNT == 0 and 0 < tail < T_COUNT:
        return chr(S_BASE + syllable + tail)
    return None


def composed(text: str, ccc: dict[str, int], pair: dict[str, str]) -> str:
    """Canonical composition of a text in canonical order (The Unicode Standard, D117)."""
    out: list[str] = []
    starter = -1  # place in `out` of the last code point of class 0
    before = 0  # class of the last code point in `out`
    for char in text:
        own = ccc.get(char, 0)
        if starter >= 0 and (starter == len(out) - 1 or before < own):
            both = combine(out[starter], char, pair)
            if both is not None:
                out[starter] = both
                continue
        if own == 0:
            starter = len(out)
        out.append(char)
        before = own
    return "".join(out)


def form(text: str, compatibility: bool) -> str:
    """NFC of a text, or NFKC."""
    tables = form_tables(compatibility)
    if not tables.suspect.search(text):
        return text
    text = tables.decompose(text)
    text = tables.marks.sub(lambda run: "".join(sorted(run[0], key=tables.ccc.__getitem__)), text)
    return tables.cluster.sub(lambda cluster: composed(cluster[0], tables.ccc, tables.pair), text)


@cache
def _accents() -> re.Pattern[str]:
    return re.compile(charset(ACCENT_MARKS) + "+")


def without_accents(text: str) -> str:
    """Form D, the accents dropped, Form C. (The order of the other marks is Form C's work either way.)"""
    return form(_accents().sub("", form_tables(False).decompose(text)), False)


def letters(text: str, steps: int) -> str:
    """The steps up to and without white space: those that work on code points."""
    shaped = bool(steps & (NFC | NFKC))
    if shaped:
        text = form(text, bool(steps & NFKC))
    if steps & LOWER:
        text = folding()(text)
        if shaped:
            text = form(text, bool(steps & NFKC))
    if steps & ACCENTS and not text.isascii():
        text = without_accents(text)
    if steps & DIGITS:
        text = _any(DIGIT).sub("0", text)
    if steps & PUNCTUATION:
        text = _any(PUNCT).sub(" ", text)
    return text


def normalise_text(text: str, steps: int) -> str:
    """One document, as a Python string."""
    text = letters(text, steps)
    if steps & WHITESPACE:
        text = _spaces().sub(" ", text).strip(" ")
    elif steps & NOSPACE:
        text = _spaces().sub("", text)
    return text


def _ascii(data: bytes, steps: int, table: bytes) -> bytes:
    """One document of ASCII: no form changes it, and bytes.split() knows just the White_Space of ASCII."""
    data = data.translate(table)
    if steps & WHITESPACE:
        return b" ".join(data.split())
    if steps & NOSPACE:
        return b"".join(data.split())
    return data


def normalise(
    blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], steps: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Normalise n documents.

    blob     uint8[>= offsets[n]], UTF-8, lone surrogates as three bytes
    offsets  int64[n + 1], non-decreasing; offsets[0] may be above 0
    steps    set of the bits above
    returns  uint8[total + PAD] (the last PAD bytes are 0), int64[n + 1] from 0 to total

    Raises ValueError for unknown bits, and for two bits that exclude each other.
    """
    check_steps(steps)
    # The table is made of the same definition, one byte at a time.
    table = "".join(letters(chr(code), steps) for code in range(128)).encode("latin-1") + bytes(range(128, 256))
    parts = []
    for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        data = blob[low:high].tobytes()
        if data.isascii():
            parts.append(_ascii(data, steps, table))
        else:
            text = normalise_text(data.decode("utf-8", "surrogatepass"), steps)
            parts.append(text.encode("utf-8", "surrogatepass"))
    ends = np.zeros(len(parts) + 1, np.int64)
    ends[1:] = np.cumsum(np.array([len(part) for part in parts], np.int64))
    parts.append(bytes(PAD))
    return np.frombuffer(bytearray(b"".join(parts)), np.uint8), ends
