"""Document keys: the values of a field as texts that are equal where the values are.

    text      as it is, code point by code point; nothing is normalised
    number    by its value: 1 and 1.0 are one key, and the text "1" is another
    others    dates, times, UUIDs and binary values, which only files of columns have, by their kind and text

null, a missing field, NaN and the empty text are no key. true and false, lists and objects cannot be one: two values
would part a corpus in two, and lists have no one order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, MISSING, Tape, TypedText

NO_KEY = -1  # length of the key of a row without one
_REFUSED: dict[type, str] = {bool: "true or false", list: "a list", tuple: "a list", dict: "an object"}
_OTHER = b"\0"  # begins what is no plain text; a plain text that begins so gets another one in front


def keys_of(values: Sequence[Any]) -> tuple[Tape, I64, list[tuple[int, str]]]:
    """Texts of n keys, the bytes of each (NO_KEY where a row has none), and the places of values that can be no key
    with what they are, in words."""
    parts: list[bytes] = []
    length = np.full(len(values), NO_KEY, np.int64)
    refused: list[tuple[int, str]] = []
    for place, value in enumerate(values):
        part = b""
        if type(value) is str:
            part = value.encode("utf-8", "surrogatepass")
            if part[:1] == _OTHER:
                part = _OTHER + part
        elif value is not None and value is not MISSING:
            if type(value) in _REFUSED:
                refused.append((place, _REFUSED[type(value)]))
            else:
                part = _other(value)
        parts.append(part)
        if part:
            length[place] = len(part)
    return Tape.of(parts), length, refused


def _other(value: Any) -> bytes:
    """A value that is no plain text; empty for NaN."""
    if isinstance(value, TypedText):
        kind, text = value.kind, str(value)
    elif isinstance(value, (int, float, Decimal)):
        if math.isnan(value):
            return b""
        kind, text = "number", _number(value)
    else:
        text = value.hex() if isinstance(value, bytes) else str(value)
        kind = type(value).__name__
    return b"\0".join([_OTHER + kind.encode(), text.encode("utf-8", "surrogatepass")])


def _number(value: int | float | Decimal) -> str:
    """Equal for equal numbers: whole ones by their digits, others as the fraction that they are."""
    if not math.isfinite(value):
        return str(float(value))
    over, under = value.as_integer_ratio()
    return f"{over:x}" if under == 1 else f"{over:x}/{under:x}"  # hexadecimal: no limit on digits
