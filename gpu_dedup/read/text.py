"""Plain text: a document for each file, or for each line. There are no fields; the text is all there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_dedup.backend import Backend
from gpu_dedup.batch import I64, MISSING, ROW_BAD, ROW_SKIPPED, ROW_TEXT, U8, Bool, Rows, Tape
from gpu_dedup.read.chunks import PAD, ChunkRef, replaced, why_not_utf8
from gpu_dedup.read.lines import LinesChunk, RecordReader


class TextChunk(LinesChunk):
    """Rows whose bytes are their text: lines without their ends, or the one document of a file as it is.

    An empty line is an empty text, and as such a row like any other: without it, the others would move together.
    """

    def __init__(self, file_index: int, nbytes: int, ref: ChunkRef, data: U8, bom: bytes, whole: bool) -> None:
        super().__init__(file_index, nbytes, ref, data, bom)
        self._whole = whole
        if whole:
            self._starts = np.array([0, self.size], np.int64)

    def parse(
        self, backend: Backend, fields: Sequence[str], extra: Sequence[str] = (), want: Bool | None = None
    ) -> Rows:
        n = self.ref.rows
        tape = Tape(self.data, self.lines()) if self._whole else self._without_ends()
        wanted = np.ones(n, np.bool_) if want is None else want
        good = wanted & backend.valid_utf8(tape)
        status = np.where(good, ROW_TEXT, np.where(wanted, ROW_BAD, ROW_SKIPPED)).astype(np.uint8)
        errors = [(self.first_row + i, why_not_utf8(tape[i])) for i in np.flatnonzero(status == ROW_BAD).tolist()]
        empty = np.flatnonzero(~good & (np.diff(tape.offsets) > 0))
        tape = replaced(tape, dict.fromkeys(empty.tolist(), b""))
        return Rows(self.first_row, tape, status, errors, {name: [MISSING] * n for name in extra})

    def _without_ends(self) -> Tape:
        starts = self.lines()
        data = self.data[: self.size]
        ends: I64 = starts[1:]
        last = ends - 1
        feed = data[last] == 10
        before = np.maximum(last - 1, starts[:-1])
        both = feed & (last > starts[:-1]) & (data[before] == 13)
        stays = np.ones(self.size, np.bool_)
        stays[last[feed]] = False
        stays[before[both]] = False
        offsets = np.zeros(len(starts), np.int64)
        np.cumsum(np.diff(starts) - feed - both, out=offsets[1:])
        blob = np.zeros(int(offsets[-1]) + PAD, np.uint8)
        blob[: offsets[-1]] = data[stays]
        return Tape(blob, offsets)


class LineReader(RecordReader):
    """A text file, a document for each line."""

    what = "plain text"
    ending = ".txt"

    def chunk(self, nbytes: int, ref: ChunkRef, data: U8, bom: bytes) -> TextChunk:
        return TextChunk(self.file_index, nbytes, ref, data, bom, whole=False)


class DocumentReader(RecordReader):
    """A text file that is one document, in one chunk."""

    what = "plain text"
    ending = ".txt"
    unit = "document"
    by_line = False

    def cut(self, data: U8, searched: int, filled: int, ended: bool) -> int:
        return filled if ended else 0

    def count(self, data: U8, size: int) -> int:
        return 1

    def chunk(self, nbytes: int, ref: ChunkRef, data: U8, bom: bytes) -> TextChunk:
        return TextChunk(self.file_index, nbytes, ref, data, bom, whole=True)
