"""The first pass across starts: its batches become parts in the work folder, and parts become batches again.

A part holds the rows of whole batches, texts left out: all that `Survey` knows of them, and their sketches. Band keys
are not kept, they follow from the sketches; so a part is as good for other bands and another threshold.
"""

from __future__ import annotations

import datetime
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from decimal import Decimal
from typing import Any

import numpy as np

from gpu_dedup.batch import MISSING, U8
from gpu_dedup.checkpoint import Checkpoint, PartFile, Stretch
from gpu_dedup.cluster import Gone
from gpu_dedup.collide import Candidates, CollideStats, HeavyBucket
from gpu_dedup.read import ChunkRef, Source

HELD = 48 << 20  # bytes of sketches that wait to be written; of short texts they come sooner than a checkpoint's input

# What a keeper's value may be made of, beside Python's own plain values. Nothing else is made of the bytes of a part,
# whoever wrote them.
_KNOWN = {
    ("decimal", "Decimal"): Decimal,
    ("datetime", "date"): datetime.date,
    ("datetime", "time"): datetime.time,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
}


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return "MISSING" if obj is MISSING else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        if pid == "MISSING":
            return MISSING
        raise pickle.UnpicklingError(f"unknown value {pid!r}")

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no value of a field") from None


def pack(values: Sequence[Any]) -> U8 | None:
    """Values of a field as bytes; None where one of them is of a type that could not be read back."""
    out = io.BytesIO()
    _Pickler(out, protocol=4).dump(list(values))
    data = np.frombuffer(out.getbuffer(), np.uint8)
    try:
        unpack(data)
    except pickle.UnpicklingError:
        return None
    return data


def unpack(data: U8) -> list[Any]:
    found = _Unpickler(io.BytesIO(data.tobytes())).load()
    if not isinstance(found, list):
        raise pickle.UnpicklingError("no list of values")
    return found


@dataclass(frozen=True)
class Part:
    """Rows of whole batches, one array for each thing that is known of them.

    status, digest, length, chars   as in Survey, for n rows
    key_digest, key_length   likewise; None without a key field
    select      int64[s], rows that were sketched, ascending
    signatures  [s, slots], prints [s]; units, kept int64[s]. None for methods without sketches of that kind
    refs        int64[c, 5], the chunks that the rows came in
    values      the keeper's field of each row, or None
    errors      (row in the part, row in the file, reason) of bad rows
    """

    status: Any
    digest: Any
    length: Any
    chars: Any
    key_digest: Any
    key_length: Any
    select: Any
    signatures: Any
    prints: Any
    units: Any
    kept: Any
    refs: Any
    values: list[Any] | None
    errors: list[tuple[int, int, str]]

    @classmethod
    def read(cls, part: PartFile, field_name: str | None) -> Part:
        arrays = {name: part.read(name) if name in part else None for name in ARRAYS}
        values = None
        if field_name is not None and part.facts.get("field") == field_name:
            values = unpack(part.read("values"))
        return cls(**arrays, values=values, errors=[tuple(error) for error in part.facts["errors"]])


ARRAYS = (
    "status", "digest", "length", "chars", "key_digest", "key_length", "select", "signatures", "prints", "units",
    "kept", "refs",
)  # fmt: skip


def save_decision(kept: Checkpoint, key: dict[str, Any], decision: Gone, found: Candidates) -> None:
    """Keep who goes, and what the search saw, for a start that only has to write."""
    every = {f.name: getattr(decision, f.name) for f in fields(decision) if f.name != "stats"}
    arrays = {name: array for name, array in every.items() if array is not None}
    facts = {"stats": decision.stats, "search": asdict(found.stats), "candidates": len(found)}
    kept.save_decision(key, facts, arrays)


def load_decision(kept: Checkpoint, key: dict[str, Any]) -> tuple[Gone, Candidates] | None:
    """What `save_decision` kept under this key."""
    known = kept.load_decision(key)
    if known is None:
        return None
    facts, arrays = known
    search = dict(facts["search"])
    search["heavy"] = tuple(HeavyBucket(one["band"], one["size"], tuple(one["members"])) for one in search["heavy"])
    search["largest"], search["histogram"] = tuple(search["largest"]), tuple(search["histogram"])
    candidates = Candidates.counted(facts["candidates"], CollideStats(**search))
    return Gone(**arrays, stats=facts["stats"]), candidates


class Resume:
    """What earlier starts have left of the first pass, file by file. Not safe between threads.

    slots       of a sketch, 0 without
    prefix      the first slots of a larger sketch are a sketch (MinHash)
    field_name  that the keeper asks for
    """

    def __init__(
        self, checkpoint: Checkpoint, key: dict[str, Any], sources: Sequence[Source], slots: int, prefix: bool,
        field_name: str | None,
    ) -> None:  # fmt: skip
        self._field_name = field_name
        self._batch_bytes = checkpoint.batch_bytes
        self._files: dict[str, list[SavedRows]] = {}
        self._last: tuple[str, Part] | None = None
        known = {source.path: source for source in sources}
        for part, stretches in checkpoint.parts(key, slots, not prefix):
            found = 0
            for stretch in stretches:
                source = known.get(stretch.file)
                if source is not None and (source.size, source.mtime_ns) == (stretch.size, stretch.mtime_ns):
                    self._files.setdefault(stretch.file, []).append(SavedRows(part, stretch))
                    found += 1
            checkpoint.used += found > 0

    def of(self, source: Source) -> tuple[list[SavedRows], bool]:
        """What there is of a file, by first row, and whether that is all of it."""
        found = sorted(self._files.get(source.path, []), key=lambda saved: (saved.first, saved.rows))
        at = 0
        for saved in found:
            if saved.first != at:
                break
            at += saved.rows
        else:
            if found and any(saved.stretch.ended for saved in found):
                return found, True
        # Chunks of another size begin elsewhere: whether one of them is in a part could not be said.
        return [saved for saved in found if saved.rows and saved.part.facts["batch_bytes"] == self._batch_bytes], False

    def ended(self, source: Source) -> bool:
        """Whether a part has the end of the file."""
        return any(saved.stretch.ended for saved in self._files.get(source.path, []))

    def has_values(self, saved: SavedRows) -> bool:
        """Whether the keeper's field, if there is one, is among what was kept."""
        return self._field_name is None or saved.part.facts["field"] == self._field_name

    def load(self, part: PartFile) -> Part:
        """All of a part; the last one is kept, as the files in a part come one after the other."""
        if self._last is None or self._last[0] != part.path:
            values = self._field_name if part.facts["field"] == self._field_name else None
            self._last = part.path, Part.read(part, values)
        return self._last[1]

    def chunks(self, saved: SavedRows) -> list[ChunkRef]:
        """The chunks that these rows came in."""
        first = saved.stretch.chunk
        refs = self.load(saved.part).refs[first : first + saved.stretch.chunks]
        return [ChunkRef(*map(int, ref)) for ref in refs]


@dataclass(frozen=True)
class SavedRows:
    """Rows of one file that an earlier start has left in a part."""

    part: PartFile
    stretch: Stretch

    @property
    def first(self) -> int:
        return self.stretch.first

    @property
    def rows(self) -> int:
        return self.stretch.rows


@dataclass
class _Run:
    """Batches of one file that stand together, and its end if that is behind them."""

    source: Source
    index: int
    batches: list[Any] = field(default_factory=list)
    end: tuple[int, str] | None = None  # rows of the file, its content hash

    @property
    def first(self) -> int:
        return self.batches[0].first_row if self.batches else self.end[0] if self.end else 0


class Saver:
    """Writes the batches of the first pass as parts, each when it is of so many bytes of input.

    checkpoint  where to, and how many bytes
    key         `checkpoint.first_pass_key` of the recipe
    field_name  that the keeper asks for
    whole       write what is left in the end too, however little
    later       later(work): does the writing, here or in a thread of its own, one after the other
    note        told once if a field's values cannot be kept
    """

    def __init__(
        self, checkpoint: Checkpoint, key: dict[str, Any], field_name: str | None, whole: bool,
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._checkpoint, self._key, self._field = checkpoint, key, field_name
        self._whole, self._note = whole, note
        self._runs: list[_Run] = []
        self._open: dict[str, _Run] = {}  # those that the next batch of their file goes to, by its path
        self._bytes = self._held = 0
        self.later: Callable[..., None] = lambda work, *arguments: work(*arguments)

    def add(self, source: Source, index: int, batch: Any) -> None:
        """A batch that was read; those of each file come in their order."""
        sketched = batch.sketched
        if sketched is not None:
            batch = replace(batch, sketched=replace(sketched, keys=None))
            self._held += sketched.signatures.nbytes if sketched.signatures is not None else 0
        self._run(source, index).batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._checkpoint.every or self._held >= HELD:
            self._write()

    def cut(self, source: Source) -> None:
        """Rows of the file that are in a part already come next: what is open of it does not go on behind them."""
        self._open.pop(source.path, None)

    def end(self, source: Source, index: int, rows: int, content_hash: str) -> None:
        """All batches of the file were added, or are in a part."""
        self._run(source, index).end = rows, content_hash
        self._open.pop(source.path, None)

    def drop(self, source: Source) -> None:
        """The file turned out to be bad: nothing of it counts."""
        self._runs = [run for run in self._runs if run.source is not source]
        self._open.pop(source.path, None)

    def finish(self) -> None:
        """No more batches come."""
        if self._runs and (self._whole or self._checkpoint.written or self._checkpoint.used):
            self._write()

    def _run(self, source: Source, index: int) -> _Run:
        if source.path not in self._open:
            self._open[source.path] = _Run(source, index)
            self._runs.append(self._open[source.path])
        return self._open[source.path]

    def _write(self) -> None:
        self._open.clear()
        # The same rows make the same part, in whatever order their files came.
        runs = sorted(self._runs, key=lambda run: (run.index, run.first))
        self._runs, self._bytes, self._held = [], 0, 0
        self._checkpoint.written += 1
        self.later(self._write_part, runs)

    def _write_part(self, runs: list[_Run]) -> None:
        batches = [batch for run in runs for batch in run.batches]
        stretches, errors = [], []
        at = chunk = 0
        for run in runs:
            rows = chunks = text_bytes = 0
            for batch in run.batches:
                errors += [(at + rows + row - batch.first_row, row, reason) for row, reason in batch.errors]
                rows += len(batch.status)
                chunks += len(batch.refs)
                text_bytes += batch.text_bytes
            source, end = run.source, run.end
            stretches.append(
                asdict(
                    Stretch(
                        source.path, source.size, source.mtime_ns, run.first, rows, at, chunks, chunk, text_bytes,
                        end is not None, end[1] if end else None,
                    )
                )
            )  # fmt: skip
            at += rows
            chunk += chunks
        starts = np.cumsum([0, *(len(batch.status) for batch in batches)])[:-1]
        columns: dict[str, list[Any]] = {
            "status": [batch.status for batch in batches],
            "digest": [batch.digest for batch in batches],
            "length": [batch.length for batch in batches],
            "chars": [batch.chars for batch in batches],
            "key_digest": [batch.key_digest for batch in batches],
            "key_length": [batch.key_length for batch in batches],
            "select": [batch.select + start for batch, start in zip(batches, starts, strict=True)],
            **{
                name: [None if batch.sketched is None else getattr(batch.sketched, name) for batch in batches]
                for name in ("signatures", "prints", "units", "kept")
            },
            "refs": [np.array(batch.refs, np.int64).reshape(-1, len(ChunkRef._fields)) for batch in batches],
        }
        arrays = {
            name: np.concatenate(parts)
            for name, parts in columns.items()
            if parts and all(p is not None for p in parts)
        }
        name = None
        if self._field is not None:
            values = pack([value for batch in batches for value in batch.values])
            if values is None:
                self._note(
                    f"values of {self._field!r} are of a type that no part holds; after a stop they are read again"
                )
            else:
                name, arrays["values"] = self._field, values
        signatures = arrays.get("signatures")
        facts = {
            "stretches": stretches, "errors": errors, "field": name, "batch_bytes": self._checkpoint.batch_bytes,
            "slots": 0 if signatures is None else int(signatures.shape[1]),
        }  # fmt: skip
        self._checkpoint.add_part(runs[0].index, runs[0].first, self._key, facts, arrays)
