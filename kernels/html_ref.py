"""The text of HTML: tags out, character references in. The definition, plain Python. Text that is no HTML passes whole.

A `<` opens markup where one of these follows it and the markup ends; else it is an ordinary character:

    <!--                a comment, up to the first `-->` that begins at the third byte of it or later
    < and A-Z a-z / ! ? a tag, up to the first `>` that is not in the quoted value of an attribute. A quote opens such
                        a value only straight after a `=` (white space between them counts for nothing), as in HTML: an
                        apostrophe elsewhere does not swallow text
    <script, <style     (any case; white space, `/` or `>` behind the name) a tag, and with it all up to and with the
                        first `</script` or `</style` (the same behind the name) and the next `>`. Where there is none,
                        the tag alone: text that only speaks of <script> is not cut off

Each becomes one blank (U+0020). The rest is searched for references, once, so that what comes of one is no markup and
no reference:

    &name;              the names of HTML 5
    &name               the 106 names that may stand without `;` (amp, lt, copy, ...): the longest that the text begins
                        with, also before further letters: `&notit;` is `¬it;`
    &#N &#xN            (`;` or not) a code point; 0x80 to 0x9F as windows-1252 has them. 0, surrogates and what is
                        above U+10FFFF become U+FFFD. Other control codes and noncharacters become nothing

That is what Python's html.unescape makes of them. White space is U+0009, 000A, 000C, 000D and 0020. Work is on bytes:
no byte of a longer code point is one of those named here.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from gpu_dedup.kernels.html_tables import NOTHING, REPLACEMENT, names, numbers

PAD = 64  # spare bytes after the texts

_TAG = re.compile(rb"""<[A-Za-z/!?](?:[^=>]|=[\t\n\f\r ]*(?:"[^"]*"|'[^']*'|(?![\t\n\f\r "'])))*>""")
_RAW = re.compile(rb"<(script|style)[\t\n\f\r />]", re.IGNORECASE)
_NUMBER = re.compile(rb"&#(?:([0-9]+)|[xX]([0-9A-Fa-f]+));?")
_NAME = re.compile(rb"&([A-Za-z0-9]+;?)")
LONGEST = 32  # bytes of a name, its `;` included


def markup_end(data: bytes, at: int) -> int:
    """Where the markup that data[at] opens ends; `at` itself if it opens none."""
    if data.startswith(b"<!--", at):
        end = data.find(b"-->", at + 2)
        return end + 3 if end >= 0 else at
    tag = _TAG.match(data, at)
    if tag is None:
        return at
    raw = _RAW.match(data, at)
    if raw is not None:
        closing = re.compile(rb"</" + raw[1] + rb"[\t\n\f\r />]", re.IGNORECASE).search(data, tag.end())
        end = data.find(b">", closing.end() - 1) if closing else -1
        if end >= 0:
            return end + 1
    return tag.end()


def code_of(number: int) -> int:
    """The code point that a number stands for, or NOTHING."""
    if number < 0xA0:
        return int(numbers()[number])
    if 0xD800 <= number <= 0xDFFF or number > 0x10FFFF:
        return REPLACEMENT
    if 0xFDD0 <= number <= 0xFDEF or number & 0xFFFE == 0xFFFE:
        return NOTHING
    return number


def reference(data: bytes, at: int) -> tuple[bytes, int]:
    """What the reference that begins at data[at] becomes, and where it ends; `at` itself if there is none."""
    number = _NUMBER.match(data, at)
    if number is not None:
        digits = (number[1] or number[2]).lstrip(b"0")[:12]  # more digits than that are above U+10FFFF, too
        code = code_of(int(digits or b"0", 10 if number[1] else 16))
        return (b"" if code == NOTHING else chr(code).encode()), number.end()
    name = _NAME.match(data, at)
    if name is not None:
        table = names()
        if name[1] in table:
            return table[name[1]], name.end()
        for size in range(min(len(name[1]), LONGEST), 1, -1):
            if name[1][:size] in table:
                return table[name[1][:size]], at + 1 + size
    return b"", at


def plain_text(data: bytes) -> bytes:
    """One document."""
    out = []
    done = at = 0
    for found in re.finditer(rb"[<&]", data):
        at = found.start()
        if at < done:
            continue
        if data[at] == 0x3C:
            end, becomes = markup_end(data, at), b" "
        else:
            becomes, end = reference(data, at)
        if end > at:
            out += [data[done:at], becomes]
            done = end
    return b"".join([*out, data[done:]])


def plain(
    blob: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The texts of n HTML documents.

    blob     uint8[>= offsets[n]], UTF-8, lone surrogates as three bytes
    offsets  int64[n + 1], non-decreasing; offsets[0] may be above 0
    returns  uint8[>= the last offset], int64[n + 1]: the same arrays where no text holds `<` or `&`
    """
    low, high = int(offsets[0]), int(offsets[-1])
    if not np.any((blob[low:high] == 0x3C) | (blob[low:high] == 0x26)):
        return blob, offsets
    parts = [plain_text(blob[a:b].tobytes()) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    ends = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=ends[1:])
    return np.frombuffer(bytearray(b"".join(parts) + bytes(PAD)), np.uint8), ends
