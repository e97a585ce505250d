"""JSON lines: chunks of whole lines, and what each line means.

The backend's fast road takes lines apart; what it would rather not judge goes to `json.loads`, which is the definition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from gpu_dedup.backend import LINE_ODD, Backend
from gpu_dedup.batch import I64, MISSING, ROW_BAD, ROW_TEXT, U8, Bool, Rows
from gpu_dedup.errors import InputError, InternalError, shown
from gpu_dedup.read.chunks import PAD, Chunk, ChunkRef, Reader, quoted, replaced
from gpu_dedup.read.discover import Source
from gpu_dedup.read.streams import STREAMS, DamagedError, RawFile, Stream

BOM = b"\xef\xbb\xbf"
MAX_LINE = 2**31 - 1  # bytes of one line: beyond it a single text would no longer fit Arrow's and the kernels' items
# As in the fast road (kernels/jsonl_ref.py): json.loads recurses, and how deep it may differs between interpreters.
MAX_DEPTH = 500
# What a file is that begins so, whatever its name says (a page header or a footer follows Parquet's magic), and what to
# do about it. Longest first where one begins like another. No line of JSON begins so.
_FOREIGN = (
    (b"\x1f\x8b", "gzip data", "name it .jsonl.gz"),
    (b"\x28\xb5\x2f\xfd", "zstd data", "name it .jsonl.zst"),
    (b"PAR1\x15", "a Parquet file", "name it .parquet"),
    *((b"BZh%d1AY&SY" % level, "bzip2 data", "unpack it") for level in range(1, 10)),
    (b"\xfd7zXZ\x00", "xz data", "unpack it"),
    (b"PK\x03\x04", "a zip archive", "unpack it"),
    (b"\xff\xfe\x00\x00", "UTF-32 text", "convert it to UTF-8 (iconv -f UTF-32 -t UTF-8)"),
    (b"\xff\xfe", "UTF-16 text", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
    (b"\xfe\xff", "UTF-16 text", "convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"),
)
LF_BLOCK = 1 << 17  # bytes
LONGEST_MAGIC = max(len(magic) for magic, _, _ in _FOREIGN)
_CR_BETWEEN = re.compile(rb"\}[ \t]*\r[ \t\r]*\{")


class _LongInt(int):
    """An integer of more digits than int() reads and str() writes (sys.set_int_max_str_digits); exact, printable."""

    def __repr__(self) -> str:
        return str(Decimal(int(self)))

    __str__ = __repr__


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        return _LongInt(Decimal(digits))


def loads(text: str) -> Any:
    """json.loads, integers of any length included."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_whole)


# The closing quote is optional, so that a string without an end is passed over once and not tried again at each quote.
_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{\]}]', re.DOTALL)


def _too_deep(line: bytes) -> bool:
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(line):
        first = line[match.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


_KINDS = {str: "a string", bool: "true or false", type(None): "null", list: "a list", dict: "an object"}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def lookup(record: dict[str, Any], name: str) -> Any:
    """The field of this name, else what lies at the end of the dotted path; MISSING where neither is there."""
    if name in record:
        return record[name]
    if "." not in name:
        return MISSING
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return value


def _complaint(error: json.JSONDecodeError) -> str:
    """What json.loads says, in the words of Python 3.10 to 3.12 (3.13 has its own for a comma before a bracket)."""
    what, at = error.msg.removesuffix(" at").rstrip(": "), error.pos
    if what.startswith("Illegal trailing comma"):
        what = "Expecting property name enclosed in double quotes" if what.endswith("object") else "Expecting value"
        at += 1
        while error.doc[at : at + 1] in (" ", "\t", "\r"):
            at += 1
    return f"{what} at column {at + 1}"


def judge(line: bytes, fields: Sequence[str]) -> tuple[dict[str, Any] | None, bytes, str]:
    """What a line (without its LF) is, by json.loads: (record, text, '') or (None, b'', why the row is bad)."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, b"", f"not valid UTF-8 at byte {error.start + 1}"
    if _too_deep(line):
        return None, b"", f"nested more than {MAX_DEPTH} levels deep"
    try:
        record = loads(text)
    except json.JSONDecodeError as error:
        return None, b"", f"not valid JSON: {_complaint(error)}"
    if not isinstance(record, dict):
        return None, b"", f"not an object but {_kind(record)}"
    parts = []
    for name in fields:
        value = lookup(record, name)
        if isinstance(value, str):
            parts.append(value.encode("utf-8", "surrogatepass"))
        elif value is not None and value is not MISSING:
            return None, b"", f'field "{quoted([name])}" is {_kind(value)}, not a string'
    if not parts:
        here = "the object is empty"
        if record and any(lookup(record, name) is not MISSING for name in fields):
            here = f"fields here: {quoted(list(record))}"
        elif record:
            here = f"fields here: {quoted(list(record))}; name the right one with --text-field"
        if len(fields) > 1:
            return None, b"", f"no text in any of the fields {quoted(fields)} ({here})"
        if lookup(record, fields[0]) is None:
            return None, b"", f'field "{quoted(fields)}" is null'
        return None, b"", f'no field "{quoted(fields)}" ({here})'
    return record, b"\n".join(parts), ""


def kind_of_file(line: bytes, first: bool, reason: str) -> str:
    """The reason why a line is bad, and, where it shows, that the whole file is not one record a line.

    first  whether it is the file's first line
    """
    if _CR_BETWEEN.search(line):
        return f"{reason} (records are parted by CR alone here: convert the line ends to LF, tr '\\r' '\\n')"
    if not first:
        return reason
    start = line.strip(b" \t\r")
    array = start == b"[" or (start.startswith(b"[") and start[1:].lstrip(b" \t\r").startswith(b"{"))
    if array:
        return f"{reason} (one record a line is expected; this looks like a JSON array: convert it (jq -c .[]))"
    if start == b"{":
        return f"{reason} (one record a line is expected; this looks like JSON over many lines: convert it (jq -c .))"
    return reason


class JsonlChunk(Chunk):
    """Whole lines of a file."""

    def __init__(self, file_index: int, nbytes: int, ref: ChunkRef, data: U8, bom: bytes) -> None:
        super().__init__(file_index, nbytes, ref)
        self.data = data
        self.size = ref.size
        self.bom = bom
        self._starts: I64 | None = None

    def lines(self) -> I64:
        if self._starts is None:
            starts = np.empty(self.ref.rows + 1, np.int64)
            starts[0] = 0
            ends = np.flatnonzero(self.data[: self.size] == 10)
            starts[1 : len(ends) + 1] = ends + 1
            starts[-1] = self.size
            self._starts = starts
        return self._starts

    def parse(
        self, backend: Backend, fields: Sequence[str], extra: Sequence[str] = (), want: Bool | None = None
    ) -> Rows:
        taken = backend.extract_jsonl(self.data, self.size, fields, extra, want)
        if len(taken.status) != self.ref.rows:
            raise InternalError(f"{len(taken.status)} rows where {self.ref.rows} lines were counted")
        self._starts = starts = taken.starts
        status = taken.status
        values = self._values(taken.spans, status, extra)
        texts: dict[int, bytes] = {}
        errors: list[tuple[int, str]] = []
        for i in np.flatnonzero(status == LINE_ODD).tolist():
            line = self.data[starts[i] : starts[i + 1]].tobytes().removesuffix(b"\n")
            record, text, reason = judge(line, fields)
            if record is None:
                status[i] = ROW_BAD
                errors.append((self.first_row + i, kind_of_file(line, self.first_row + i == 0, reason)))
                continue
            status[i] = ROW_TEXT
            texts[i] = text
            for name in extra:
                values[name][i] = lookup(record, name)
        return Rows(self.first_row, replaced(taken.tape, texts), status, errors, values)

    def _values(self, spans: I64, status: U8, extra: Sequence[str]) -> dict[str, list[Any]]:
        """Python values of the raw values that the fast road has found (and checked: each is a whole JSON value)."""
        values: dict[str, list[Any]] = {}
        view = self.data.data
        for x, name in enumerate(extra):
            found = np.flatnonzero(spans[:, x, 0] >= 0)
            column: list[Any] = [MISSING] * len(status)
            if len(found):
                # One call for all of them: a call costs more than a value.
                first, end = spans[found, x, 0].tolist(), spans[found, x, 1].tolist()
                raw = b",".join([view[a:b] for a, b in zip(first, end, strict=True)])
                for i, value in zip(found.tolist(), loads(f"[{raw.decode()}]"), strict=True):
                    column[i] = value
            values[name] = column
        return values


class JsonlReader(Reader):
    """A JSONL file, compressed or not, in chunks of whole lines. In memory: a chunk, and the line that it would cut."""

    def __init__(self, source: Source, batch_bytes: int, file_index: int) -> None:
        self.source = source
        self.file_index = file_index
        self._batch = max(batch_bytes, LONGEST_MAGIC)
        self._codec, self._stream_of = STREAMS[source.compression]
        self._file = RawFile(source)
        self._more: list[RawFile] = []  # opened by read_refs
        self._started = self._ended = False

    @property
    def bytes_read(self) -> int:
        return sum(file.bytes_read for file in (self._file, *self._more))

    def __iter__(self) -> Iterator[JsonlChunk]:
        if self._started:
            raise InternalError("a reader is iterated once")
        self._started = True
        stream = self._stream_of(self._file)
        rows = offset = seen = 0
        bom = b""
        data = np.empty(self._batch + PAD, np.uint8)
        filled = 0
        searched = 0  # no line feed before
        first = True
        while True:
            capacity = len(data) - PAD
            while filled < capacity:
                try:
                    got = stream.readinto(data.data[filled:capacity])
                except DamagedError as error:
                    raise self._damaged(error, rows + int(np.count_nonzero(data[:filled] == 10))) from error
                if not got:
                    self._ended = True
                    break
                filled += got
            if first:
                first = False
                self._refuse_foreign(data[: min(filled, LONGEST_MAGIC)].tobytes())
                if data[: min(filled, len(BOM))].tobytes() == BOM:
                    bom = BOM
                    data = np.concatenate([data[len(BOM) :], np.zeros(len(BOM), np.uint8)])
                    filled -= len(BOM)
                    offset = len(BOM)
            cut = filled if self._ended else _last_line_end(data, searched, filled)
            if not cut and not self._ended:
                searched = filled
                if filled > MAX_LINE:
                    raise InputError(
                        f"line {rows + 1} is longer than {MAX_LINE} bytes",
                        "is the file made of lines? Split the record, or pass --on-bad-file skip",
                        place=shown(self.source.path),
                    )
                if filled == capacity:
                    grown = np.empty(2 * capacity + PAD, np.uint8)
                    grown[:filled] = data[:filled]
                    data = grown
                continue
            if cut or (bom and self._ended and not rows):
                tail = filled - cut
                following = np.empty(max(self._batch, 2 * tail) + PAD, np.uint8)
                following[:tail] = data[cut:filled]
                data[cut : cut + PAD] = 0
                count = _count_lf(data, cut) + bool(cut and data[cut - 1] != 10)
                nbytes = self._file.bytes_read - seen
                seen += nbytes
                yield JsonlChunk(self.file_index, nbytes, ChunkRef(rows, count, 0, offset, cut), data, bom)
                bom = b""
                rows += count
                offset += cut
                data, filled, searched = following, tail, tail
            if self._ended:
                return

    def _refuse_foreign(self, head: bytes) -> None:
        for magic, what, remedy in _FOREIGN:
            if head.startswith(magic):
                if self._codec:
                    what += f" inside {self._codec.strip()}"
                    remedy = remedy if remedy.startswith("convert") else "unpack it once"
                raise InputError(
                    f"not JSON lines: this looks like {what}",
                    f"{remedy}, or pass --on-bad-file skip",
                    place=shown(self.source.path),
                )

    def _damaged(self, why: DamagedError, rows: int) -> InputError:
        return InputError(
            f"truncated or corrupt {self._codec}data after {rows} rows ({why})",
            "get a whole copy of the file, or pass --on-bad-file skip",
            place=shown(self.source.path),
        )

    def read_refs(self, refs: Sequence[ChunkRef]) -> Iterator[JsonlChunk]:
        if not refs:
            return
        file = RawFile(self.source)
        self._more.append(file)
        stream = self._stream_of(file) if self.source.compression else None
        at = seen = 0
        scrap = memoryview(bytearray(self._batch))
        for ref in refs:
            if ref.offset < at:
                raise InternalError("chunks are read again in the order of the file")
            data = np.empty(ref.size + PAD, np.uint8)
            data[ref.size :] = 0
            if stream is None:
                file.read_at(data.data[: ref.size], ref.offset)
            else:
                while at < ref.offset:
                    at += self._some(stream, scrap[: ref.offset - at], ref)
                filled = 0
                while filled < ref.size:
                    filled += self._some(stream, data.data[filled : ref.size], ref)
            at = ref.offset + ref.size
            nbytes = file.bytes_read - seen
            seen += nbytes
            if _count_lf(data, ref.size) + bool(ref.size and data[ref.size - 1] != 10) != ref.rows:
                file.check()
                raise InternalError(f"{self.source.path}: other lines than before at byte {ref.offset}")
            yield JsonlChunk(self.file_index, nbytes, ref, data, b"")

    def _some(self, stream: Stream, view: memoryview, ref: ChunkRef) -> int:
        try:
            got = stream.readinto(view)
        except DamagedError as error:
            raise self._damaged(error, ref.first_row) from error
        if not got:
            raise InternalError(f"{self.source.path}: it ends before byte {ref.offset + ref.size}")
        return got

    def content_hash(self) -> str:
        if not self._ended:
            raise InternalError("the hash of a JSONL file is known when all of it has been read")
        return self._file.content_hash()

    def close(self) -> None:
        for file in (self._file, *self._more):
            file.close()


def _count_lf(data: U8, size: int) -> int:
    """Line feeds in data[:size], counted in blocks that stay in the cache."""
    is_lf = np.empty(min(size, LF_BLOCK), np.bool_)
    count = 0
    for start in range(0, size, LF_BLOCK):
        block = data[start : min(size, start + LF_BLOCK)]
        count += int(np.count_nonzero(np.equal(block, 10, out=is_lf[: len(block)])))
    return count


def _last_line_end(data: U8, start: int, end: int) -> int:
    """Place after the last LF in data[start:end]; 0 if there is none."""
    while end > start:
        begin = max(start, end - (1 << 16))
        hits = np.flatnonzero(data[begin:end] == 10)
        if len(hits):
            return begin + int(hits[-1]) + 1
        end = begin
    return 0
