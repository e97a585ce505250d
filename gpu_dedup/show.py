"""A removed row beside the row that stays for it, with what they share and where they differ.

The texts are read again from the inputs that report.json names, and the similarity is worked out anew: if it is not
what the log says, the file is not the one that was deduplicated, and the text says so.
"""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_dedup.batch import Tape
from gpu_dedup.errors import InputError, shown
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import InputFile, Report, removals, short, utf8
from gpu_dedup.spans import DIFFERENT, SHARED, Span, reflow, safe, spans, tidy, tokens

_LONGEST = 4 << 20  # characters of a text that are looked at; the rest is cut off, and the screen says so


# ---------------------------------------------------------------------------------------------------------------------
# The screen.


def char_width(char: str) -> int:
    """Columns of a character on a terminal: 0 for marks that sit on another, 2 for wide East Asian ones, else 1."""
    if " " <= char <= "~":
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def text_width(text: str) -> int:
    return sum(map(char_width, text))


@dataclass(frozen=True)
class Style:
    """How a differing stretch is marked, by side."""

    left: tuple[str, str]
    right: tuple[str, str]
    dim: tuple[str, str]
    bold: tuple[str, str]
    marks: bool  # marks take columns, colours do not


COLORS = Style(
    ("\x1b[1;31m", "\x1b[0m"), ("\x1b[1;32m", "\x1b[0m"), ("\x1b[2m", "\x1b[0m"), ("\x1b[1m", "\x1b[0m"), False
)
MARKS = Style(("[-", "-]"), ("{+", "+}"), ("", ""), ("", ""), True)


class _Column:
    """Lines of one side, wrapped at blanks where there are any; wide characters count twice."""

    def __init__(self, width: int, mark: tuple[str, str], marks: bool) -> None:
        self.width = width
        self.mark = mark
        self.marks = marks
        self.lines: list[str] = []
        self._line: list[str] = []
        self._used = 0
        self._open = False
        self._soft = False  # the line was begun because the one before it was full

    def add(self, text: str, marked: bool) -> None:
        if not text:
            return
        for piece in tokens(text):
            if piece == "\n":
                if marked:
                    self._put("\u21b5", marked)  # a line end that only one side has would be invisible
                self.end_line()
                continue
            width = text_width(piece)
            room = self.width - self._used - self._reserve(marked)
            if width > room and self._used and not piece.isspace() and width <= self.width - 4:
                self._break()
            if piece.isspace() and not marked and self._used + width > self.width:
                self._break()
            if piece.isspace() and not marked and not self._used and self._soft:
                continue  # a blank at which the line was broken
            self._put(piece, marked)
        self._close()

    def _reserve(self, marked: bool) -> int:
        return 0 if not (marked and self.marks) else 2 if self._open else 4

    def _put(self, piece: str, marked: bool) -> None:
        for char in piece:
            if self._used + char_width(char) + self._reserve(marked) > self.width:
                self._break()
            if marked and not self._open:
                self._line.append(self.mark[0])
                self._used += 2 if self.marks else 0
                self._open = True
            self._line.append(char)
            self._used += char_width(char)

    def _close(self) -> None:
        if self._open:
            self._line.append(self.mark[1])
            self._used += 2 if self.marks else 0
            self._open = False

    def _break(self) -> None:
        """Go on in the next line, because this one is full."""
        self._flush()
        self._soft = True

    def _flush(self) -> None:
        self._close()
        text = "".join(self._line)
        self.lines.append(text + " " * max(0, self.width - self._used))
        self._line = []
        self._used = 0

    def end_line(self) -> None:
        self._flush()
        self._soft = False

    def finish(self) -> None:
        if self._line:
            self.end_line()


def side_by_side(
    parts: Sequence[Span], width: int, style: Style, full: bool = False, most: int | None = None
) -> list[str]:
    """Lines of two columns. Without `full`, long shared and long differing stretches are cut to their ends.

    most  lines after which the rest is left out, or None
    """
    half = (width - 3) // 2
    rows: list[str] = []
    left, right = _Column(half, style.left, style.marks), _Column(half, style.right, style.marks)

    def settle() -> None:
        """Level the columns: what follows begins on the same line."""
        left.finish()
        right.finish()
        count = max(len(left.lines), len(right.lines))
        for column in (left, right):
            column.lines += [" " * half] * (count - len(column.lines))
        rows.extend(
            f"{one} {style.dim[0]}|{style.dim[1]} {other}".rstrip()
            for one, other in zip(left.lines, right.lines, strict=True)
        )
        left.lines, right.lines = [], []

    for index, part in enumerate(parts):
        one, other = safe(part.left), safe(part.right)
        if part.kind == SHARED and not full:
            first, last = index == 0, index == len(parts) - 1
            cut = _cut_shared(one, other, half, first, last)
            if cut is not None:
                for piece_left, piece_right, note in cut:
                    if note:
                        settle()
                        rows.append(f"{style.dim[0]}{note.center(width).rstrip()}{style.dim[1]}")
                    else:
                        left.add(piece_left, False)
                        right.add(piece_right, False)
                continue
        if part.kind == SHARED and len(one) > half and (left.lines or right.lines):
            settle()
        marked = part.kind == DIFFERENT
        left.add(one if full or not marked else _cut_different(one, half), marked)
        right.add(other if full or not marked else _cut_different(other, half), marked)
    settle()
    if most is not None and len(rows) > most:
        rest = len(rows) - most
        rows = [*rows[:most], f"{style.dim[0]}{f'... {rest} more lines ...'.center(width).rstrip()}{style.dim[1]}"]
    return rows


def _cut_shared(one: str, other: str, half: int, first: bool, last: bool) -> list[tuple[str, str, str]] | None:
    """A long shared stretch as: its beginning, a note on what is left out, its end. None for a short one."""
    keep = 2 * half
    if len(one) <= 3 * keep or len(other) <= 3 * keep:
        return None
    head = keep if not first or last else 0
    tail = keep if not last else 0
    note = f"... {len(one) - head - tail:,} shared characters ..."
    parts = [(_at_blank(one[: head + 1], False), _at_blank(other[: head + 1], False), "")] if head else []
    parts.append(("", "", note))
    if tail:
        parts.append((_at_blank(one[-tail - 1 :], True), _at_blank(other[-tail - 1 :], True), ""))
    return parts


def _at_blank(text: str, tail: bool) -> str:
    """A piece of text without the word that its cut end goes through, if a blank is near."""
    if tail:
        found = re.search(r"\s", text[:20])
        return text[found.end() :] if found else text[1:]
    found = re.search(r"\s\S*$", text[-20:])
    return text[: len(text) - min(20, len(text)) + found.start()] if found else text[:-1]


def _cut_different(text: str, half: int) -> str:
    keep = 5 * half
    if len(text) <= 3 * keep:
        return text
    return f"{text[:keep]} ...({len(text) - 2 * keep:,} more)... {text[-keep:]}"


def terminal_width() -> int:
    return max(60, min(200, shutil.get_terminal_size((100, 24)).columns))


# ---------------------------------------------------------------------------------------------------------------------
# Which row, and its texts.


@dataclass(frozen=True)
class Removal:
    """One row of the log, and its place in it."""

    number: int
    values: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def find(folder: str, row: str, report: Report) -> tuple[Removal, int]:
    """The row of the log that `row` names, and how many more rows have the same id.

    row  the number of a line of the log (from 0), FILE:ROW, or an id; `id:X` is an id whatever it looks like
    Raises InputError if there is none.
    """
    import pyarrow.compute as pc

    if row.isascii() and row.isdigit():
        found = _by_number(folder, int(row))
        if found is not None:
            return found, 0
    place, _, number = row.rpartition(":")
    if place and number.isascii() and number.isdigit() and not row.startswith("id:"):
        name = _input_name(place, report)
        if name is not None:
            for first, table in removals(folder):
                mask = pc.and_(pc.equal(table["file"], name), pc.equal(table["row"], int(number)))
                at = pc.index(mask, True).as_py()
                if at >= 0:
                    return Removal(first + at, table.slice(at, 1).to_pylist()[0]), 0
            file = next(entry for entry in report.inputs if entry.rel == name)
            raise InputError(
                f"{name} row {number}: not in the log, so this row stayed (or {file.rows:,} rows are all there are)"
            )
    wanted = row[3:] if row.startswith("id:") else row
    result: Removal | None = None
    more = 0
    total = 0
    for first, table in removals(folder):
        total = first + table.num_rows
        mask = pc.fill_null(pc.equal(table["id"], utf8(wanted)), False)
        count = pc.sum(mask).as_py() or 0
        if count and result is None:
            at = pc.index(mask, True).as_py()
            result = Removal(first + at, table.slice(at, 1).to_pylist()[0])
            count -= 1
        more += count
    if result is None:
        raise InputError(
            f"{row}: neither a line of the log (it has {total:,}), nor FILE:ROW, nor the id of a removed row; "
            "rows count from 0"
        )
    return result, more


def _by_number(folder: str, number: int) -> Removal | None:
    for first, table in removals(folder):
        if number < first + table.num_rows:
            return Removal(number, table.slice(number - first, 1).to_pylist()[0])
    return None


def _input_name(place: str, report: Report) -> str | None:
    """The name in the log of an input that is given as there, or by its path."""
    for entry in report.inputs:
        if utf8(place) == utf8(entry.rel) or os.path.abspath(place) == entry.path:
            return utf8(entry.rel)
    return None


class MissingInputError(InputError):
    """An input of the run is not there any more. `text`: what can be shown without it."""

    text = ""


@dataclass(frozen=True)
class Text:
    """The text of one row as the input has it now, or why there is none."""

    text: str
    problem: str = ""


def read_texts(places: Sequence[tuple[str, int]], report: Report) -> list[Text]:
    """Texts of rows (file as in the log, row), read from the inputs of the run. Raises MissingInputError."""
    by_name = {utf8(entry.rel): entry for entry in report.inputs}
    rows: dict[str, set[int]] = {}
    for name, row in places:
        rows.setdefault(name, set()).add(row)
    texts: dict[tuple[str, int], Text] = {}
    for name, wanted in rows.items():
        entry = by_name.get(name)
        if entry is None:
            raise InputError(f"{name}: the report names no such input; log and report are of different runs")
        texts.update(((name, row), text) for row, text in _read_file(entry, sorted(wanted), report).items())
    return [texts[place] for place in places]


def _read_file(entry: InputFile, rows: list[int], report: Report) -> dict[int, Text]:
    from gpu_dedup.backend import host_backend
    from gpu_dedup.read import Source, read_rows, state_of

    if entry.path == "-":
        raise MissingInputError(
            "is gone with the run, and the texts are read from the input of the run",
            "save it to a file and name that, to see texts later",
            place="standard input",
        )
    try:
        size, stamp = state_of(entry.path)
    except OSError as error:
        raise MissingInputError(
            f"{error.strerror}, and the texts are read from the input of the run",
            "put the file back where it was",
            place=shown(entry.path),
        ) from None
    if size != entry.size:
        why = f"{shown(entry.path)}: changed since the run ({size:,} bytes, then {entry.size:,})"
        return {row: Text("", why) for row in rows}
    source = Source(entry.path, entry.rel, entry.format, entry.compression, size, stamp)
    try:
        recipe = Recipe.from_dict(report.recipe)
        listed = recipe.pretokenized is not None
        found = read_rows(source, rows, recipe.texts_from, (), host_backend("numpy"), listed)
    except InputError as error:
        return {row: Text("", f"{error} (changed since the run)") for row in rows}
    out = {}
    for row in rows:
        raw = found[row][0] if row in found else None
        if raw is None:
            out[row] = Text("", f"{utf8(entry.rel)} row {row}: has no usable text")
        else:
            out[row] = Text(raw.decode("utf-8", "surrogatepass"))
    return out


def recount(removed: str, kept: str, recipe: Recipe) -> tuple[int, int] | None:
    """(shared, union) of two texts by the recipe's own measure; None where it is not a count of true sets."""
    from gpu_dedup.outlook import similarity

    if not recipe.near or recipe.verify != "exact" or recipe.stop_shingles:
        return None
    result = similarity(removed, kept, recipe, [recipe.shingle])[0]
    return result.shared, result.union


def plain(text: str) -> str:
    """What the normaliser's step html leaves of a text."""
    from gpu_dedup.backend import host_backend
    from gpu_dedup.normalise import step_bits

    return host_backend("numpy").normalise(Tape.of([text]), step_bits(["html"])).to_list()[0]


def _keys(left: str, right: str, recipe: Recipe) -> tuple[list[Any], list[Any]]:
    """What the normaliser makes of each token: what it does not tell apart is not marked as different."""
    from gpu_dedup.backend import host_backend
    from gpu_dedup.normalise import step_bits

    sides = [tokens(left), tokens(right)]
    different = sorted(set(sides[0]) | set(sides[1]))
    steps = [step for step in recipe.steps if step != "html"]  # done before: it looks at more than single tokens
    tape = host_backend("numpy").normalise(Tape.of(different), step_bits(steps))
    key = {token: tape[i] for i, token in enumerate(different)}
    return [key[token] for token in sides[0]], [key[token] for token in sides[1]]


def show(
    folder: str, row: str, *, width: int = 100, color: bool = False, full: bool = False, most: int | None = None
) -> str:
    """The text of `gpu-dedup show`.

    folder  output folder of a finished run
    row     see `find`
    most    lines of text after which the rest is left out, or None

    Raises InputError for a row that is not in the log, MissingInputError for one whose text, or its witness's, is gone.
    """
    report = Report.load(folder)
    removal, more = find(folder, row, report)
    lines: list[str] = []
    try:
        lines.extend(_show(report, removal, width, COLORS if color else MARKS, full, most))
    except MissingInputError as error:
        error.text = "\n".join(lines) + "\n"
        raise
    if more:
        lines.append(f"{more:,} more removed {'row has' if more == 1 else 'rows have'} this id; name one by FILE:ROW")
    return "\n".join(lines) + "\n"


def _show(report: Report, removal: Removal, width: int, style: Style, full: bool, most: int | None) -> Iterator[str]:
    recipe = Recipe.from_dict(report.recipe)
    word = "flagged" if removal["action"] == "flag" else "removed"
    yield f"{style.bold[0]}{word:<8}{style.bold[1]} {_name(removal, '')}"
    if removal["kept_file"] is not None:
        stays = "kept" if removal["witness_kept"] else "copy"
        yield f"{style.bold[0]}{stays:<8}{style.bold[1]} {_name(removal, 'kept_')}"
    yield f"{style.bold[0]}{'why':<8}{style.bold[1]} {_why(removal, recipe)}"
    if removal["linked_file"] is not None:
        near = removal["linked_similarity"]
        yield (
            f"{style.bold[0]}{'linked':<8}{style.bold[1]} by {safe(removal['linked_file'])} row {removal['linked_row']}"
            + (f", similarity {near:.4f}" if near is not None else "")
        )
    rule = f"{style.dim[0]}{'-' * width}{style.dim[1]}"
    if removal["kept_file"] is None:
        (text,) = read_texts([(removal["file"], removal["row"])], report)
        yield rule
        yield from [text.problem] if text.problem else safe(text.text).split("\n")[: most or (None if full else 40)]
        return
    left, right = read_texts([(removal["file"], removal["row"]), (removal["kept_file"], removal["kept_row"])], report)
    problems = [text.problem for text in (left, right) if text.problem]
    if problems:
        yield rule
        yield from problems
        return
    yield from _doubts(removal, left.text, right.text, recipe)
    yield rule
    one, other = left.text[:_LONGEST], right.text[:_LONGEST]
    if recipe.pretokenized is not None:
        from gpu_dedup.read.items import shown_text

        one, other = shown_text(one), shown_text(other)
    if "html" in recipe.steps:
        yield "(as the step html leaves them: without tags, references decoded)"
        one, other = (plain(text) for text in (one, other))
    if recipe.trims:
        yield f"(whole texts; compared: {_trimming(recipe)})"
    if not full and {"whitespace", "nospace"} & set(recipe.steps):
        one, other = reflow(one), reflow(other)
    yield from side_by_side(tidy(spans(one, other, _keys(one, other, recipe))), width, style, full, most)
    if len(left.text) > _LONGEST or len(right.text) > _LONGEST:
        yield f"(only the first {_LONGEST:,} characters)"


def _trimming(recipe: Recipe) -> str:
    """What is compared of the texts, in words."""
    parts = []
    if recipe.strip:
        parts.append(f"without the {len(recipe.strip):,} strings of --strip at their ends")
    if recipe.max_chars is not None:
        parts.append(f"the first {recipe.max_chars:,} characters, up to the end of a sentence")
    return ", ".join(parts)


def _name(removal: Removal, prefix: str) -> str:
    name = f"{safe(removal[prefix + 'file'])} row {removal[prefix + 'row']}"
    text = removal[prefix + "id"]
    return name if text is None else f"{name}  id {short(text, 120)}"


def _why(removal: Removal, recipe: Recipe) -> str:
    text = str(removal["reason"])
    if removal["similarity"] is not None:
        text += f", similarity {removal['similarity']:.4f}"
        if removal["shared"] is not None:
            what = {"edit": "characters", "signature": "sketch slots"}.get(recipe.verify, f"{recipe.shingle} shingles")
            text += f" = {removal['shared']:,} of {removal['union']:,} {what}"
    elif removal["reason"] == "key":
        text += f": equal {recipe.key_field}" + (
            "" if removal["linked_file"] is None else f" with {_name(removal, 'linked_')}, which went for this one"
        )
    elif removal["kept_file"] is not None:
        text += ", similarity not measured"
    elif removal["reason"] == "bloom":
        text += ": the filter has seen it, or by chance says so; which row it was like is not known"
    if removal.values.get("distance") is not None:  # logs of older versions lack it
        bits = removal["distance"]
        text += f", distance {bits} {'bit' if bits == 1 else 'bits'}"
    if removal.values.get("edit_similarity") is not None:
        text += f", edit similarity {removal['edit_similarity']:.4f}"
    if removal.values.get("level") is not None:
        text += f", level {removal['level']}"
    return text + (f", guarantee {removal['guarantee']}" if removal["guarantee"] else "")


def _doubts(removal: Removal, left: str, right: str, recipe: Recipe) -> Iterator[str]:
    """Say so if the texts are not those of the run."""
    if removal["reason"] == "exact":
        one, other = (bytes(key) for key in _whole(left, right, recipe))
        if one != other:
            yield "changed: these texts are not equal any more: an input file was changed since the run"
    elif removal["shared"] is not None and removal["linked_file"] is None:
        found = recount(left, right, recipe)
        if found is not None and found != (removal["shared"], removal["union"]):
            yield (f"changed: {found[0]:,} of {found[1]:,} shingles are shared now: an input was changed since the run")


def _whole(left: str, right: str, recipe: Recipe) -> tuple[bytes, bytes]:
    from gpu_dedup.backend import host_backend
    from gpu_dedup.normalise import Normaliser

    backend = host_backend("numpy")
    tape = Normaliser.of(recipe, backend)(Tape.of([left, right]), backend)
    return tape[0], tape[1]
