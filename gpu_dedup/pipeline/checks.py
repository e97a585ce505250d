"""What a run refuses: settings that do not go together, fields that nobody has, more removals than anybody expects."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from gpu_dedup.batch import ROW_TEXT
from gpu_dedup.errors import RecipeError, RunError, shown
from gpu_dedup.pipeline.outcome import BLOOM, Outcome
from gpu_dedup.pipeline.survey import Survey
from gpu_dedup.read import STANDARD, Source, fields_here, first_fields
from gpu_dedup.read.remote import is_remote
from gpu_dedup.recipe import PPM, STREAMED, Recipe
from gpu_dedup.report import share_text
from gpu_dedup.run import Run

GUARD_FROM_ROWS = 1000  # --max-removed does not judge smaller inputs


def check_output(target: str | None, recipe: Recipe, run: Run) -> str | None:
    """The folder that something is written to, or None; refuses what does not go together."""
    if target != STANDARD:
        if run.report is not None:
            raise RunError("report names a folder for what -o - leaves; here it is in the output folder: drop --report")
    elif run.dry_run:
        raise RunError("dry-run writes nothing, and -o - is standard output; drop one of the two options")
    elif run.write == "mask" or run.keep_removed:
        option = "--write mask" if run.write == "mask" else "--keep-removed"
        raise RunError(f"{option} needs a folder, and -o - is standard output; name a folder with -o DIR")
    if run.keep_removed and recipe.limit is not None:
        raise RunError("keep-removed is for getting all of the input back, and --limit leaves rows out; drop one")
    place = run.report if target == STANDARD else target
    for option, path in (("bloom", run.bloom), ("save-df-table", run.save_df_table)):
        if path is not None and place is not None and not is_remote(place):
            root = os.path.realpath(place)
            if os.path.commonpath([root, os.path.realpath(path)]) == root:
                raise RunError(f"{option} {shown(path)}: lies in the output folder; name a file outside of it")
    return place


def check_stream(sources: Sequence[Source]) -> None:
    """Only lines can be put one after the other."""
    for source in sources:
        single = source.format in ("csv", "tsv") and len(sources) == 1
        if source.format not in ("jsonl", "lines") and not single:
            why = "files of CSV have a header each" if source.format in ("csv", "tsv") else f"this is {source.format}"
            raise RunError(f"{source.name}: -o - writes one stream of lines, and {why}; name a folder with -o DIR")


def check_fields(recipe: Recipe, sources: Sequence[Source]) -> None:
    """Refuse what plain text cannot have, and --lines without plain text."""
    if recipe.lines and not any(source.format == "lines" for source in sources):
        raise RecipeError("lines is for plain text, and no input is plain text; drop it, or pass --format txt")
    if all(source.format in ("txt", "lines") for source in sources):
        for name, given, default in (
            ("text-field", ",".join(recipe.text_field), ",".join(Recipe.text_field)),
            ("pretokenized", recipe.pretokenized or "", ""),
            ("key-field", recipe.key_field or "", ""),
            ("id-field", recipe.id_field, Recipe.id_field),
            ("keep", recipe.keep if recipe.keep_field else "", ""),
        ):
            if given != default:
                raise RecipeError(f"{name} {given!r} names a field, and plain text has none; drop it")


def check_filter(recipe: Recipe, run: Run) -> None:
    """Settings of filters without one, and a filter that would be half of an input."""
    if recipe.method not in STREAMED:
        for name, given in (("bloom", run.bloom is not None), ("on-full", run.on_full != "stop")):
            if given:
                raise RunError(f"{name} means nothing with method {recipe.method}, which has no filter; drop it")
    elif run.keep_work:
        raise RunError(f"keep-work keeps sketches, and method {recipe.method} keeps nothing of a row; drop it")
    elif run.bloom is not None and recipe.limit is not None:
        raise RunError(
            "limit stops inside a file, and a filter that is saved holds whole files, or it could not tell which; drop "
            "--limit or --bloom"
        )


def check_keeper(recipe: Recipe, survey: Survey) -> None:
    """A field that no row has cannot choose which copy stays; most likely its name is mistyped."""
    if survey.values is not None and survey.values.empty and np.any(survey.status == ROW_TEXT):
        raise RecipeError(
            f"keep {recipe.keep}: no row has a value in the field {recipe.keep_field!r}"
            f"{fields_there(survey, recipe.keep_field)}; name a field that rows have, or keep by another rule"
        )


def fields_there(survey: Survey, field: str | None) -> str:
    """The fields that there are, in brackets; nothing where there are none to name."""
    sources = [facts.source for facts in survey.files if facts.problem is None and facts.source.format != "memory"]
    names = first_fields(sources)
    return f" ({fields_here(names, [field or ''])})" if names else ""


def check_removed(recipe: Recipe, run: Run, survey: Survey, outcome: Outcome) -> None:
    """--max-removed: more near removals than anybody expects mean wrong parameters; nothing is written then."""
    read = len(survey.status) - survey.blank
    near = outcome.near
    if recipe.method == "lshbloom":
        near = int(np.count_nonzero(outcome.reason == BLOOM))
    if (
        (recipe.action == "flag" and not recipe.leveled)
        or read < GUARD_FROM_ROWS
        or near * PPM <= run.max_removed_ppm * read
    ):
        return
    raise RunError(
        f"{near:,} of {read:,} rows ({near / read:.1%}) would go as near copies, over --max-removed "
        f"{share_text(run.max_removed_ppm)}; look with --dry-run or --action flag, raise --threshold or "
        "the shingle's n, or pass --max-removed 1"
    )
