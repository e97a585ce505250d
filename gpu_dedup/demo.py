"""The main job on real text that this machine has anyway: licences, READMEs, package metadata, sources, manual pages.

Nothing is downloaded. The same machine gives the same texts, so the same result.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpu_dedup.errors import OutputError, UserError, disk_error
from gpu_dedup.progress import Progress, bytes_text
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import removals
from gpu_dedup.run import Run

SHARD_BYTES = 8 << 20
LEAST, MOST = 64, 256 << 10  # bytes of a text that is taken
MARKER = ".gpu-dedup-demo"  # in the folder, so that a later demo may replace this one
INPUT, OUTPUT = "input", "output"

# Kinds in order, and the share of the limit that each may take; the last may take all that the others left.
SHARES = {"licences": 0.25, "docs": 0.25, "manual": 0.15, "sources": 1.0}
_LICENCE = ("licen", "copying", "copyright", "notice", "authors")
_DOC_ENDINGS = (".md", ".rst", ".txt")
_SOURCE_ENDINGS = (".py", ".pyi")


@dataclass
class Kind:
    """One kind of text, and its files; shards are named after it."""

    name: str
    share: float
    paths: list[str] = field(default_factory=list)


def kind_of(path: str) -> str | None:
    """Which kind of text a file is, by its name; None for what is not taken."""
    name = os.path.basename(path).lower()
    stem, ending = os.path.splitext(name)
    folder = os.path.basename(os.path.dirname(path)).lower()
    if name == "pkg-info" or (name == "metadata" and folder.endswith((".dist-info", ".egg-info"))):
        return "docs"
    if ending in _SOURCE_ENDINGS:
        return "sources"
    if any(word in stem for word in _LICENCE) and ending not in (".h", ".c", ".json", ".html", ".so", ".pyc"):
        return "licences"
    if ending in _DOC_ENDINGS:
        return "docs"
    return "docs" if stem.startswith(("readme", "changelog", "changes", "news")) and ending in ("", ".gz") else None


def roots() -> list[tuple[str, str | None]]:
    """Folders to look in, and the kind of everything in them where their place says it."""
    found: list[tuple[str, str | None]] = [
        ("/usr/share/common-licenses", "licences"),
        ("/usr/share/doc", None),
        ("/usr/share/man/man1", "manual"),
        ("/usr/share/man/man7", "manual"),
        ("/usr/share/man/man8", "manual"),
    ]
    places = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    # Inside a virtual environment the interpreter it was made from has packages of its own: other copies of pip, say.
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    places += [sysconfig.get_path(name, vars=base) for name in ("purelib", "platlib", "stdlib")]
    places.append("/usr/lib/python3/dist-packages")
    found += [(place, None) for place in dict.fromkeys(os.path.realpath(p) for p in places if p)]
    return found


def gather() -> list[Kind]:
    """Every file that would be taken, by kind, in a fixed order. A file is listed once, however many names it has."""
    kinds = {name: Kind(name, share) for name, share in SHARES.items()}
    places: dict[str, str] = {}  # path: its place below its root
    seen: set[tuple[int, int]] = set()
    done: set[str] = set()
    for root, forced in roots():
        for folder, below, names in os.walk(root):
            if folder in done:  # site-packages lies inside the folder of the standard library
                below.clear()
                continue
            done.add(folder)
            below[:] = sorted((name for name in below if name != "__pycache__"), key=os.fsencode)
            for name in sorted(names, key=os.fsencode):
                path = os.path.join(folder, name)
                name_of_kind = forced or kind_of(path)
                if name_of_kind is None:
                    continue
                try:
                    info = os.lstat(path)
                except OSError:
                    continue
                if not stat.S_ISREG(info.st_mode) or not LEAST <= info.st_size <= MOST:
                    continue
                if (info.st_dev, info.st_ino) in seen:
                    continue
                seen.add((info.st_dev, info.st_ino))
                kinds[name_of_kind].paths.append(path)
                places[path] = os.path.relpath(path, root)
    # By place, so that copies of one package in two installations stand together, inside any limit.
    for kind in kinds.values():
        kind.paths.sort(key=lambda path: (os.fsencode(places[path]), os.fsencode(path)))
    return list(kinds.values())


def read_text(path: str) -> str | None:
    """The text of a file; None if it is not UTF-8, holds NUL, or cannot be read."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST + 1)
        if path.endswith(".gz"):
            raw = zlib.decompressobj(31).decompress(raw, MOST)
        if b"\0" in raw or len(raw) > MOST:
            return None
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError, zlib.error):
        return None


def texts(limit: int) -> Iterator[tuple[str, str, str]]:
    """(kind, path, text) of up to `limit` bytes, kind by kind."""
    spare = float(limit)
    for kind in gather():
        mine = min(spare, kind.share * limit)
        for path in kind.paths:
            text = read_text(path)
            if text is None:
                continue
            size = len(text.encode())
            if size > mine:
                break
            mine -= size
            spare -= size
            yield kind.name, path, text


def write_shards(folder: str, limit: int) -> tuple[list[str], int, int]:
    """JSON lines {id: path, text} below `folder`: (shards, documents, bytes of text)."""
    os.makedirs(folder)
    shards: list[str] = []
    documents = size = room = number = 0
    current = ""
    file: Any = None
    try:
        for kind, path, text in texts(limit):
            line = json.dumps(
                {"id": os.fsencode(path).decode("utf-8", "backslashreplace"), "text": text}, ensure_ascii=False
            )
            if kind != current or room <= 0:
                if file is not None:
                    file.close()
                number = 0 if kind != current else number + 1
                current, room = kind, SHARD_BYTES
                shards.append(os.path.join(folder, f"{kind}-{number:02d}.jsonl"))
                file = open(shards[-1], "w", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed below, or here
            file.write(line + "\n")
            room -= len(line)
            documents += 1
            size += len(text.encode())
    finally:
        if file is not None:
            file.close()
    return shards, documents, size


def prepare(folder: str) -> None:
    """Make the folder, or empty that of an earlier demo. Raises OutputError for a folder that is something else."""
    if os.path.isdir(folder) and os.listdir(folder):
        if not os.path.exists(os.path.join(folder, MARKER)):
            raise OutputError(f"{folder}: not empty, and not of an earlier demo; name a new folder with -o DIR")
        earlier = os.path.join(folder, INPUT)
        for name in os.listdir(earlier) if os.path.isdir(earlier) else []:
            if name.endswith(".jsonl"):
                os.remove(os.path.join(earlier, name))
        if os.path.isdir(earlier):
            os.rmdir(earlier)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, MARKER), "w", encoding="ascii") as file:
        file.write("made by gpu-dedup demo; may be deleted\n")


def choose(output: str, most: int = 3) -> list[int]:
    """Numbers of a few telling rows of the log: the least similar near copy, one in the middle, and an exact copy.

    Texts of a size that can be read on a screen come first.
    """
    exact: list[int] = []
    near: list[tuple[float, int]] = []
    handy: list[tuple[float, int]] = []
    for first, table in removals(output, ("reason", "similarity", "union")):
        columns: dict[str, list[Any]] = table.to_pydict()
        for i in range(table.num_rows):
            if columns["reason"][i] == "exact":
                exact.append(first + i)
            elif columns["reason"][i] == "near":
                near.append((columns["similarity"][i], first + i))
                if 40 <= columns["union"][i] <= 400:
                    handy.append(near[-1])
    if len(handy) >= most:
        near = handy
    near.sort()
    picked = [near[0][1], near[len(near) // 2][1]] if len(near) > 1 else [number for _, number in near]
    picked += exact[len(exact) // 2 :][:1]
    for number in [number for _, number in near[1:]] + exact:
        if len(picked) >= most:
            break
        if number not in picked:
            picked.append(number)
    return picked[:most]


def demo(folder: str, limit: int, run: Run, say: Callable[[str], None], color: bool = False) -> None:
    """Gather texts into folder/input, deduplicate them into folder/output, say the summary and show three removals."""
    from gpu_dedup.pipeline import dedup
    from gpu_dedup.show import show, terminal_width

    progress = Progress(run.progress)  # for gathering; the run keeps times of its own
    source, output = os.path.join(folder, INPUT), os.path.join(folder, OUTPUT)
    try:
        prepare(folder)
        with progress.stage("gather"):
            shards, documents, size = write_shards(source, limit)
    except OSError as error:
        raise disk_error(error, str(error.filename or folder), "another folder with -o DIR") from error
    if not documents:
        raise UserError("no readable text was found on this machine; run gpu-dedup run on files of your own")
    say(f"{documents:,} texts of this machine, {bytes_text(size)}, in {len(shards)} shards below {source}\n")
    run = Run(**{**vars(run), "overwrite": True})
    report = dedup(shards, output, Recipe(), run, Progress(run.progress))
    say(report.summary())
    if report.machine.dry_run:
        return
    columns = terminal_width()
    for number in choose(output):
        say("=" * columns)
        say(show(output, str(number), width=columns, color=color, most=24))
    say(f"\nMore of them: gpu-dedup show {output} ROW, with ROW from 0 to {report.counts.removed - 1:,}")
