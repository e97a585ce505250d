"""Surviving lines to standard output, one file after the other as one stream."""

from __future__ import annotations

import errno
import os
from types import TracebackType

from gpu_dedup.errors import OutputError
from gpu_dedup.write.files import write_pieces

PLACE = "standard output"


class LineStream:
    """The lines of several files as one. Never compressed; a line without an end gets one before the next file.

    Raises OutputError where the descriptor takes no more, also if whoever reads it has gone away.
    """

    compression = ""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.bytes_written = 0
        self._last = b"\n"
        self._at_start = True  # of a file

    def next_file(self) -> LineStream:
        """The lines that come now are of another file."""
        self._at_start = True
        return self

    def write_bytes(self, data: bytes) -> None:
        """Add what stands before the first line. Only in front of everything is it what it was."""
        if not self.bytes_written:
            self.write([memoryview(data)])

    def write(self, encoded: bytes | list[memoryview]) -> None:
        """Add lines, as `encode` gives them without compression."""
        pieces = [memoryview(encoded)] if isinstance(encoded, bytes) else [piece for piece in encoded if len(piece)]
        if not pieces:
            return
        if self._at_start and self._last not in b"\r\n":
            pieces.insert(0, memoryview(b"\n"))
        self._at_start = False
        try:
            write_pieces(self._descriptor, pieces, PLACE, "another place to send it to")
        except OutputError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EPIPE:
                raise OutputError(
                    f"{PLACE}: its reader has gone away before the end; nothing else was written"
                ) from None
            raise
        self.bytes_written += sum(map(len, pieces))
        self._last = bytes(pieces[-1][-1:])

    def __enter__(self) -> LineStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def standard_output() -> LineStream:
    """The process's own standard output. Raises OutputError if it is closed."""
    try:
        os.fstat(1)
    except OSError as error:
        raise OutputError(f"{PLACE}: is closed ({error.strerror}); open it, or name a folder with -o DIR") from None
    return LineStream(1)
