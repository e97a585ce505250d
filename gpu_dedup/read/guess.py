"""The field of the text, where nobody named it: found in the first records, taken only if one alone can be meant.

    1  a field `text` with a string in any of these records: that is the one, and nobody needs to be told
    2  exactly one of the USUAL names with a string in half of them or more
    3  exactly one field of long texts: strings in half of them or more, their median LONG code points or more

Else none; reading for `text` then fails with the names of the fields that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import NamedTuple

from gpu_dedup.errors import InputError
from gpu_dedup.read.discover import Source
from gpu_dedup.read.files import open_source

TEXT = "text"
# What corpora call it, or did; compared as it is written.
USUAL = (
    "content", "raw_content", "contents", "body", "article", "document", "page_content", "clean_text", "cleaned_text",
    "plain_text", "full_text", "raw_text", "text_content", "maintext", "markdown", "code", "story", "passage",
)  # fmt: skip
RECORDS = 100  # that are looked at
LONG = 100  # code points
LOOK_BYTES = 1 << 16  # of lines; a longer line is read whole
FILES = 16  # that are opened in search of a record


class Guess(NamedTuple):
    """A field, and why it was taken."""

    field: str
    why: str


def first_fields(sources: Sequence[Source]) -> list[str]:
    """Names of the fields in the first records there are, for a message."""
    for records in _first_records(sources):
        return list(dict.fromkeys(name for record in records for name in record))
    return []


def _first_records(sources: Sequence[Source]) -> Iterator[list[dict[str, int | None]]]:
    """The first records of each file that has any."""
    for source in sources[:FILES]:
        try:
            with open_source(source, LOOK_BYTES) as reader:
                chunk = next(iter(reader), None)
                records = [] if chunk is None else chunk.records(RECORDS)
        except InputError:
            continue
        if records:
            yield records


def guess_text_field(sources: Sequence[Source]) -> Guess | None:
    """The field of the text, by the first records of the first file that has any; None for `text`, or where no single
    field can be meant. Damaged files are for the reading itself to complain about."""
    for records in _first_records(sources):
        return choose(records)
    return None


def choose(records: Sequence[dict[str, int | None]]) -> Guess | None:
    """The same, by records: names of their fields, with the code points of strings and None for other values."""
    lengths: dict[str, list[int]] = {}
    for record in records:
        for name, length in record.items():
            if length is not None:
                lengths.setdefault(name, []).append(length)
    if TEXT in lengths:
        return None
    often = {name: some for name, some in lengths.items() if 2 * len(some) >= len(records)}
    usual = [name for name in often if name in USUAL]
    if usual:
        return Guess(usual[0], "the only usual name for it here") if len(usual) == 1 else None
    long = [name for name, some in often.items() if median_low(some) >= LONG]
    return Guess(long[0], "the only field of long texts here") if len(long) == 1 else None
