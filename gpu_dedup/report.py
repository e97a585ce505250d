"""What a run says about itself: `Report` (report.json and the text on screen) and `RemovalLog` (removed.parquet).

report.json has two parts. `result` is the same on every run, machine, backend and thread count; `machine` holds paths,
times, memory, versions, and whatever else may differ. A finished run is known by report.json, so it is written last.

removed.parquet has one row for every row that went, or that was flagged, in the order of the input:

    file, row          the row: path below the common parent, 0-based physical line or record number
    id, id_type        its id as text, and what it was: string int float bool null missing list object, or, in files
                       of columns alone, another type: timestamp date time uuid bytes Decimal
    kept_file, kept_row, kept_id
                       its witness; null where there is none (reasons no-text, bad-row and bloom)
    similarity         shared / union, of the row and its witness; null where it was not measured
    shared, union      whole numbers behind it (shingles; code points under verify=edit; slots under verify=signature)
    distance           bits in which the SimHashes of a near copy and its witness differ; null for exact copies, and
                       under methods without fingerprints
    edit_similarity    of a cascade, Levenshtein similarity of the normalised texts of a near copy of level 2 and its
                       witness; null elsewhere (under verify=edit it is `similarity`)
    level              of a cascade, the level whose match caught the row, 1 or 2; null elsewhere
    reason             exact | near | exact+near | no-text | bad-row | bloom (a filter has seen it; witness unknown)
                       | key (its key field equals the witness's)
    guarantee          kept-witness | chain | probabilistic; null for reasons no-text and bad-row
    witness_kept       true if the witness is in the output; null without a witness
    action             remove | flag
    linked_file, linked_row, linked_similarity
                       under cluster=connected: the neighbour that drew the row in; reason key: the first row of that
                       key, where this went and kept_row stays for it; null elsewhere

Parquet holds UTF-8 only: a lone surrogate in an id, or a byte of a file name that is no UTF-8, appears as `\\ud835`.
`result` in report.json names files in the same way; the paths in `machine` are JSON's own escapes and lead to the file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_dedup import __version__
from gpu_dedup.batch import MISSING, TypedText
from gpu_dedup.columns import column, integers, numbers, texts
from gpu_dedup.errors import InputError, InternalError, disk_error, shown
from gpu_dedup.progress import bytes_text, seconds_text

if TYPE_CHECKING:
    import pyarrow as pa

REPORT_FORMAT = "gpu-dedup report"
REPORT_VERSION = 1
LOG_FORMAT = "gpu-dedup removals"
LOG_VERSION = 1
FOLDER = "_gpu_dedup"  # below the output folder
REPORT_NAME = "report.json"
LOG_NAME = "removed.parquet"

BY_LINE = ("jsonl", "lines")  # formats of an input whose rows are physical lines
REASONS = ("exact", "near", "exact+near", "no-text", "bad-row", "bloom", "key")
GUARANTEES = ("kept-witness", "chain", "probabilistic")
BAD_ROWS_LISTED = 100
GROUPS_LISTED = 10
MEMBERS_LISTED = 2  # of each of these groups, with their texts
EXCERPT = 2000  # code points of a text that the report holds
MISSES_LISTED = 10
MANY_SHORT = 0.2  # share of texts with fewer units than a shingle from which the summary says what to do

T = TypeVar("T")


@dataclass
class InputFile:
    """One file of the input. kept = records in its output file; rows = records, blank lines not counted."""

    rel: str
    path: str  # absolute
    format: str
    compression: str = ""
    size: int = 0
    content_hash: str | None = None  # XXH3-64 of the raw bytes; None where --limit stopped before the end
    rows: int = 0
    kept: int = 0
    problem: str | None = None  # the file was left out, and why


@dataclass
class Counts:
    """Records by outcome: kept + removed = read. Blank lines are no records.

    read      records of all files that were not left out
    blank     blank lines, dropped
    bad       records without a usable text, whether left out (then also removed, reason bad-row) or copied through
    no_text   texts without a unit, or with all shingles stopped (kept, or removed under on-no-text=drop)
    short     texts with fewer units than a shingle has, but one or more
    kept      records written
    removed   records left out; `by_reason` splits it
    flagged   records in the log that stay in the output (action=flag)
    """

    read: int = 0
    blank: int = 0
    bad: int = 0
    no_text: int = 0
    short: int = 0
    kept: int = 0
    removed: int = 0
    flagged: int = 0
    by_reason: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    flagged_by_reason: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))


@dataclass
class Member:
    """A row of a large group that went, or is flagged. shared, union: with the kept row, -1 where nothing was counted.

    text  its beginning, as it was in the input; None where nothing was written (--dry-run)
    """

    file: str
    row: int
    reason: str
    shared: int
    union: int
    text: str | None = None


@dataclass
class Group:
    """A kept row and how many rows it stands for, itself included; the beginnings of its text and of some of theirs."""

    file: str
    row: int
    id: str | None
    size: int
    text: str | None = None
    members: list[Member] = field(default_factory=list)


@dataclass
class Likeness:
    """Near copies of one similarity, cut to whole percent; each with the row it goes for.

    pairs    of different texts
    sampled  of these, whose bands were compared: an even sample of all pairs; 0 where bands mean nothing
    bands    bands in which these agree, added up; squares: the squares of these numbers, added up
    """

    percent: int
    pairs: int
    sampled: int = 0
    bands: int = 0
    squares: int = 0


@dataclass
class BadRow:
    """A record without a usable text. `line` counts from 1, as editors do: physical lines, or records."""

    file: str
    line: int
    reason: str


@dataclass
class HeavyBucket:
    """One of the largest capped buckets, and shingles that its first members have in common."""

    band: int
    size: int
    shingles: list[str] = field(default_factory=list)


@dataclass
class Collisions:
    """What meeting in bands, or in the tables of fingerprints, gave.

    documents  texts that were compared: one for each exact class, with a sketch
    pairs      colliding pairs, counted in each band (table), before the sieve
    candidates different pairs after the sieve; of fingerprints: all pairs of texts within the distance
    tables     of fingerprints, 0 for bands; equal: texts with the fingerprint of an earlier one, which meet without a
               table
    buckets    buckets of two or more, in all bands; `largest` the members of the largest; `capped` those over the cap
    histogram  buckets by size: key 2**i counts sizes from 2**i to 2**(i+1) - 1
    """

    documents: int = 0
    pairs: int = 0
    candidates: int = 0
    buckets: int = 0
    largest: int = 0
    capped: int = 0
    histogram: dict[str, int] = field(default_factory=dict)
    heavy: list[HeavyBucket] = field(default_factory=list)
    tables: int = 0
    equal: int = 0


@dataclass
class Level:
    """One level of a cascade. Its seconds are among `machine.stages`.

    level    0: equal keys, or equal texts without a key field; 1: near fingerprints alone; 2: farther ones, verified
    action   remove | flag
    looked   level 0: rows that have a key, or a text; else pairs that were looked at: met in the tables of fingerprints
             (counted in each), or candidates of level 2
    within   of these, rows that the filter took for seen; pairs at a distance of this level
    alike    of these, copies by all of the key; pairs with enough Jaccard similarity (level 1: all; level 2: of those
             that were asked about, `Verification.verified`)
    matched  of these, pairs with enough Levenshtein similarity (levels 0, 1: all)
    caught   rows (level 0) or different texts that went, or were flagged, by a match of this level
    """

    level: int
    action: str
    looked: int
    within: int
    alike: int
    matched: int
    caught: int


@dataclass
class Verification:
    """What comparing true shingle sets gave. Laziness is part of the rule, so these counts do not depend on threads."""

    verified: int = 0  # pairs whose true similarity was computed
    matched: int = 0  # of these, at or above the threshold
    over_cap: int = 0  # pairs with a text over edit-max-chars: never a match
    components: int = 0  # groups of texts that candidates hold together
    largest_component: int = 0
    clusters: int = 0  # texts that stand for another one
    largest_cluster: int = 0  # texts of the largest of them
    weakest: list[int] | None = None  # shared, union of the least similar text that goes and its witness; None: unknown
    longest_chain: int = 0  # matches in a row between a text that goes and the one that stays, at most


@dataclass
class Miss:
    """A kept row that should have gone, and the row that it is too much like. Rows count from 0."""

    file: str
    row: int
    like_file: str
    like_row: int
    shared: int
    union: int


@dataclass
class Audit:
    """Sampled kept rows against all by brute force; see gpu_dedup/audit.py for what counts as a miss.

    sampled   different texts that stay and were looked at, of `kept` that stay and took part in the search
    compared  texts that each of them was compared with
    removed   different texts that went as near copies (flagged ones too)
    missed    sampled texts that should have gone; the first of them in `examples`
    misses    estimate of those among all that stay, with a 95 % interval from misses_low to misses_high
    recall    removed / (removed + misses) with its interval; None where no near copy was found or missed
    """

    sampled: int = 0
    kept: int = 0
    compared: int = 0
    removed: int = 0
    missed: int = 0
    misses: float = 0.0
    misses_low: float = 0.0
    misses_high: float = 0.0
    recall: float | None = None
    recall_low: float | None = None
    recall_high: float | None = None
    examples: list[Miss] = field(default_factory=list)


@dataclass
class Filter:
    """The Bloom filter of a run, at its end.

    capacity    different rows it was made for
    tables      one for each band, or one
    hashes, blocks, bytes  bits of a key, blocks of 512 bits in each table, bytes of all of them
    before      keys it held before this run (of several tables: the one with the most), and `held` after it
    asked       rows that were looked up, `new` of them new to it
    fill        share of bits that are set, counted
    rate        chance that a new row is taken for seen, from the bits that are set; asked_rate: at capacity, as wanted
    wrong       expected number of rows of this run that went although nothing like them had come, from the rate as
                the filter filled; at most those that went
    """

    capacity: int = 0
    tables: int = 0
    hashes: int = 0
    blocks: int = 0
    bytes: int = 0
    before: int = 0
    held: int = 0
    asked: int = 0
    new: int = 0
    fill: float = 0.0
    rate: float = 0.0
    asked_rate: float = 0.0
    wrong: float = 0.0


@dataclass
class Machine:
    """Everything about the run that may differ between two runs of one recipe over one input."""

    output: str = ""  # "-": standard output
    report: str = ""  # folder of log and report, where the output is none
    write: str = "rows"
    keep_removed: bool = False
    started: str = ""  # ISO 8601, UTC
    finished: str = ""
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    backend: str = ""
    backend_why: str = ""
    gpus: int = 0  # that the input was read and sketched with; 0 on a CPU
    threads: int = 0
    memory: int = 0  # bytes the tables were allowed
    spilled: int = 0  # bytes of tables that went to the work folder
    peak_memory: int = 0  # bytes, of the whole process since it began
    dry_run: bool = False
    work: dict[str, int] = field(default_factory=dict)  # other numbers that depend on memory or threads
    notes: list[str] = field(default_factory=list)
    input_times: list[int] = field(default_factory=list)  # of the input files' last change, ns, in order
    versions: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Set the time of the start and the versions."""
        self.started = _now()
        self.versions = versions()

    def finish(self, seconds: float, stages: Mapping[str, float]) -> None:
        """Set the time of the end, the seconds by stage and the peak memory."""
        self.finished = _now()
        self.seconds = round(seconds, 4)
        self.stages = {name: round(value, 4) for name, value in stages.items()}
        self.peak_memory = peak_memory()


@dataclass
class Report:
    """A run, after it. See the module's head; `Counts`, `Collisions` and the others say what their numbers mean.

    groups        kept rows with one or more removed or flagged rows; largest_groups are the ten largest of them
    group_sizes   groups by size, the kept row included: key 2**i counts sizes from 2**i to 2**(i+1) - 1
    likeness      near copies by similarity, ascending; percents without any are left out
    bytes_read    bytes of the input files (compressed where they are); text_bytes: of the raw texts
    forecast      `bands.Forecast` (`hamming.Forecast`, `hamming.LevelForecast`) by similarity: the chance to find
                  such a pair; dictionaries once loaded
    """

    recipe: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    version: str = __version__
    inputs: list[InputFile] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    groups: int = 0
    group_sizes: dict[str, int] = field(default_factory=dict)
    largest_groups: list[Group] = field(default_factory=list)
    likeness: list[Likeness] = field(default_factory=list)
    frequencies: dict[str, Any] | None = None  # table of document frequencies: checksum, documents, cells, bytes, file
    collisions: Collisions | None = None  # None for methods without banding
    verification: Verification | None = None
    levels: list[Level] = field(default_factory=list)  # of a cascade
    filter: Filter | None = None  # of methods that have one
    audit: Audit | None = None  # only where the run asked for it
    forecast: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    bad_rows: list[BadRow] = field(default_factory=list)  # the first hundred
    bytes_read: int = 0
    text_bytes: int = 0
    machine: Machine = field(default_factory=Machine)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: {format, format_version, version, result: {...}, machine: {...}}."""
        result = asdict(self)
        machine = result.pop("machine")
        version = result.pop("version")
        machine["paths"] = [entry.pop("path") for entry in result["inputs"]]
        recipe = result.pop("recipe")  # as it is: it must give the same fingerprint again
        result = {"recipe": recipe, **_escaped(result)}
        return {
            "format": REPORT_FORMAT,
            "format_version": REPORT_VERSION,
            "version": version,
            "result": result,
            "machine": machine,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """Reverse of `to_dict`. Raises InputError for another format or a later version of it."""
        if values.get("format") != REPORT_FORMAT:
            raise InputError(f"not a report of gpu-dedup (its format is {values.get('format')!r})")
        if values.get("format_version") != REPORT_VERSION:
            raise InputError(
                f"this report has format version {values.get('format_version')!r}, and this gpu-dedup reads "
                f"version {REPORT_VERSION}; use gpu-dedup {values.get('version', 'of the version that wrote it')}"
            )
        result, machine = dict(values["result"]), dict(values["machine"])
        paths = machine.pop("paths")
        inputs = [InputFile(path=path, **entry) for entry, path in zip(result.pop("inputs"), paths, strict=True)]
        collisions, verification = result.pop("collisions"), result.pop("verification")
        filter = result.pop("filter", None)  # likewise
        audit = result.pop("audit", None)  # reports from before there was one lack it
        return cls(
            version=values["version"],
            inputs=inputs,
            counts=Counts(**result.pop("counts")),
            largest_groups=[
                Group(**{**entry, "members": [Member(**member) for member in entry.get("members", ())]})
                for entry in result.pop("largest_groups")
            ],
            likeness=[Likeness(**entry) for entry in result.pop("likeness", ())],
            bad_rows=[BadRow(**entry) for entry in result.pop("bad_rows")],
            levels=[Level(**entry) for entry in result.pop("levels", [])],
            collisions=None
            if collisions is None
            else Collisions(**{**collisions, "heavy": [HeavyBucket(**entry) for entry in collisions["heavy"]]}),
            verification=None if verification is None else Verification(**verification),
            audit=None
            if audit is None
            else Audit(**{**audit, "examples": [Miss(**entry) for entry in audit["examples"]]}),
            filter=None if filter is None else Filter(**filter),
            machine=Machine(**machine),
            **result,
        )

    def to_json(self) -> str:
        return json.dumps(_plain(self.to_dict()), ensure_ascii=True, indent=1, allow_nan=False) + "\n"

    def save(self, path: str) -> None:
        """Write report.json: a temporary name in the same folder, then a rename."""
        with _atomic(path) as temporary, open(temporary, "w", encoding="ascii") as file:
            file.write(self.to_json())
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: str) -> Report:
        """Read a report.json, or the one of the output folder `path`. Raises InputError with the reason."""
        if os.path.isdir(path):
            path = os.path.join(path, FOLDER, REPORT_NAME)
        try:
            with open(path, encoding="utf-8") as file:
                values = json.load(file)
        except FileNotFoundError:
            raise InputError(f"{shown(path)}: no finished run of gpu-dedup here; give the folder of run -o") from None
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise InputError(f"{shown(path)}: cannot be read as a report: {why}; give the folder of run -o") from None
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"{shown(path)}: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{shown(path)}: damaged report ({type(error).__name__}: {error})") from None

    def check(self) -> None:
        """The sums that must hold at the end of every run. Raises InternalError: then nothing may be written."""
        counts = self.counts
        if counts.kept + counts.removed != counts.read:
            raise InternalError(f"kept {counts.kept} + removed {counts.removed} is not read {counts.read}")
        if sum(counts.by_reason.values()) != counts.removed:
            raise InternalError(f"removals by reason {counts.by_reason} do not add up to {counts.removed}")
        if sum(counts.flagged_by_reason.values()) != counts.flagged:
            raise InternalError(f"flags by reason {counts.flagged_by_reason} do not add up to {counts.flagged}")
        for name, total in (("rows", counts.read), ("kept", counts.kept)):
            if sum(getattr(file, name) for file in self.inputs) != total:
                raise InternalError(f"{name} by file do not add up to {total}")

    def summary(self) -> str:
        """The text for the screen: what came, what went and why, what it cost, where the log is."""
        return "\n".join(_summary(self)) + "\n"


def _escaped(value: Any) -> Any:
    """Plain values with every text as `utf8` gives it."""
    if isinstance(value, dict):
        return {key: _escaped(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(entry) for entry in value]
    return utf8(value) if isinstance(value, str) else value


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """Values that json writes: NumPy scalars become numbers, keys become text, floats that JSON lacks are refused."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InternalError(f"a report holds no {value}")
        return value
    if hasattr(value, "item"):
        return _plain(value.item())
    raise InternalError(f"a report holds no {type(value).__name__}")


@contextlib.contextmanager
def _atomic(path: str) -> Iterator[str]:
    """A temporary name beside `path` that becomes `path` at the end, or goes away if the body raises."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if isinstance(error, OSError):
            raise disk_error(error, path) from error
        raise


def peak_memory() -> int:
    """Most bytes of memory that this process has held.

    VmHWM where there is /proc: ru_maxrss also counts what the parent held when it forked.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def versions() -> dict[str, str]:
    """Versions of this package, Python, and what it leans on; nothing is imported for it."""
    out = {"gpu-dedup": __version__, "python": platform.python_version()}
    for name in ("numpy", "numba", "llvmlite", "pyarrow", "xxhash", "click", "tqdm"):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = "not installed"
    out["platform"] = platform.platform()
    return out


# ---------------------------------------------------------------------------------------------------------------------
# The text on screen.


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


REASON_WORDS = {
    "exact": "exact copies",
    "near": "near copies",
    "exact+near": "exact copies of a near copy",
    "no-text": "no text to compare",
    "bad-row": "bad rows",
    "bloom": "seen before, says the filter",
    "key": "copies by key",
}


def _summary(report: Report) -> Iterator[str]:
    counts, recipe, machine = report.counts, report.recipe, report.machine
    yield f"gpu-dedup {report.version}, {describe(recipe)}"
    yield f"{'recipe':<12}{report.fingerprint}"
    yield ""
    left_out = [file for file in report.inputs if file.problem]
    yield (
        f"{'read':<12}{counts.read:>13,}  rows from {_plural(len(report.inputs) - len(left_out), 'file')}, "
        f"{bytes_text(report.bytes_read)}, {bytes_text(report.text_bytes)} of text"
    )
    yield f"{'kept':<12}{counts.kept:>13,}  {_share(counts.kept, counts.read)}"
    yield f"{'removed':<12}{counts.removed:>13,}  {_share(counts.removed, counts.read)}"
    yield from _reasons(counts.by_reason)
    if counts.flagged:
        yield f"{'flagged':<12}{counts.flagged:>13,}  {_share(counts.flagged, counts.read)}, all of them kept"
        yield from _reasons(counts.flagged_by_reason)
    aside = []
    if counts.blank:
        aside.append(_plural(counts.blank, "blank line") + " dropped")
    kept_bad = counts.bad - counts.by_reason.get("bad-row", 0)
    if kept_bad > 0:
        aside.append(_plural(kept_bad, "bad row") + " copied through")
    if aside:
        yield f"{'':<12}{'':>13}  " + ", ".join(aside)
    yield ""
    if report.collisions is None:
        for level in report.levels:
            yield from _level(level, recipe)
    else:
        yield from _comparison(report)
        for level in report.levels:
            yield from _level(level, recipe)
        if report.audit is not None:
            yield from _audit(report.audit, recipe)
        yield ""
    if report.filter is not None:
        yield from _filter(report.filter)
        yield ""
    if report.largest_groups:
        yield f"{'groups':<12}{report.groups:>13,}  rows stand for others; the largest groups:"
        for group in report.largest_groups[:3]:
            name = f"{group.file} row {group.row}" + (f"  id {short(group.id, 60)}" if group.id is not None else "")
            yield f"{'':<12}{group.size:>13,}  rows like {_visible(name)}"
    worst = sorted(report.inputs, key=lambda file: (-(file.rows - file.kept) / max(1, file.rows), file.rel))
    if len(report.inputs) > 1 and worst[0].rows > worst[0].kept:
        yield f"{'by file':<12}{'':>13}  most went from " + "; ".join(
            f"{_visible(file.rel)} {_share(file.rows - file.kept, file.rows)}"
            for file in worst[:3]
            if file.rows > file.kept
        )
    yield from _cost(report)
    if left_out:
        yield f"{'left out':<12}{len(left_out):>13,}  bad files: " + "; ".join(
            _visible(f"{file.rel}: {file.problem}") for file in left_out[:3]
        )
    records = {file.rel for file in report.inputs if file.format not in BY_LINE}
    for bad in report.bad_rows[:3]:
        place = f"{bad.file} row {bad.line - 1}" if bad.file in records else f"{bad.file}:{bad.line}"
        yield f"{'bad row':<12}{'':>13}  {_visible(f'{place}: {bad.reason}')}"
    if counts.bad > 3:
        yield f"{'':<12}{'':>13}  ... and {counts.bad - 3:,} more"
    if machine.dry_run:
        yield f"{'output':<12}{'':>13}  dry run: nothing was written"
    elif machine.output:
        stream = machine.output == "-"
        yield f"{'output':<12}{'':>13}  {'standard output' if stream else _visible(machine.output)}"
        folder = machine.report if stream else machine.output
        if folder:
            yield f"{'log':<12}{'':>13}  {_visible(os.path.join(folder, FOLDER, LOG_NAME))}"
    for warning in report.warnings:
        yield f"{'warning':<12}{'':>13}  {_visible(warning)}"


def _reasons(by_reason: Mapping[str, int]) -> Iterator[str]:
    for reason in REASONS:
        if by_reason.get(reason):
            yield f"{'':<12}{by_reason[reason]:>13,}  {REASON_WORDS[reason]}"


def _comparison(report: Report) -> Iterator[str]:
    found, checked, counts = report.collisions, report.verification, report.counts
    assert found is not None
    texts = f"{'compared':<12}{found.documents:>13,}  different texts; {_plural(counts.no_text, 'row')} without a unit"
    if counts.short:
        texts += f", {_plural(counts.short, 'row')} shorter than a shingle"
    yield texts
    line = f"{'candidates':<12}{found.candidates:>13,}  pairs of {found.pairs:,} collisions passed the sieve"
    if report.recipe.get("method") == "simhash":
        line = (
            f"{'candidates':<12}{found.candidates:>13,}  pairs at distance {report.recipe.get('distance')} or less "
            f"({found.pairs:,} met in {_plural(found.tables, 'table')}; {_plural(found.equal, 'text')} with an earlier "
            "one's fingerprint)"
        )
    if report.frequencies is not None:
        table = report.frequencies
        whence = f"of {short(table['file'])}" if table.get("file") else "counted in a pass over these texts"
        yield (
            f"{'terms':<12}{table['documents']:>13,}  documents in the table of frequencies, {whence}; checksum "
            f"{table['checksum']}"
        )
    if checked is not None:
        line += f"; {checked.verified:,} verified, {checked.matched:,} matched"
        if checked.over_cap:
            line += f", {checked.over_cap:,} with a text over edit-max-chars"
    yield line
    if checked is not None and checked.weakest is not None and checked.weakest[1] > 0:
        shared, union = checked.weakest
        line = f"{'':<12}{shared / union:>13.4f}  the least similarity of a row that goes and the one that stays"
        if checked.longest_chain > 1:
            line += f"; chains of up to {checked.longest_chain:,} matches"
        yield line
    line = f"{'buckets':<12}{found.buckets:>13,}  of two or more; largest {found.largest:,}"
    if found.capped:
        line += f"; {_plural(found.capped, 'bucket')} over the cap of {report.recipe.get('bucket_cap', '?')}"
    yield line
    for bucket in found.heavy[:3]:
        if bucket.shingles:
            common = "; ".join(short(shingle) for shingle in bucket.shingles[:3])
            yield f"{'':<12}{bucket.size:>13,}  rows in one bucket of band {bucket.band} share: {common}"


def _filter(found: Filter) -> Iterator[str]:
    several = f"{found.tables} tables of " if found.tables > 1 else ""
    blocks = _plural(found.blocks, "block")
    yield (
        f"{'filter':<12}{bytes_text(found.bytes):>13}  {several}{blocks}, {found.hashes} bits a key; "
        f"made for {found.capacity:,} keys"
    )
    before = f", after {found.before:,} keys from before" if found.before else ""
    yield f"{'':<12}{found.asked:>13,}  rows were looked up{before}; {found.new:,} were new to it"
    yield f"{'':<12}{f'{100 * found.fill:.1f} %':>13}  of its bits are set"
    wanted = _rare(found.asked_rate)
    yield f"{'':<12}{_rare(found.rate):>13}  of new rows would now be taken for seen; at capacity {wanted}"
    yield f"{'':<12}{few(found.wrong):>13}  rows, it is expected, went although they were new"


def few(number: float) -> str:
    """An expected number as people read it: 1,737, 2.4, fewer than 1."""
    if number < 1:
        return "fewer than 1"
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"


def _rare(share: float) -> str:
    if share <= 0:
        return "none"
    return f"{100 * share:.1f} %" if share >= 0.001 else f"1 in {1 / share:,.0f}"


def _audit(audit: Audit, recipe: Mapping[str, Any]) -> Iterator[str]:
    threshold = share_text(recipe["threshold_ppm"])
    whole = audit.sampled == audit.kept
    which = "all" if whole else "sampled ones of"
    yield (
        f"{'audit':<12}{audit.sampled:>13,}  {which} {_plural(audit.kept, 'text')} that stay, each against "
        f"{audit.compared:,} by brute force: {audit.missed:,} should have gone"
    )
    for miss in audit.examples[:3]:
        name = f"{miss.file} row {miss.row} is like {miss.like_file} row {miss.like_row}"
        yield f"{'':<12}{miss.shared / miss.union:>13.4f}  {_visible(name)}, and both stay"
    if not audit.kept:
        return
    if audit.recall is None or audit.recall_low is None or audit.recall_high is None:
        yield f"{'recall':<12}{'-':>13}  no near copy was found, and none was missed" + (
            "" if whole else f" in the sample; by 95 % confidence at most {audit.misses_high:,.0f} stay unfound"
        )
    elif whole:
        yield (
            f"{'recall':<12}{_percent(audit.recall):>13}  counted: {audit.removed:,} near copies at or above "
            f"{threshold} went, {audit.missed:,} did not"
        )
    else:
        yield (
            f"{'recall':<12}{_percent(audit.recall):>13}  estimated: {audit.removed:,} near copies at or above "
            f"{threshold} went, about {audit.misses:,.0f} did not"
        )
        yield (
            f"{'':<12}{'':>13}  95 % interval {_percent(audit.recall_low)} to {_percent(audit.recall_high)} "
            f"({audit.misses_low:,.0f} to {audit.misses_high:,.0f} misses): 95 of 100 such samples give one that holds "
            "the true share"
        )
    if recipe.get("cluster") == "connected":
        yield f"{'':<12}{'':>13}  direct matches only: links over several missed texts are not seen"


def _level(level: Level, recipe: Mapping[str, Any]) -> Iterator[str]:
    near, far = recipe.get("distance"), recipe.get("far_distance")
    which = f"level {level.level}"
    what = "rows" if level.level == 0 else "texts"
    caught = f"{level.caught:,} {what} {'flagged' if level.action == 'flag' else 'went'}"
    if level.level == 0:
        key = recipe.get("key_field")
        yield (
            f"{which:<12}{level.matched:>13,}  copies by {f'the key {_visible(key)}' if key else 'equal texts'}, of "
            f"{level.looked:,} rows: {level.within:,} may have been seen, says the filter; {caught}"
        )
        return
    if level.level == 1:
        yield f"{which:<12}{level.matched:>13,}  pairs at {near} bits or less, not verified; {caught}"
        return
    jaccard, edit = share_text(recipe.get("far_jaccard_ppm", 0)), share_text(recipe.get("far_edit_ppm", 0))
    yield (
        f"{which:<12}{level.matched:>13,}  pairs matched, of {level.looked:,}: {level.within:,} beyond {near} and to "
        f"{far} bits, {level.alike:,} with Jaccard {jaccard}, edit similarity {edit}; {caught}"
    )


def _percent(share: float) -> str:
    """A share for people; never rounded up to 100 % or down to 0 %."""
    return f"{min(max(100 * share, 0.01), 99.99):.2f} %" if 0 < share < 1 else f"{100 * share:.0f} %"


def _cost(report: Report) -> Iterator[str]:
    machine = report.machine
    if not machine.seconds:
        return
    parts = ", ".join(f"{name} {seconds_text(value)}" for name, value in machine.stages.items() if value >= 0.005)
    yield f"{'time':<12}{seconds_text(machine.seconds):>13}  {parts}"
    speed = bytes_text(report.bytes_read / machine.seconds) + "/s"
    yield f"{'speed':<12}{speed:>13}  of input, {bytes_text(report.text_bytes / machine.seconds)}/s of text"
    spilled = f", {bytes_text(machine.spilled)} of tables on disk" if machine.spilled else ""
    where = f"{_plural(machine.threads, 'thread')}, {machine.backend or 'no backend'}"
    where += f" on {_plural(machine.gpus, 'GPU')}" if machine.gpus > 1 else ""
    why = f" ({machine.backend_why})" if machine.backend_why else ""
    yield f"{'memory':<12}{bytes_text(machine.peak_memory):>13}  at the peak{spilled}; {where}{why}"


def describe(recipe: Mapping[str, Any]) -> str:
    """A recipe in a few words: 'minhash token:5, 17 bands x 7 rows, threshold 0.8'."""
    text = _describe(recipe)
    if recipe.get("key_field") and recipe.get("method") != "bloom":
        text += f", copies by {_visible(recipe['key_field'])} first"
    return text


def _describe(recipe: Mapping[str, Any]) -> str:
    method = str(recipe.get("method", "?"))
    if method == "exact":
        steps = ",".join(recipe.get("normalize") or ()) or "none"
        return f"exact copies, normalize {steps}, keep {recipe.get('keep')}"
    if method == "bloom":
        steps = ",".join(recipe.get("normalize") or ()) or "none"
        what = f"of {recipe['key_field']}" if recipe.get("key_field") else "of texts"
        return f"bloom, exact copies {what}, normalize {steps}, capacity {recipe.get('capacity') or 0:,}"
    text = f"{method} {recipe.get('shingle')}"
    if method == "simhash":
        how = {"exact": "Jaccard", "edit": "edit similarity"}.get(str(recipe.get("verify")))
        if recipe.get("weights", "set") != "set":
            text += f", weights {recipe['weights']}"
            text += f" of {recipe['top_terms']} terms" if recipe.get("top_terms") else ""
        text += f", distance {recipe.get('distance')}, "
        text += f"{how} {share_text(recipe.get('threshold_ppm', 0))}" if how else "not verified"
        return f"{text}, keep {recipe.get('keep')}"
    if method == "cascade":
        text += f", distance {recipe.get('distance')}; to {recipe.get('far_distance')} with Jaccard "
        text += f"{share_text(recipe.get('far_jaccard_ppm', 0))} and edit similarity "
        text += share_text(recipe.get("far_edit_ppm", 0))
        text += f", {recipe.get('bands')} bands x {recipe.get('rows')} rows" if recipe.get("bands") else ", no bands"
        return f"{text}, keep {recipe.get('keep')}"
    if recipe.get("bands") is not None:
        text += f", {recipe['bands']} bands x {recipe['rows']} rows"
    if recipe.get("sketch", "minhash") != "minhash":
        text += f" of a {recipe['sketch']} sketch"
    if method == "lshbloom":
        text += f", capacity {recipe.get('capacity') or 0:,}"
    return text + f", threshold {share_text(recipe.get('threshold_ppm', 0))}, keep {recipe.get('keep')}"


def share_text(ppm: int) -> str:
    """800000 -> '0.8'; exact."""
    return format(Decimal(ppm).scaleb(-6).normalize(), "f")


def short(text: str, limit: int = 40) -> str:
    """The text in one line, its middle left out where it is long: of a path or URL both ends matter."""
    text = _visible(text)
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}...{text[-(limit - limit // 3 - 3) :]}"


def _visible(text: str) -> str:
    """One line that a terminal only shows: control characters, line ends and surrogates as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def short_texts_warning(counts: Counts, recipe: Mapping[str, Any]) -> str | None:
    """The line for a corpus of short texts, or None where these are few.

    A text with fewer units than a shingle is one shingle: it meets only texts with the very same units.
    """
    texts = counts.read - counts.bad
    if not texts or counts.short < MANY_SHORT * texts:
        return None
    unit, _, n = str(recipe["shingle"]).partition(":")
    if unit in ("char", "byte", "item"):
        remedy = f"--shingle {unit}:{max(1, int(n) // 2)}"
    else:
        remedy = f"--shingle {unit}:{max(1, int(n) // 2)} or --shingle char:5"
    return (
        f"{_share(counts.short, texts)} of the texts have fewer than {n} {unit} units, so they only meet texts with "
        f"the same units; for near copies among them try {remedy} (gpu-dedup explain --compare shows the effect)"
    )


# ---------------------------------------------------------------------------------------------------------------------
# The log of removals.


def id_text(value: Any) -> tuple[str | None, str]:
    """An id as text, and the kind of value it was. Integers are exact, floats by repr, lists and objects as JSON.

    Values that only files of columns have are given as text under the name of what they are: timestamp, date, time,
    uuid, bytes (hexadecimal), Decimal.
    """
    if value is MISSING:
        return None, "missing"
    if value is None:
        return None, "null"
    if isinstance(value, str):
        return utf8(value), value.kind if isinstance(value, TypedText) else "string"
    if isinstance(value, bool):
        return ("true" if value else "false"), "bool"
    if isinstance(value, int):
        try:
            return str(value), "int"
        except ValueError:  # over 4,300 digits, which Python refuses to spell out
            return format(Decimal(value), "f"), "int"
    if isinstance(value, float):
        return repr(value), "float"
    if isinstance(value, (list, dict)):
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_text_of)
        except (TypeError, ValueError, RecursionError):
            text = repr(value)
        return utf8(text), "list" if isinstance(value, list) else "object"
    return utf8(_text_of(value)), type(value).__name__


def _text_of(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def utf8(text: str) -> str:
    """The text with lone surrogates as escapes: Parquet holds UTF-8 only."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


_INT = ("row", "kept_row", "shared", "union", "distance", "level", "linked_row")
_FLOAT = ("similarity", "edit_similarity", "linked_similarity")
_BOOL = ("witness_kept",)
COLUMNS = (
    "file", "row", "id", "id_type", "kept_file", "kept_row", "kept_id", "similarity", "shared", "union", "distance",
    "edit_similarity", "level",
    "reason",
    "guarantee", "witness_kept", "action", "linked_file", "linked_row", "linked_similarity",
)  # fmt: skip
_REQUIRED = ("file", "row", "id_type", "reason", "action")


def log_schema(fingerprint: str = "") -> pa.Schema:
    """The schema of removed.parquet, with format, version and recipe fingerprint as key-value metadata."""
    import pyarrow as pa

    def kind(name: str) -> Any:
        if name in _INT:
            return pa.int64()
        if name in _FLOAT:
            return pa.float64()
        return pa.bool_() if name in _BOOL else pa.string()

    return pa.schema(
        [pa.field(name, kind(name), nullable=name not in _REQUIRED) for name in COLUMNS],
        metadata={
            "gpu-dedup.format": LOG_FORMAT,
            "gpu-dedup.format_version": str(LOG_VERSION),
            "gpu-dedup.version": __version__,
            "gpu-dedup.recipe": fingerprint,
        },
    )


class RemovalLog:
    """Streaming writer of removed.parquet: rows come in the order of the input and leave memory by row groups.

    path         the final name; a temporary one beside it until `close`
    fingerprint  of the recipe

    Row groups have 65,536 rows whatever the sizes of the parts that come in, so that the file does not depend on them.
    """

    GROUP = 1 << 16

    def __init__(self, path: str, fingerprint: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        self.rows = 0
        self._schema = log_schema(fingerprint)
        self._temporary = f"{path}.{os.getpid()}.tmp"
        self._pending: list[Any] = []
        self._pending_rows = 0
        self._last: tuple[str, int] | None = None
        self._files: set[str] = set()
        self._sink: Any = None
        try:
            # As bytes: Arrow takes no other name that is not UTF-8.
            self._sink = pa.OSFile(os.fsencode(self._temporary), "wb")
            self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")
        except OSError as error:
            if self._sink is not None:
                self._release()
            raise disk_error(error, path) from error

    def append(self, columns: Mapping[str, Any]) -> None:
        """Add rows, given by column: lists, NumPy arrays or Arrow arrays of one length. Absent columns are null.

        A row number, `shared`, `union`, `distance` or `level` below 0 and a similarity that is NaN mean "none" and
        become null.
        Where `similarity` is absent it is shared / union. Raises InternalError for an unknown column, unequal lengths,
        an unknown reason or guarantee, a required column without a value, or rows out of order.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        unknown = set(columns) - set(COLUMNS)
        if unknown:
            raise InternalError(f"the removal log has no column {sorted(unknown)}")
        count = len(columns["row"])
        if not count:
            return
        arrays: dict[str, Any] = {}
        for name, given in columns.items():
            if len(given) != count:
                raise InternalError(f"column {name} has {len(given)} rows, not {count}")
            kind = self._schema.field(name).type
            array = column(given).cast(kind)
            if name in _INT and name != "row":
                plain = numbers(array.fill_null(integers(np.array([-1]))[0]) if array.null_count else array)
                array = integers(plain, plain < 0)
            arrays[name] = array
        if "similarity" not in arrays and "shared" in arrays and "union" in arrays:
            none = integers(np.zeros(1, np.int64), np.ones(1, np.bool_))[0]
            union = pc.if_else(pc.equal(arrays["union"], integers(np.zeros(1, np.int64))[0]), none, arrays["union"])
            arrays["similarity"] = pc.divide(arrays["shared"].cast(pa.float64()), union.cast(pa.float64()))
        for name, allowed in (("reason", REASONS), ("guarantee", GUARANTEES), ("action", ("remove", "flag"))):
            known = pc.is_in(arrays[name].drop_null(), texts(allowed).cast(pa.string())) if name in arrays else None
            if known is not None and not pc.all(known, min_count=0).as_py():
                raise InternalError(f"column {name} has a value that is none of {', '.join(allowed)}")
        table = pa.Table.from_arrays(
            [arrays[name] if name in arrays else pa.nulls(count, self._schema.field(name).type) for name in COLUMNS],
            schema=self._schema,
        )
        for name in _REQUIRED:
            if table[name].null_count:
                raise InternalError(f"column {name} of the removal log lacks a value")
        self._check_order(table)
        self.rows += count
        self._pending.append(table)
        self._pending_rows += count
        if self._pending_rows >= self.GROUP:
            self._write(self.GROUP)

    def _check_order(self, table: Any) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = numbers(table["row"].combine_chunks())
        file = table["file"].combine_chunks()
        changed = np.ones(len(rows), bool)
        if len(rows) > 1:
            changed[1:] = numbers(pc.not_equal(file[1:], file[:-1]).cast(pa.int64()))
        if self._last is not None and file[0].as_py() == self._last[0]:
            changed[0] = False
            if rows[0] <= self._last[1]:
                raise InternalError(f"removal log: row {rows[0]} of {self._last[0]} after row {self._last[1]}")
        if np.any((rows[1:] <= rows[:-1]) & ~changed[1:]):
            raise InternalError("removal log: rows of a file are out of order")
        for start in np.flatnonzero(changed):
            name = file[int(start)].as_py()
            if name in self._files:
                raise InternalError(f"removal log: {name} comes a second time")
            self._files.add(name)
        self._last = (file[len(rows) - 1].as_py(), int(rows[-1]))

    def _write(self, least: int) -> None:
        """Write whole row groups while `least` or more rows wait."""
        import pyarrow as pa

        table = pa.concat_tables(self._pending)
        start = 0
        try:
            while table.num_rows - start >= max(1, least):
                self._writer.write_table(table.slice(start, self.GROUP), row_group_size=self.GROUP)
                start += self.GROUP
        except OSError as error:
            raise disk_error(error, self.path) from error
        rest = table.slice(start)
        self._pending = [rest] if rest.num_rows > 0 else []
        self._pending_rows = max(0, rest.num_rows)

    def close(self) -> None:
        """Write what waits and give the file its name. Raises OutputError, and then leaves nothing."""
        try:
            if self._pending:
                self._write(1)
            with _atomic(self.path) as temporary:
                assert temporary == self._temporary
                self._writer.close()
                self._sink.close()
                with open(temporary, "rb") as file:
                    os.fsync(file.fileno())
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Leave nothing."""
        with contextlib.suppress(Exception):
            self._writer.close()
        self._writer.is_open = False  # or its destructor would try again
        self._release()

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            self._sink.close()
        with contextlib.suppress(OSError):
            os.remove(self._temporary)

    def __enter__(self) -> RemovalLog:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def log_files(path: str) -> list[str]:
    """Parquet files of a log: the file itself, or the parts of a folder in path-byte order.

    `path` may be the output folder of a run, its `_gpu_dedup`, or the log. Raises InputError if there is none.
    """
    for place in (os.path.join(path, FOLDER, LOG_NAME), os.path.join(path, LOG_NAME), path):
        if os.path.isfile(place):
            return [place]
        if os.path.isdir(place) and place.endswith(".parquet"):
            parts = [
                name for name in os.listdir(place) if name.endswith(".parquet") and not name.startswith((".", "_"))
            ]
            return [os.path.join(place, name) for name in sorted(parts, key=os.fsencode)]
    raise InputError(f"{shown(path)}: no {LOG_NAME} there; give the folder of run -o")


def removals(path: str, columns: Sequence[str] | None = None) -> Iterator[tuple[int, Any]]:
    """The log by row groups: (log row that the table begins with, table). Raises InputError for a foreign file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 0
    for place in log_files(path):
        name = shown(place)
        try:
            # As bytes: Arrow takes no other name that is not UTF-8.
            with pa.OSFile(os.fsencode(place)) as source, pq.ParquetFile(source) as file:
                meta = file.metadata.metadata or {}
                if meta.get(b"gpu-dedup.format") != LOG_FORMAT.encode():
                    raise InputError(f"{name}: not a removal log of gpu-dedup")
                if meta.get(b"gpu-dedup.format_version") != str(LOG_VERSION).encode():
                    found = meta.get(b"gpu-dedup.format_version", b"?").decode()
                    raise InputError(f"{name}: log format version {found}; this gpu-dedup reads version {LOG_VERSION}")
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group, columns=None if columns is None else list(columns))
                    yield first, table
                    first += table.num_rows
        except (OSError, pa.ArrowException) as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{name}: cannot be read: {why}") from None


def same_result(one: Report, other: Report) -> list[str]:
    """Names of the parts of `result` in which two reports differ; empty if the runs gave the same answer."""
    left, right = one.to_dict()["result"], other.to_dict()["result"]
    return [name for name in left if _plain(left[name]) != _plain(right.get(name))]


__all__ = [
    "REASON_WORDS",
    "Audit", "BadRow", "Collisions", "Counts", "Filter", "Group", "HeavyBucket", "InputFile", "Likeness", "Machine",
    "Member", "Miss", "RemovalLog", "Report", "Verification", "describe", "id_text", "log_files", "log_schema",
    "peak_memory", "removals", "same_result", "share_text", "short", "short_texts_warning", "versions",
]  # fmt: skip
