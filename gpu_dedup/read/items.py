"""Rows that come as lists of tokens: one text for each, in which every token is a word, and no two lists are one text.

Tokens are parted by one blank. So that nothing in a token parts it, White_Space and the backslash are written `\\20;`
(the code point in hexadecimal). An empty token is `\\;`. A string that looks like a whole number is `\\.` and itself:
it is another token than the number. From the text on there is no difference to other rows: its words are the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_dedup.batch import I64, Tape

WHITE_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_ODD = re.compile(rf"[\\{WHITE_SPACE}]")
_NUMBER = re.compile(r"-?[0-9]+")
_WRITTEN = re.compile(r"\\([0-9a-f]+);")
_KINDS = {bool: "true or false", type(None): "null", float: "not a whole number", list: "a list", dict: "an object"}


def written(token: str) -> str:
    """A token that is a string, as it stands in the text."""
    if not token:
        return "\\;"
    if _NUMBER.fullmatch(token):
        return "\\." + token
    return _ODD.sub(lambda found: f"\\{ord(found[0]):x};", token) if _ODD.search(token) else token


def text_of(tokens: Sequence[Any]) -> str:
    """The text of a list. Raises ValueError, with the reason, for what is neither a string nor a whole number."""
    parts = []
    for number, token in enumerate(tokens):
        if isinstance(token, str):
            parts.append(written(token))
        elif isinstance(token, int) and not isinstance(token, bool):
            parts.append(str(token))
        else:
            kind = _KINDS.get(type(token), f"a {type(token).__name__}")
            raise ValueError(f"item {number} is {kind}; items are strings or whole numbers")
    return " ".join(parts)


def shown_text(text: str) -> str:
    """The tokens of a text, joined by blanks, for people."""
    tokens = []
    for token in text.split(" ") if text else []:
        if token.startswith("\\.") or token == "\\;":
            token = token[2:]
        tokens.append(_WRITTEN.sub(lambda found: chr(int(found[1], 16)), token))
    return " ".join(tokens)


def count(tape: Tape) -> I64:
    """int64[n]: tokens of each text."""
    first = int(tape.offsets[0])
    blanks = np.flatnonzero(tape.blob[first : tape.offsets[-1]] == 0x20) + first
    inside = np.diff(np.searchsorted(blanks, tape.offsets))
    return np.asarray(inside + (np.diff(tape.offsets) > 0), np.int64)


def odd(tape: Tape) -> I64:
    """Numbers, ascending, of the tokens of a tape that `written` may change: these have to be looked at."""
    low, high = int(tape.offsets[0]), int(tape.offsets[-1])
    data = np.zeros(high - low + 2, np.uint8)
    data[:-2] = tape.blob[low:high]
    here, second, third = data[:-2], data[1:-1], data[2:]
    hits = (here == 0x20) | ((here >= 9) & (here <= 13)) | (here == 0x5C)
    hits |= (here == 0xC2) & ((second == 0x85) | (second == 0xA0))
    leads = np.flatnonzero(
        (here >= 0xE1) & (here <= 0xE3)
    )  # White_Space beyond: E1 9A 80, E2 80 .., E2 81 9F, E3 80 80
    b, c = second[leads], third[leads]
    white = (here[leads] == 0xE1) & (b == 0x9A) & (c == 0x80)
    white |= (here[leads] == 0xE2) & (b == 0x80) & ((c <= 0x8A) | (c == 0xA8) | (c == 0xA9) | (c == 0xAF))
    white |= (here[leads] == 0xE2) & (b == 0x81) & (c == 0x9F)
    white |= (here[leads] == 0xE3) & (b == 0x80) & (c == 0x80)
    hits[leads[white]] = True
    places = np.flatnonzero(hits) + low
    lengths = np.diff(tape.offsets)
    marked = np.zeros(len(tape), np.bool_)
    marked[np.searchsorted(tape.offsets, places, side="right") - 1] = True
    marked |= lengths == 0
    starts = np.minimum(tape.offsets[:-1], max(len(tape.blob) - 1, 0))
    if len(tape.blob):
        first = tape.blob[starts]
        marked |= ((first >= 0x30) & (first <= 0x39)) | (first == 0x2D)
    return np.flatnonzero(marked).astype(np.int64)
