"""JSON lines taken apart, the definition: lines are found here, every one of them is left to `json.loads` to judge.

    scan_lines(data, size)                        where the lines begin
    extract(data, size, fields, extra, want)      lines, texts and raw values of extra fields

A line ends at LF (0x0A) and nowhere else: U+2028, U+0085, form feeds and lone CRs belong to it. A line of nothing but
JSON white space is blank. What any other line means is defined by ``json.loads`` of its strictly decoded UTF-8, with at
most MAX_DEPTH nested containers; a faster backend may judge lines itself as long as it never differs, and gives ODD to
those that it would rather not judge.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# What a line is; equal to ROW_TEXT, ROW_BLANK, ROW_SKIPPED of gpu_dedup.batch and LINE_ODD of gpu_dedup.backend.
TEXT = 0
BLANK = 1
SKIPPED = 3
ODD = 4

# Containers that may be open at once, the record's own object included. json.loads recurses once per container and must
# stay under the interpreter's limit (1,000 frames on Python 3.10 and 3.11, the caller's own among them).
MAX_DEPTH = 500

PAD = 64  # spare bytes after `size` in data, and after the last text in the blob

_BLANKS = b" \t\r\n"


def check(data: npt.NDArray[np.uint8], size: int, fields: tuple[str, ...], extra: tuple[str, ...]) -> None:
    """Refuse arguments that would make a kernel read or write outside its arrays."""
    if not 0 <= size <= len(data) - PAD:
        raise ValueError(f"{len(data)} bytes cannot hold {size} bytes of lines and {PAD} spare ones")
    if not fields or len(set(fields)) != len(fields) or len(set(extra)) != len(extra):
        raise ValueError(f"fields {fields} and extra fields {extra} must name at least one field, and none twice")


def scan_lines(data: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.int64]:
    """Where lines begin.

    data     uint8[>= size + 64]
    returns  int64[n + 1]: line i is data[starts[i]:starts[i + 1]], its LF included; starts[n] = size

    Only the last line may lack its LF. No bytes, no line. Raises ValueError if the 64 spare bytes are missing.
    """
    check(data, size, ("text",), ())
    ends = np.flatnonzero(data[:size] == 10).astype(np.int64) + 1
    if size and (len(ends) == 0 or ends[-1] != size):
        ends = np.append(ends, np.int64(size))
    return np.concatenate([np.zeros(1, np.int64), ends])


def extract(
    data: npt.NDArray[np.uint8],
    size: int,
    fields: tuple[str, ...],
    extra: tuple[str, ...],
    want: npt.NDArray[np.bool_] | None,
) -> tuple[
    npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]
]:
    """Take JSON lines apart.

    data     uint8[>= size + 64]: whole lines, then 64 bytes of anything
    fields   names whose string values, joined by LF in this order, are a line's text; null or absent ones are left out
             where another is there. A name is a key of the record, or else a path into objects, split at its dots
    extra    names whose raw values are wanted
    want     bool[n] or None for all; other lines are SKIPPED without a look
    returns  starts   int64[n + 1], as scan_lines
             status   uint8[n]: TEXT, BLANK, SKIPPED or ODD
             blob     uint8[size + 64], UTF-8 with lone surrogates as three bytes
             offsets  int64[n + 1] into blob from 0; only TEXT lines have a text
             spans    int64[n, len(extra), 2]: first byte of the raw value in data and the byte after it;
                      -1, -1 where there is no such field or the line is not TEXT

    Here no line is TEXT. Raises ValueError if the spare bytes are missing, or a name is given twice.
    """
    check(data, size, fields, extra)
    starts = scan_lines(data, size)
    n = len(starts) - 1
    raw = data[:size].tobytes()
    status = np.full(n, ODD, np.uint8)
    for i in range(n):
        if want is not None and not want[i]:
            status[i] = SKIPPED
        elif not raw[starts[i] : starts[i + 1]].strip(_BLANKS):
            status[i] = BLANK
    blob = np.zeros(size + PAD, np.uint8)
    return starts, status, blob, np.zeros(n + 1, np.int64), np.full((n, len(extra), 2), -1, np.int64)
