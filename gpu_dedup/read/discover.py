"""Which files are the input: arguments become sources, in the order that row identity leans on.

Arguments keep their order; the files of a folder or glob come in the order of their path's bytes. What a user would
regret later is refused here, before any work: a file twice, an output that would lie on top of its input.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_dedup.errors import InputError, OutputError, shown
from gpu_dedup.read import remote
from gpu_dedup.read.chunks import near_miss
from gpu_dedup.read.remote import is_remote

STANDARD = "-"  # standard input
OWNED = "_gpu_dedup"  # the folder that a run leaves beside its output; never input

# Ending (lower case) -> (format, compression). A name is matched by its longest ending.
PACKED = {"": "", ".gz": "gz", ".zst": "zst", ".zstd": "zst"}
ENDINGS: dict[str, tuple[str, str]] = {
    **{
        name + ending: (kind, compression)
        for kind, names in {
            "jsonl": (".jsonl", ".ndjson", ".json", ".jsonlines"),
            "csv": (".csv",),
            "tsv": (".tsv",),
            "txt": (".txt", ".md"),
        }.items()
        for name in names
        for ending, compression in PACKED.items()
    },
    ".parquet": ("parquet", ""),
    ".pq": ("parquet", ""),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), ("arrow", "")),
}
KNOWN = (
    ".jsonl, .ndjson, .json, .csv, .tsv, .txt and .md (also with .gz, .zst or .zstd), .parquet and .pq, .arrow, "
    ".arrows, .feather and .ipc"
)
FORMATS = ("jsonl", "csv", "tsv", "txt", "parquet", "arrow")
BY_LINE = ("jsonl", "lines")  # formats whose rows are physical lines


@dataclass(frozen=True)
class Source:
    """One input file.

    path         absolute
    rel          path under the common parent of all inputs: its place in the output
    format       'jsonl' | 'csv' | 'tsv' | 'parquet' | 'arrow' | 'txt' (a document) | 'lines' (one in each line);
                 'memory' for a column that is no file (memory.py)
    compression  '' | 'gz' | 'zst'
    size         bytes, and mtime_ns, when it was discovered: a file that differs later is refused
    """

    path: str
    rel: str
    format: str
    compression: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return shown(self.path)

    def where(self, row: int) -> str:
        """The place of a row for a message: `file:line` (from 1) of lines, `file: row` (from 0) of records."""
        if self.format == "txt":
            return self.name
        return f"{self.name}:{row + 1}" if self.format in BY_LINE else f"{self.name}: row {row}"


class StandardInput(Source):
    """What came from standard input, in a file of ours that goes at the end of the run."""

    @property
    def name(self) -> str:
        return "standard input"


def kind_of(path: str, format: str | None = None) -> tuple[str, str] | None:
    """(format, compression) by the file's ending; None where it is unknown. `format` takes the ending's place."""
    name = os.path.basename(path).lower()
    if format is not None:
        packed = "" if format in ("parquet", "arrow") else os.path.splitext(name)[1]
        return format, PACKED.get(packed, "")
    best = max((ending for ending in ENDINGS if name.endswith(ending)), key=len, default=None)
    return ENDINGS[best] if best else None


def _in_folders(files: list[str], format: str | None) -> tuple[list[str], list[str]]:
    """Which of the files below a folder, or matched by a `**`, are input, and which are not.

    Those of a known ending; with `format` those of its endings and of no known one. Plain text beside data is a README
    or a licence, so .txt and .md are input only where nothing else is, or where `format` says so.
    """
    kinds = {path: kind_of(path) for path in files}
    if format is not None:
        mine = [path for path in files if (kind := kinds[path]) is None or kind[0] == format]
    else:
        mine = [path for path in files if kinds[path] is not None]
        data = [path for path in mine if kinds[path] not in _TEXT]
        mine = data or mine
    chosen = set(mine)
    return mine, [path for path in files if path not in chosen]


_TEXT = {kind for kind in ENDINGS.values() if kind[0] == "txt"}


def discover(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None,
    passed_over: list[str] | None = None,
    format: str | None = None,
    lines: bool = False,
    spool: str | None = None,
) -> list[Source]:
    """The input files, in order.

    inputs       files, folders (with all below them that has a known ending; hidden files and folders, files that begin
                 with `_`, and `_gpu_dedup` folders are passed over), or globs (`**` reaches into folders);
                 URLs of all these, for fsspec (`remote.py`)
    output       folder that the run will write to, or None
    passed_over  gets the paths of files in folders, or matched by a `**`, that are not input (hidden files and those
                 that begin with `_` aside), see `_in_folders`: not in the output either
    format       of all files, whatever their endings (.gz and .zst still tell how they are compressed)
    lines        plain text is a document for each line, not for each file
    spool        file with what came from standard input, for the argument `-`

    Raises InputError: nothing there or nothing of a known kind, unreadable, not a regular file, the same file twice
    (also through a link), standard input without a spool. Raises OutputError where the output lies inside an input
    folder, holds an input folder, or would overwrite an input.
    """
    arguments = [os.fspath(one) for one in inputs]
    if not arguments:
        raise InputError("no input given; name files, folders or globs of .jsonl(.gz|.zst) or .parquet")
    if output is not None and not os.fspath(output):
        raise OutputError("'': an output folder without a name; name a new folder")
    unknown: list[str] = []
    paths: list[str] = []
    anchors: list[str] = []
    folders: list[str] = []
    remotes: list[str] = []  # folders among them
    remote_anchors: list[str] = []
    for argument in arguments:
        files: list[str] = []
        others: list[str] = []
        if is_remote(argument):
            named, below, folder = remote.expand(argument)
            if folder.rsplit("/", 1)[-1] == OWNED:
                raise InputError(f"{shown(argument)}: this folder holds a run's own files, not input; leave it out")
            below, over = _in_folders(below, format)
            unknown += over
            files = named + [path for path in below if not path.rsplit("/", 1)[-1].startswith("_")]
            if not files:
                raise InputError("no input in this folder", f"known endings are {KNOWN}", place=shown(argument))
            remotes.append(folder)
            remote_anchors += [folder] if folder else [path.rpartition("/")[0] for path in files]
            paths += sorted(files, key=_bytes)
            continue
        if argument == STANDARD and spool is not None:
            paths.append(spool)
            continue
        for entry in _expand(argument, others, format):
            if os.path.isdir(entry):
                if os.path.basename(os.path.abspath(entry)) == OWNED:
                    raise InputError(f"{shown(entry)}: this folder holds a run's own files, not input; leave it out")
                folders.append(entry)
                anchors.append(os.path.abspath(entry))
                files += _in_folder(entry, others, format)
            else:
                anchors.append(os.path.dirname(os.path.abspath(entry)))
                files.append(entry)
        paths += sorted(files, key=_bytes)
        unknown += sorted(others, key=_bytes)
    if passed_over is not None:
        passed_over += dict.fromkeys(unknown)
    base = os.path.commonpath(anchors) if anchors else ""
    remote_base = _common(remote_anchors)
    if output is not None and is_remote(os.fspath(output)):
        _check_remote_output(os.fspath(output), remotes, paths)
        output = None
    elif output is not None:
        _check_output(os.fspath(output), folders)
    seen: dict[tuple[int, int], str] = {}
    sources: list[Source] = []
    for path in paths:
        if is_remote(path):
            sources.append(_remote_source(path, remote_base, format, lines))
            continue
        info = _stat(path)
        if path == spool:
            sources.append(_standard(path, info, format, lines))
            continue
        other = seen.get((info.st_dev, info.st_ino))
        if other is not None:
            same = (
                "is given twice"
                if os.path.abspath(other) == os.path.abspath(path)
                else f"is the same as {shown(other)}"
            )
            raise InputError(f"{shown(path)}: this file {same}; name each input once")
        seen[info.st_dev, info.st_ino] = path
        kind = kind_of(path, format)
        if kind is None:
            raise InputError(
                f"{shown(path)}: unknown kind of file; known endings are {KNOWN}; or say what it is with --format"
            )
        if lines and kind[0] == "txt":
            kind = "lines", kind[1]
        rel = os.path.relpath(os.path.abspath(path), base)
        if rel.split(os.sep)[0] == OWNED:
            raise InputError(
                f"{shown(path)}: a folder {OWNED} holds a run's own files, not input; move the file out of it"
            )
        if output is not None and os.path.realpath(os.path.join(output, rel)) == os.path.realpath(path):
            raise OutputError(
                f"{shown(os.fspath(output))}: it would overwrite the input {shown(path)}; choose another output folder"
            )
        sources.append(Source(os.path.abspath(path), rel, *kind, info.st_size, info.st_mtime_ns))
    rels = [source.rel for source in sources]
    for source in sources:
        if is_remote(source.path) and rels.count(source.rel) > 1:
            raise InputError(
                f"{source.name}: two inputs would be {source.rel} in the output; "
                "name each input once, or run them apart"
            )
        if isinstance(source, StandardInput) and rels.count(source.rel) > 1:
            raise InputError(
                f"{source.rel}: is what standard input is called in the output; rename the file of this name"
            )
    return sources


def _standard(path: str, info: os.stat_result, format: str | None, lines: bool) -> Source:
    """Standard input: JSON lines if nothing else is said, compressed if it looks so."""
    kind = format or "jsonl"
    with open(path, "rb") as file:
        head = file.read(4)
    packed = ""
    if kind not in ("parquet", "arrow"):
        packed = "gz" if head.startswith(b"\x1f\x8b") else "zst" if head == b"\x28\xb5\x2f\xfd" else ""
    rel = f"stdin.{kind}" + (f".{packed}" if packed else "")
    return StandardInput(
        os.path.abspath(path), rel, "lines" if lines and kind == "txt" else kind, packed, info.st_size, info.st_mtime_ns
    )


def _common(urls: Sequence[str]) -> str:
    """The folder that all URLs have in common, up to its last slash; '' for none."""
    if not urls:
        return ""
    parts = [url.split("/") for url in urls]
    count = 0
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        count += 1
    return "/".join(parts[0][:count]) + "/"


def _remote_source(url: str, base: str, format: str | None, lines: bool) -> Source:
    plain = url.partition("?")[0] if remote.scheme(url) in ("http", "https") else url
    kind = kind_of(plain, format)
    if kind is None:
        raise InputError(
            f"{shown(url)}: unknown kind of file; known endings are {KNOWN}; or say what it is with --format"
        )
    size, stamp = remote.state(url)
    rel = plain.removeprefix(base) if base.count("/") > 2 else plain.partition("://")[2]
    rel = "/".join(part for part in rel.split("/") if part not in ("", ".", ".."))
    return Source(url, rel, "lines" if lines and kind[0] == "txt" else kind[0], kind[1], size, stamp)


def _check_remote_output(output: str, folders: Sequence[str], files: Sequence[str]) -> None:
    target = remote.canonical(output) + "/"
    for url in (*folders, *files):
        inside = url in folders and target.startswith(url + "/")
        if url and (inside or (url + "/").startswith(target)):
            raise OutputError(
                f"{shown(output)}: it and the input {shown(url)} lie in one another; choose another folder"
            )


def _bytes(path: str) -> bytes:
    return os.fsencode(path)


def _refused(path: str, error: OSError) -> InputError:
    """What the system does not let us look at, in one line."""
    if isinstance(error, PermissionError):
        return InputError("no permission to read", "change it or leave out the file", place=shown(path))
    why = error.strerror or str(error) or type(error).__name__
    return InputError(f"cannot be read: {why}", "mend or leave it out", place=shown(path))


def _expand(argument: str, others: list[str], format: str | None) -> list[str]:
    """The argument itself, or what it matches as a glob. `others` gets files that match but are of no known kind."""
    if argument == STANDARD:
        raise InputError("-: standard input is for `gpu-dedup run`; save it to a file first")
    if not argument:
        raise InputError("'': an input without a name; name a file, a folder or a glob")
    try:
        os.stat(argument)
        return [argument]
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if not glob.has_magic(argument) or os.path.lexists(argument):
            raise _refused(argument, error) from error
    except ValueError:  # a NUL in it
        pass
    if os.path.lexists(argument):
        raise InputError(f"{shown(argument)}: a link to something that is not there; mend or leave out the link")
    if not glob.has_magic(argument):
        raise InputError(f"{shown(argument)}: no such file or folder; {_meant(argument)}")
    matches = sorted(set(glob.glob(argument, recursive=True)), key=_bytes)
    if OWNED not in argument:
        matches = [match for match in matches if OWNED not in match.split(os.sep)]
    if not matches:
        raise InputError(f"{shown(argument)}: no file matches; check the pattern")
    if "**" in argument:  # it gives a folder and, once more, all that is in it
        matches = [match for match in matches if not os.path.isdir(match)]
        matches, over = _in_folders(matches, format)
        others += [match for match in over if _ordinary(match)]
        if not matches:
            raise InputError(f"{shown(argument)}: no file of a known kind matches; known endings are {KNOWN}")
    return matches


def _meant(path: str) -> str:
    """The remedy for a name that is not there: the one beside it that it may stand for, if there is one."""
    folder, name = os.path.split(path.rstrip("/"))
    try:
        names = [entry for entry in os.listdir(folder or ".") if not entry.startswith(".")]
    except (OSError, ValueError):
        return "check the name"
    close = near_miss(names, [name])
    return f"is it {shown(os.path.join(folder, close))}?" if close else "check the name"


def _ordinary(path: str) -> bool:
    """True for a file that somebody may have meant as input."""
    return not os.path.basename(path).startswith((".", "_")) and os.path.isfile(path)


def _in_folder(folder: str, others: list[str], format: str | None) -> list[str]:
    found, over = _in_folders(list(_walk(folder, ())), format)
    others += [path for path in over if _ordinary(path)]
    found = [path for path in found if not os.path.basename(path).startswith("_")]
    if format is not None:
        found = [path for path in found if kind_of(path) is not None or _ordinary(path)]
    if not found:
        raise InputError(f"{shown(folder)}: no input in this folder; known endings are {KNOWN}")
    return found


def _walk(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Files below a folder, hidden ones aside; links to folders are followed, but never round in a circle."""
    try:
        info = os.stat(folder)
        entries = list(os.scandir(folder))
    except OSError as error:
        raise _refused(folder, error) from error
    here = (info.st_dev, info.st_ino)
    if here in above:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            is_folder = entry.is_dir()
        except OSError as error:  # links: round in a circle, too long a name, through a folder that is closed to us
            raise _refused(entry.path, error) from error
        if is_folder:
            if entry.name != OWNED:
                yield from _walk(entry.path, (*above, here))
        else:
            yield entry.path


def _stat(path: str) -> os.stat_result:
    try:
        info = os.stat(path)
    except OSError as error:
        raise _refused(path, error) from error
    if not stat.S_ISREG(info.st_mode):
        raise InputError(
            f"{shown(path)}: not a regular file, and the input is read twice; save what comes from it to a file first"
        )
    if not os.access(path, os.R_OK):
        raise InputError(f"{shown(path)}: no permission to read; change it or leave out the file")
    return info


def _check_output(output: str, folders: Sequence[str]) -> None:
    target = os.path.realpath(output)
    for folder in folders:
        source = os.path.realpath(folder)
        if source == target:
            raise OutputError(f"{shown(output)}: the output is the input folder; choose another output folder")
        if os.path.commonpath([source, target]) == source:
            raise OutputError(
                f"{shown(output)}: the output lies inside the input folder {shown(folder)}; choose one outside it"
            )
        if os.path.commonpath([source, target]) == target:
            raise OutputError(
                f"{shown(output)}: the input folder {shown(folder)} lies inside the output; choose another one"
            )
