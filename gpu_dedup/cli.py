"""The command line. Every option is a field of `Recipe` or `Run`, and every command is one library call.

Light to import: NumPy, Numba and pyarrow are loaded inside the commands that need them, so that --help and a mistyped
option answer at once.

Exit codes: 0 done; 2 the user's mistake, in one line with the remedy; 1 ours; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import click
from click.shell_completion import shell_complete

from gpu_dedup import __version__
from gpu_dedup.errors import GpuDedupError, InternalError, OutputError, RecipeError, UserError, disk_error
from gpu_dedup.recipe import (
    ACTIONS,
    BUCKETS,
    CLUSTER,
    FORMATS,
    METHODS,
    NORMALIZE_STEPS,
    SKETCHES,
    STREAMED,
    UNITS,
    VERIFY,
    WEIGHTS,
    WITNESS,
    Recipe,
    ppb,
    ppm,
)
from gpu_dedup.run import BACKENDS, DEVICES, WRITE, Run, parse_size

PROGRAM = "gpu-dedup"

# Fields that mean nothing to a method: given with it, they are refused rather than ignored.
_KEYS = frozenset(("key_field", "key_action"))
_FILTER = frozenset(("capacity", "fp_rate_ppb", "bloom", "on_full", "again"))
_TERMS = frozenset(("weights", "top_terms", "df_checksum", "df_table", "save_df_table"))
_LEVELS = frozenset(("search_distance", "near_action", "far_distance", "far_jaccard_ppm", "far_edit_ppm", "far_action"))
_CAP = frozenset(("sieve_cut", "bucket_cap", "cap_lowest", "cap_splits", "cap_slots"))
_PAIRS = _CAP | {"verify", "edit_max_chars", "cluster", "witness", "audit"}
_SKETCH = frozenset(("sketch", "recall_ppm", "num_perm", "bands", "rows", "seed"))
_SHINGLES = frozenset(("shingle", "min_shingles", "stop_shingles"))
_NEAR = _SKETCH | _SHINGLES | {"threshold_ppm", "distance", "max_removed_ppm"}
_WORK = frozenset(("checkpoint", "fresh", "keep_work"))  # a method of one pass has nothing to go on from
MEANINGLESS = {
    "minhash": _FILTER | _TERMS | _LEVELS | {"distance"},
    # Each level has thresholds of its own, and only the rank rule can be worked out for both together.
    "cascade": _FILTER | {"threshold_ppm", "verify", "cluster", "witness", "audit", "sketch"},
    "simhash": _FILTER | _LEVELS | _SKETCH | _CAP,
    # A filter knows that a row has been seen, not which one it was: there are no pairs, and the first copy stays.
    "bloom": _PAIRS | _NEAR | _LEVELS | _WORK | _TERMS | {"key_action", "keep"},
    "lshbloom": _PAIRS | _WORK | _TERMS | _LEVELS | _KEYS | {"distance", "min_shingles", "keep"},
    "exact": _FILTER | _TERMS | _LEVELS | _PAIRS | _NEAR,
}


@dataclass(frozen=True)
class Option:
    """One option: the field it sets, how its text becomes a value, and its line in the help."""

    field: str
    flag: str
    convert: Callable[[str], Any]
    metavar: str
    help: str
    default: str | None = None  # words for the help; None where the help text says it
    switch: bool = False  # takes no value; given, the field is True

    @property
    def name(self) -> str:
        return self.flag.lstrip("-").replace("-", "_")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _steps(text: str) -> tuple[str, ...]:
    return () if text.strip() == "none" else _names(text)


def _share(name: str) -> Callable[[str], int]:
    return lambda text: ppm(name, text)


def _whole(name: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise RecipeError(f"{name} {text!r} is not a whole number; give digits alone, such as 1000000") from None

    return convert


def _texts(option: str, what: str, path: str) -> tuple[str, ...]:
    """A file of texts, one a line, blank lines passed over. `what`: they are called by."""
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            texts = [line.rstrip("\r\n") for line in file]
    except OSError as error:
        raise RecipeError(f"{option} {path}: {error.strerror}; give a text file with one {what} a line") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{option} {path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    found = tuple(dict.fromkeys(text for text in texts if text.strip()))
    if not found:
        raise RecipeError(f"{option} {path}: no {what} in it; give one a line")
    return found


def _stops(path: str) -> tuple[str, ...]:
    return _texts("stop-shingles", "shingle", path)


def _ends(path: str) -> tuple[str, ...]:
    return _texts("strip", "string", path)


def _count(field: str, flag: str, metavar: str, text: str, default: str | None = None) -> Option:
    return Option(field, flag, _whole(flag.lstrip("-")), metavar, text, default)


RECIPE_OPTIONS: dict[str, tuple[Option, ...]] = {
    "Duplicates": (
        Option(
            "method",
            "--method",
            str,
            "|".join(METHODS),
            "Near copies by sketches (minhash), fingerprints (simhash) or both (cascade), equal texts (exact); both by "
            "Bloom filters of fixed size (lshbloom, bloom).",
            "minhash",
        ),
        Option(
            "text_field",
            "--text-field",
            _names,
            "A[,B]",
            "Field with the text; several are joined by a newline, dots reach into objects. Else: text, or, where "
            "there is none, the only field that can be meant.",
        ),
        Option(
            "key_field",
            "--key-field",
            str,
            "FIELD",
            "Rows with equal values here, such as url, are copies, whatever their texts; one stays before texts are "
            "looked at. bloom: this field is compared, not the text.",
        ),
        Option(
            "pretokenized",
            "--pretokenized",
            str,
            "FIELD",
            "Field with a list of tokens, strings or whole numbers, instead of a text; --shingle item:N counts them.",
        ),
        Option("id_field", "--id-field", str, "FIELD", "Field with an id, for the log alone.", "id"),
        Option(
            "normalize",
            "--normalize",
            _steps,
            "A[,B]|none",
            f"How texts are made alike for comparison: {', '.join(NORMALIZE_STEPS)}.",
            "nfkc,lower,whitespace; none for exact and bloom",
        ),
        Option("shingle", "--shingle", str, "UNIT:N", f"N consecutive units: {', '.join(UNITS)}.", "token:5"),
        Option("threshold_ppm", "--threshold", _share("threshold"), "SHARE", "Least similarity of a near copy.", "0.8"),
        Option(
            "verify",
            "--verify",
            str,
            "|".join(VERIFY),
            "What confirms a pair: true Jaccard (exact), Levenshtein (edit), equal slots, nothing.",
            "exact",
        ),
        _count("min_shingles", "--min-shingles", "N", "Texts with fewer shingles only meet exact copies.", "0"),
        Option(
            "strip",
            "--strip",
            _ends,
            "FILE",
            "Strings, one a line, that do not count where a text begins or ends with them: site names, templates.",
        ),
        _count("max_chars", "--max-chars", "N", "Only the first N characters count, cut at the end of a sentence."),
        Option("stop_shingles", "--stop-shingles", _stops, "FILE", "Shingles that do not count, one text a line."),
        Option(
            "on_no_text",
            "--on-no-text",
            str,
            "keep|drop",
            "Texts without a unit (minhash), empty ones (exact).",
            "keep",
        ),
    ),
    "Which copy stays": (
        Option("keep", "--keep", str, "RULE", "first, longest, shortest, max:FIELD, min:FIELD or none.", "first"),
        Option(
            "cluster",
            "--cluster",
            str,
            "|".join(CLUSTER),
            "A removed row matches a kept one, or is linked to one.",
            "representative",
        ),
        Option(
            "witness",
            "--witness",
            str,
            "|".join(WITNESS),
            "Match that the log names: the first kept row, or the most similar of the kept rows before it.",
            "lowest",
        ),
        Option(
            "key_action",
            "--key-action",
            str,
            "|".join(ACTIONS),
            "The same for copies by --key-field alone; flagged ones go on to the comparison of texts.",
            "as --action",
        ),
        Option(
            "near_action",
            "--near-action",
            str,
            "|".join(ACTIONS),
            "Cascade: the same for matches of level 1 alone.",
            "as --action",
        ),
        Option(
            "far_action",
            "--far-action",
            str,
            "|".join(ACTIONS),
            "Cascade: the same for matches of level 2 alone.",
            "as --action",
        ),
        Option(
            "action", "--action", str, "|".join(ACTIONS), "Take copies out, or only list them in the log.", "remove"
        ),
    ),
    "Search": (
        Option(
            "recall_ppm",
            "--recall",
            _share("recall"),
            "SHARE",
            "Chance to find a pair at the threshold; solves bands and rows.",
            "0.98",
        ),
        Option(
            "sketch",
            "--sketch",
            str,
            "|".join(SKETCHES),
            "minhash, or fast: one hash a shingle, whatever the slots; for texts of more than some 150 shingles.",
            "minhash",
        ),
        _count("num_perm", "--num-perm", "N", "Most sketch slots that bands x rows may take.", "128"),
        _count("bands", "--bands", "B", "Bands, instead of the solver's; goes with --rows."),
        _count("rows", "--rows", "R", "Rows of a band, instead of the solver's; goes with --bands."),
        _count("seed", "--seed", "N", "Seed of the sketch.", "0"),
        _count(
            "sieve_cut",
            "--sieve-cut",
            "N",
            "Equal slots that a pair needs to be verified.",
            "solved: loses 1 pair in 10,000",
        ),
        _count(
            "search_distance",
            "--search-distance",
            "D",
            "Cascade: search fingerprints so far out, up to --far-distance: no pair of level 2 within it is missed.",
            "as far as --distance",
        ),
        _count(
            "far_distance",
            "--far-distance",
            "D",
            "Cascade, level 2: most bits that may differ; --distance is level 1.",
            "7",
        ),
        Option(
            "far_jaccard_ppm", "--far-jaccard", _share("far-jaccard"), "SHARE", "... least Jaccard similarity.", "0.75"
        ),
        Option("far_edit_ppm", "--far-edit", _share("far-edit"), "SHARE", "... and least edit similarity.", "0.75"),
        _count(
            "distance",
            "--distance",
            "D",
            "Most bits in which the SimHashes of a pair may differ, 0 to 8. --verify then confirms the pair; with "
            "--verify none the distance alone decides, as SimHash is often used, and some removals are wrong.",
            "3",
        ),
        Option(
            "weights",
            "--weights",
            str,
            "|".join(WEIGHTS),
            "What a shingle counts in a SimHash: 1 (set), as often as it occurs (count), or that times its rarity "
            "(tfidf), which costs a pass over the different texts that counts them, unless --df-table is given.",
            "set",
        ),
        _count("top_terms", "--top-terms", "N", "Under tfidf only the N heaviest shingles of a text count.", "all"),
        Option(
            "df_checksum",
            "--df-checksum",
            str,
            "HEX",
            "Checksum that the table of document frequencies must have, from the report of an earlier run.",
        ),
        _count("bucket_cap", "--bucket-cap", "N", "A bucket with more members does not give all its pairs.", "256"),
        _count("cap_lowest", "--cap-lowest", "N", "... each member then meets the N first ones", "32"),
        _count("cap_splits", "--cap-splits", "N", "... and the bucket is split by N further keys", "8"),
        _count("cap_slots", "--cap-slots", "N", "... of N slots each.", "4"),
        _count("edit_max_chars", "--edit-max-chars", "N", "Longer texts never match under --verify edit.", "50000"),
    ),
    "Filter (bloom, lshbloom)": (
        _count("capacity", "--capacity", "N", "Most different rows that will come, later runs included."),
        Option(
            "fp_rate_ppb",
            "--fp-rate",
            lambda text: ppb("fp-rate", text),
            "SHARE",
            "New rows that may be taken for seen, once the filter holds so many.",
            "0.000001",
        ),
    ),
    "Input": (
        Option(
            "on_bad_row",
            "--on-bad-row",
            str,
            "error|skip|keep",
            "A row without a usable text: stop, leave out, copy through.",
            "error",
        ),
        Option("format", "--format", str, "|".join(FORMATS), "Format of all files.", "by their endings"),
        Option(
            "lines",
            "--lines",
            str,
            "",
            "Plain text is a document for each line.  [default: for each file]",
            switch=True,
        ),
        Option("on_bad_file", "--on-bad-file", str, "error|skip", "A damaged file: stop, or leave it out.", "error"),
        _count("limit", "--limit", "N", "Only the first N rows of the input.", "all"),
    ),
}
RUN_OPTIONS: dict[str, tuple[Option, ...]] = {
    "Machine": (
        Option("device", "--device", str, "|".join(DEVICES), "Where to compute; the answer is the same.", "auto"),
        Option(
            "backend",
            "--backend",
            str,
            "|".join(BACKENDS),
            "Which code computes; the answer is the same.",
            "by device and size of the input",
        ),
        _count(
            "gpus",
            "--gpus",
            "N",
            "GPUs to read and sketch with, each its share of the files; asks for a GPU as --device gpu does.",
            "all that are visible, one for each 128 MiB of input",
        ),
        _count("threads", "--threads", "N", "Threads.", "one a core"),
        Option(
            "memory",
            "--memory",
            parse_size,
            "SIZE",
            "Memory, such as 8GB; tables that need more go to disk.",
            "a quarter of the machine's",
        ),
        Option(
            "work_dir",
            "--work-dir",
            str,
            "DIR",
            "Folder for tables that outgrow the memory.",
            "inside the output folder",
        ),
        Option(
            "checkpoint",
            "--checkpoint",
            parse_size,
            "SIZE",
            "After so much input, keep what was done for the next start of the same command; 0: never.",
            "256MB",
        ),
        Option(
            "df_table",
            "--df-table",
            str,
            "FILE",
            "Document frequencies for --weights tfidf, as --save-df-table left them; none are counted then.",
        ),
        Option("save_df_table", "--save-df-table", str, "FILE", "Keep the document frequencies that this run counts."),
        Option("batch_bytes", "--batch-bytes", parse_size, "SIZE", "Input read at a time.", "4MiB"),
    ),
    "Output": (
        Option(
            "write",
            "--write",
            str,
            "|".join(WRITE),
            "Surviving rows, or _gpu_dedup/keep.parquet alone, for `gpu-dedup apply`.",
            "rows",
        ),
        Option("keep_removed", "--keep-removed", str, "", "Store the rows that go, for `gpu-dedup undo`.", switch=True),
        Option("report", "--report", str, "DIR", "With -o -: new folder for log and report.  [default: none]"),
    ),
    "Saved filter": (
        Option("bloom", "--bloom", str, "FILE", "Go on from the filter in FILE, and save it there at the end."),
    ),
    "Guards": (
        Option(
            "on_full",
            "--on-full",
            str,
            "stop|warn",
            "What more different rows than --capacity do: stop before writing, or go on and say how bad it is.",
            "stop",
        ),
        Option(
            "max_removed_ppm",
            "--max-removed",
            _share("max-removed"),
            "SHARE",
            "Stop before writing if more of the rows (from 1,000) are near copies.",
            "0.9",
        ),
        _count(
            "audit", "--audit", "N", "Compare N of the rows that stay with all others: the share of near copies found."
        ),
    ),
}
EXPLAIN_OPTIONS = {
    "Machine": tuple(o for o in RUN_OPTIONS["Machine"] if o.field in ("backend", "threads", "memory", "batch_bytes"))
}
# Fields of Run that are switches. All others of Recipe and Run are in the tables; a test holds that none is missing.
SWITCHES = {
    "dry_run": "--dry-run",
    "overwrite": "--overwrite",
    "again": "--again",
    "keep_work": "--keep-work",
    "fresh": "--fresh",
    "progress": "--quiet",
}


class SectionedCommand(click.Command):
    """A command whose help lists its options under headings, in the order of the tables."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(_SECTION_OF.get(parameter.name or "", "Options"), []).append(record)
        for section in ("Options", *RECIPE_OPTIONS, *RUN_OPTIONS):
            if section in sections:
                with formatter.section(section):
                    formatter.write_dl(sections[section], col_max=24)


_SECTION_OF = {
    option.name: section
    for table in (RECIPE_OPTIONS, RUN_OPTIONS)
    for section, options in table.items()
    for option in options
}


def _with_options(*tables: dict[str, tuple[Option, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of the tables to a command; those not given arrive as None."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options = [option for table in tables for section in table.values() for option in section]
        for option in reversed(options):
            text = option.help if option.default is None else f"{option.help}  [default: {option.default}]"
            if option.switch:
                function = click.option(option.flag, option.name, is_flag=True, default=None, help=text)(function)
            else:
                function = click.option(option.flag, option.name, metavar=option.metavar, help=text)(function)
        return function

    return decorate


def _debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.obj, dict):
        ctx.obj["debug"] = True


_debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show the traceback of an internal error."
)
_quiet_option = click.option("--quiet", is_flag=True, help="No progress and no summary.")


def read_options(tables: dict[str, tuple[Option, ...]], given: dict[str, Any]) -> dict[str, Any]:
    """Values by field name, of the options that were given."""
    out = {}
    for section in tables.values():
        for option in section:
            text = given.get(option.name)
            if option.switch:
                if text:
                    out[option.field] = True
            elif text is not None:
                try:
                    out[option.field] = option.convert(text)
                except UserError as error:
                    message = str(error)
                    raise RecipeError(message if option.flag[2:] in message else f"{option.flag}: {message}") from None
    return out


def check_meaning(recipe: dict[str, Any], run: dict[str, Any]) -> None:
    """Refuse options that would change nothing beside the others given."""
    method = recipe.get("method", Recipe.method)
    for field in (*recipe, *run):
        if field in MEANINGLESS.get(method, frozenset()):
            raise RecipeError(f"{_flag(field)} means nothing with --method {method}; drop it")
    if "key_action" in recipe and "key_field" not in recipe:
        raise RecipeError("--key-action is for copies by --key-field, and none is named; drop it, or name the field")
    if method in STREAMED and recipe.get("key_field") is not None and "text_field" in recipe:
        raise RecipeError("--text-field means nothing beside --key-field, which is what is compared; drop one")
    if method in STREAMED and "limit" in recipe and "bloom" in run:
        raise RecipeError("--limit stops inside a file, and a saved filter holds whole files; drop one")
    verify = "none" if method == "lshbloom" else recipe.get("verify", Recipe.verify)
    if "bands" in recipe and "rows" in recipe:
        if "recall_ppm" in recipe:
            raise RecipeError("--recall is for the solver, and --bands and --rows replace it; drop one or the other")
        slots = recipe["bands"] * recipe["rows"]
        if "num_perm" in recipe and slots > recipe["num_perm"]:
            raise RecipeError(
                f"--bands {recipe['bands']} x --rows {recipe['rows']} = {slots} slots, more than --num-perm "
                f"{recipe['num_perm']}; drop --num-perm or lower the bands"
            )
        if "threshold_ppm" in recipe and verify == "none":
            what = "--method lshbloom" if method == "lshbloom" else "--verify none"
            raise RecipeError(f"--threshold means nothing with {what} and given bands: every collision is a match")
    if method == "simhash" and "threshold_ppm" in recipe and verify == "none":
        raise RecipeError("--threshold means nothing with --verify none: the distance alone decides; drop one")
    if "audit" in run and verify != "exact":
        raise RecipeError(
            f"--audit compares true shingle sets, and --verify {verify} decides by something else; drop one"
        )
    if recipe.get("weights") != "tfidf":
        for field in ("top_terms", "df_checksum", "df_table", "save_df_table"):
            if field in recipe or field in run:
                weights = recipe.get("weights", Recipe.weights)
                raise RecipeError(f"{_flag(field)} means nothing with --weights {weights}; drop it, or weigh by tfidf")
    if "sieve_cut" in recipe and verify == "none":
        raise RecipeError("--sieve-cut means nothing with --verify none: every collision is a match; drop one")
    if method == "cascade" and recipe.get("far_distance", Recipe.far_distance) == recipe.get(
        "distance", Recipe.distance
    ):
        for field in ("far_jaccard_ppm", "far_edit_ppm", "far_action", "edit_max_chars"):
            if field in recipe:
                raise RecipeError(
                    f"{_flag(field)} is for level 2, which has no pairs where --far-distance is --distance; drop one"
                )
    if method == "cascade":
        far = recipe.get("far_distance", Recipe.far_distance)
        distance = recipe.get("distance", Recipe.distance)
        if recipe.get("search_distance", distance) >= far:
            why = "which has no pairs" if far == distance else f"whose pairs --search-distance {far} finds all"
            for field in BUCKETS:
                if field in recipe:
                    raise RecipeError(f"{_flag(field)} is for the bands of level 2, {why}; drop it")
    if "edit_max_chars" in recipe and verify != "edit" and method != "cascade":
        raise RecipeError(f"--edit-max-chars means nothing with --verify {verify}; drop it")
    if recipe.get("keep") == "none" and "witness" in recipe:
        raise RecipeError("--witness chooses among kept rows, and --keep none keeps none of them; drop one")
    if recipe.get("cap_splits") == 0 and "cap_slots" in recipe:
        raise RecipeError("--cap-slots means nothing with --cap-splits 0; drop one")


def _flag(field: str) -> str:
    for table in (RECIPE_OPTIONS, RUN_OPTIONS):
        for section in table.values():
            for option in section:
                if option.field == field:
                    return option.flag
    return SWITCHES[field]


def make_recipe(given: dict[str, Any]) -> Recipe:
    """The recipe that the options of a command line describe."""
    fields = read_options(RECIPE_OPTIONS, given)
    run = read_options(RUN_OPTIONS, given)
    check_meaning(fields, {**run, **{name: True for name in ("again", "fresh", "keep_work") if given.get(name)}})
    return Recipe(**fields)


def make_run(given: dict[str, Any]) -> Run:
    """The run that the options of a command line describe."""
    fields = read_options(RUN_OPTIONS, given)
    for name in ("dry_run", "overwrite", "again", "keep_work", "fresh"):
        if given.get(name):
            fields[name] = True
    if given.get("quiet"):
        fields["progress"] = False
    return Run(**fields)


def say(text: str) -> None:
    """Print to standard output; a reader that has gone away (`| head`) is no error. Raises OutputError."""
    try:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        raise _stdout_error(error) from error


def _stdout_error(error: OSError) -> OutputError:
    return disk_error(error, "standard output", "another place to send it to")


def _colors() -> bool:
    """Colours on a terminal, unless the user wants none (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _drop_stdout() -> None:
    # What is still buffered must not fail again when Python flushes at exit.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    help="Removes near-copies of texts from JSONL, CSV, text, Parquet and Arrow files, "
    "with a reason for every row that goes.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


@cli.command("run", cls=SectionedCommand, short_help="Remove duplicates from files.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "-o", "--output", metavar="DIR", help="New folder for the result, or - for standard output.  [or --dry-run]"
)
@click.option("--dry-run", is_flag=True, help="Find duplicates and say how many; write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace the result of an earlier run in DIR.")
@click.option("--fresh", is_flag=True, help="Begin anew; without it a run goes on from where an earlier start stopped.")
@click.option(
    "--keep-work", is_flag=True, help="Keep the sketches for later runs on this input with another threshold or keeper."
)
@click.option("--again", is_flag=True, help="Files that the filter of --bloom holds already are no error.")
@_quiet_option
@_debug_option
@_with_options(RECIPE_OPTIONS, RUN_OPTIONS)
def run_command(inputs: tuple[str, ...], output: str | None, **given: Any) -> None:
    """Remove duplicates from INPUT: files, folders or globs of .jsonl, .csv, .tsv, .txt and .md (each also
    .gz and .zst), .parquet, .arrow and .feather.

    `-` is standard input, JSON lines unless --format says otherwise; -o - sends the rows of JSON lines to standard
    output once all is decided.

    DIR gets the same files less the rows that are copies, and _gpu_dedup/ with removed.parquet (every row that went,
    why, and the row that stays for it), report.html and report.json.

    \b
      gpu-dedup run crawl/*.jsonl.gz -o clean
      gpu-dedup run a.parquet b.parquet -o clean --text-field content --keep max:score
    """
    recipe, run = make_recipe(given), make_run(given)
    if output is None and not run.dry_run:
        raise UserError("-o is missing: name a new folder for the result, or pass --dry-run")
    if output == "":
        raise UserError("-o '': an output folder without a name; name a new folder for the result")
    from gpu_dedup.pipeline import dedup
    from gpu_dedup.progress import Progress

    report = dedup(list(inputs), output, recipe, run, Progress(run.progress))
    if run.progress is not False:
        if output == "-":
            print(report.summary(), end="", file=sys.stderr, flush=True)
        else:
            say(report.summary())


@cli.command("explain", cls=SectionedCommand, short_help="What a recipe finds and costs, before the run.")
@click.argument("inputs", nargs=-1, metavar="[INPUT...]")
@click.option("--documents", metavar="N", help="Size of the corpus, for the cost; not with INPUT.")
@click.option("--mean-bytes", metavar="B", help="Mean bytes of a text, for the cost.  [default: 3000]")
@click.option("--compare", nargs=2, metavar="A B", help="Two text files: their similarity by several shingles.")
@click.option("--texts", nargs=2, metavar="A B", help="The same for two texts on the command line.")
@_debug_option
@_with_options(RECIPE_OPTIONS, EXPLAIN_OPTIONS)
def explain_command(
    inputs: tuple[str, ...],
    documents: str | None,
    mean_bytes: str | None,
    compare: tuple[str, str] | None,
    texts: tuple[str, str] | None,
    **given: Any,
) -> None:
    """Say what a recipe will find and what it will cost, without running it.

    Takes the options of `run`. With INPUT, or --documents and --mean-bytes, the memory, disk and time of that corpus.

    \b
      gpu-dedup explain --threshold 0.7 crawl/*.jsonl.gz
      gpu-dedup explain --bands 9 --rows 13 --documents 1000000000
      gpu-dedup explain --compare a.txt b.txt
    """
    from gpu_dedup import outlook

    fields = read_options(RECIPE_OPTIONS, given)
    recipe, run = make_recipe(given), make_run(given)
    if compare or texts:
        if compare and texts:
            raise UserError("--compare and --texts are two ways to give two texts; drop one")
        if inputs or documents is not None or mean_bytes is not None:
            raise UserError("--compare and --texts look at two texts alone; drop INPUT, --documents and --mean-bytes")
        ignored = [field for field in (*fields, *read_options(RUN_OPTIONS, given)) if field not in outlook.COMPARED]
        if ignored:
            raise RecipeError(f"{_flag(ignored[0])} changes nothing in a comparison of two texts; drop it")
        pair = texts if texts else (outlook.read_text(compare[0]), outlook.read_text(compare[1])) if compare else None
        assert pair is not None
        say(outlook.compare(pair[0], pair[1], recipe, "shingle" in fields))
        return
    corpus = None
    if inputs:
        if documents is not None or mean_bytes is not None:
            raise UserError("the documents of INPUT are counted; drop --documents and --mean-bytes, or INPUT")
        recipe, guessed = outlook.name_text_field(list(inputs), recipe)
        if guessed:
            _complain(guessed)
        corpus = outlook.look_at(list(inputs), recipe, run)
    elif documents is not None:
        corpus = outlook.Corpus.of(
            _whole("--documents")(documents), 3000 if mean_bytes is None else _whole("--mean-bytes")(mean_bytes)
        )
    elif mean_bytes is not None:
        raise UserError("--mean-bytes says how long a document is, but not how many there are; add --documents N")
    if corpus is not None and recipe.method in STREAMED and recipe.capacity is None:
        recipe = recipe.with_(capacity=outlook.proposed_capacity(corpus))
        _complain(
            f"no --capacity: reckoned with {recipe.capacity}, half as many again as there seem to be rows; give "
            "the most different rows that will come, those of later runs included"
        )
    say(outlook.explain(recipe, run, corpus))


@cli.command("show", short_help="A removed row and its witness side by side.")
@click.argument("folder", metavar="DIR")
@click.argument("row", metavar="ROW")
@click.option("--width", type=click.IntRange(40, 1000), metavar="N", help="Columns.  [default: the terminal's]")
@click.option(
    "--full",
    is_flag=True,
    help="Whole texts, line by line; without it, long shared stretches are cut out and white space is folded.",
)
@click.option("--color/--no-color", default=None, help="Colours, or [-marks-].  [default: colours on a terminal]")
@_debug_option
def show_command(folder: str, row: str, width: int | None, full: bool, color: bool | None) -> None:
    """Show a removed row of the run in DIR beside the row that stays for it, with shared and differing spans.

    ROW is a line of removed.parquet, FILE:ROW as the log names it, or an id. Lines and rows count from 0.
    """
    from gpu_dedup import show

    color = _colors() if color is None else color
    if width is None:
        width = show.terminal_width()
    try:
        say(show.show(folder, row, width=width, color=color, full=full))
    except show.MissingInputError as error:
        say(error.text)
        raise


_MACHINE_OF_WRITING = {"Machine": tuple(o for o in RUN_OPTIONS["Machine"] if o.field in ("threads", "batch_bytes"))}


@cli.command("apply", cls=SectionedCommand, short_help="Write the rows that a mask keeps.")
@click.argument("folder", metavar="MASKDIR")
@click.option("-o", "--output", metavar="OUT", help="New folder for the rows.  [default: MASKDIR]")
@click.option("--overwrite", is_flag=True, help="Replace the result of an earlier run in OUT.")
@_quiet_option
@_debug_option
@_with_options(_MACHINE_OF_WRITING)
def apply_command(folder: str, output: str | None, overwrite: bool, quiet: bool, **given: Any) -> None:
    """Write the rows that stay, after a run with --write mask in MASKDIR.

    Its inputs must be where they were, and are compared with what the run read. OUT gets what the run would have
    written without --write mask.

    \b
      gpu-dedup run crawl/*.jsonl.gz -o mask --write mask
      gpu-dedup apply mask -o clean
    """
    run = make_run({**given, "overwrite": overwrite, "quiet": quiet})
    if output == "":
        raise UserError("-o '': an output folder without a name; name a new folder for the rows")
    from gpu_dedup.pipeline.apply import apply

    report = apply(folder, output, run)
    if not quiet:
        say(f"{report.counts.kept:,} of {report.counts.read:,} rows written to {report.machine.output}")


@cli.command("undo", cls=SectionedCommand, short_help="Put the input of a run together again.")
@click.argument("folder", metavar="DIR")
@click.option("-o", "--output", metavar="OUT", required=True, help="New folder for the input.")
@click.option("--overwrite", is_flag=True, help="Replace what an earlier undo has written to OUT.")
@_quiet_option
@_debug_option
@_with_options(_MACHINE_OF_WRITING)
def undo_command(folder: str, output: str, overwrite: bool, quiet: bool, **given: Any) -> None:
    """Write the input of the run in DIR to OUT, from its output and the rows that --keep-removed stored.

    The input itself is not needed. Lines and CSV come back byte for byte, Parquet and Arrow as the same table.

    \b
      gpu-dedup run crawl/*.jsonl.gz -o clean --keep-removed
      gpu-dedup undo clean -o crawl-again
    """
    run = make_run({**given, "overwrite": overwrite, "quiet": quiet})
    if not output:
        raise UserError("-o '': an output folder without a name; name a new folder for the input")
    from gpu_dedup.pipeline.apply import undo

    files = undo(folder, output, run)
    if not quiet:
        say(f"{len(files):,} {'file' if len(files) == 1 else 'files'} written to {output}")


@cli.command("report", short_help="The report of a run as a page for a browser.")
@click.argument("folder", metavar="DIR")
@click.option("-o", "--output", metavar="FILE", help="Where to write it.  [default: DIR/_gpu_dedup/report.html]")
@_debug_option
def report_command(folder: str, output: str | None) -> None:
    """Write the page of the run in DIR anew from its report.json, and say where it is.

    A run writes it as _gpu_dedup/report.html. One file, nothing in it comes from a network.
    """
    from gpu_dedup import page
    from gpu_dedup.report import Report

    if output == "":
        raise UserError("-o '': a file without a name; name the page")
    report = Report.load(folder)
    beside = os.path.dirname(folder) if os.path.isfile(folder) else os.path.join(folder, os.path.dirname(page.PAGE))
    path = output or os.path.join(beside, page.PAGE_NAME)
    page.save(report, path)
    say(path)


@cli.command("doctor", short_help="Versions, devices, caches; why a backend is missing.")
@_debug_option
def doctor_command() -> None:
    """Say what this machine has, what runs on it, and why something does not."""
    from gpu_dedup import doctor

    say(doctor.doctor())


@cli.command("demo", short_help="The main job on real text found on this machine.")
@click.option("-o", "--output", metavar="DIR", default="gpu-dedup-demo", show_default=True, help="Folder for it all.")
@click.option(
    "--limit-mb", type=click.IntRange(1, 100_000), default=64, show_default=True, metavar="N", help="Text to gather."
)
@_quiet_option
@_debug_option
@_with_options({"Machine": RUN_OPTIONS["Machine"]})
def demo_command(output: str, limit_mb: int, quiet: bool, **given: Any) -> None:
    """Gather licences, READMEs, sources and manual pages of this machine, deduplicate them, and show what went.

    Nothing is downloaded, and nothing outside DIR is written.
    """
    from gpu_dedup import demo

    run = make_run({**given, "quiet": quiet})
    if not output:
        raise UserError("-o '': a folder without a name; name a new folder for the demo")
    demo.demo(output, limit_mb * 10**6, run, (lambda text: None) if quiet else say, _colors())


class _Terminated(KeyboardInterrupt):
    """SIGTERM, taken as Ctrl-C so that clean-up happens."""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

    early = signal.getsignal(signal.SIGINT) == signal.SIG_DFL  # as __main__.py leaves it; one that is ignored stays so
    try:
        before = signal.signal(signal.SIGTERM, handler)
    except ValueError:  # not the main thread: whoever embeds us sees to signals
        yield
        return
    try:
        if early:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if early:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, before)


def _complain(message: str) -> None:
    line = " ".join(str(message).split()) if "\n" in str(message) else str(message)
    with contextlib.suppress(OSError, ValueError):
        print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)


def _internal(error: BaseException, arguments: Sequence[str], debug: bool) -> int:
    """One line about a fault of ours, and where its traceback is."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if debug:
        traceback.print_exception(error)
        _complain(f"internal error: {what}")
        return 1
    where = ""
    try:
        handle, path = tempfile.mkstemp(prefix="gpu-dedup-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{PROGRAM} {__version__}, Python {sys.version}\n{[PROGRAM, *arguments]}\n\n")
            traceback.print_exception(error, file=file)
        where = f"; the traceback is in {path}, please report it"
    except OSError:
        where = "; run it again with --debug to see the traceback, and please report it"
    _complain(f"internal error: {what}{where}")
    return 1


# An error of the system that nobody below caught, and that the user can mend.
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code. `arguments` without the program's name; None: this process's own."""
    process = arguments is None
    given = list(sys.argv[1:] if arguments is None else arguments)
    state: dict[str, Any] = {"debug": False}
    if process:
        for stream in (sys.stdout, sys.stderr):  # a lone surrogate or a narrow locale is no reason to fail
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
    try:
        with _terminable():
            code = _invoke(given, state)
    except KeyboardInterrupt as error:
        code = 143 if isinstance(error, _Terminated) else 130
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal has just put ^C there
        _complain("terminated" if code == 143 else "interrupted")
        if process:
            # Worker threads may still be in a kernel; their results are not wanted, and Python would wait for them.
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(code)
    return code


def _invoke(given: list[str], state: dict[str, Any]) -> int:
    try:
        if completion := os.environ.get("_GPU_DEDUP_COMPLETE"):
            return shell_complete(cli, {}, PROGRAM, "_GPU_DEDUP_COMPLETE", completion)
        # Not cli.main: it turns interrupts, EOFError and EPIPE into its own, and prints on the way.
        with cli.make_context(PROGRAM, given, obj=state) as ctx:
            cli.invoke(ctx)
        return 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        where = f" ('{error.ctx.command_path} --help' lists what there is)" if error.ctx is not None else ""
        _complain(error.format_message() + where)
        return 2
    except click.ClickException as error:
        _complain(error.format_message())
        return 2
    except InternalError as error:
        return _internal(error, given, state["debug"])
    except GpuDedupError as error:
        if state["debug"]:
            traceback.print_exception(error)
        _complain(str(error))
        return error.exit_code
    except MemoryError as error:
        if state["debug"]:
            traceback.print_exception(error)
        _complain("out of memory; lower --memory, --threads or --batch-bytes")
        return 1
    except BrokenPipeError:  # the reader of --help has gone away
        _drop_stdout()
        return 0
    except OSError as error:
        if any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):  # --help
            _drop_stdout()
            _complain(str(_stdout_error(error)))
            return 2
        if error.errno not in _DISK:
            return _internal(error, given, state["debug"])
        if state["debug"]:
            traceback.print_exception(error)
        _complain(str(disk_error(error, str(error.filename or "the disk"))))
        return 2
    except Exception as error:
        return _internal(error, given, state["debug"])


if __name__ == "__main__":
    sys.exit(main())
