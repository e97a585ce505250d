"""The command line: every option reaches its field, every mistake is one line and exit code 2, nothing is ignored."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_dedup import __version__, cli
from gpu_dedup.errors import InternalError, RecipeError, UserError
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run

REPO = Path(__file__).resolve().parent.parent


def program(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.run(
        [sys.executable, "-m", "gpu_dedup", *arguments],
        capture_output=True, text=True, env=environment, timeout=120, check=False, **more,
    )  # fmt: skip


def run_main(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `run` would call the library with; nothing runs."""
    calls: dict[str, Any] = {}

    def dedup(inputs: Any, output: Any, recipe: Recipe, run: Run, progress: Any) -> Any:
        calls.update(inputs=inputs, output=output, recipe=recipe, run=run, progress=progress)
        return type("Report", (), {"summary": lambda self: "the summary\n"})()

    import gpu_dedup.pipeline

    monkeypatch.setattr(gpu_dedup.pipeline, "dedup", dedup)
    return calls


def test_every_field_has_an_option_and_every_option_a_field() -> None:
    recipe = [o.field for options in cli.RECIPE_OPTIONS.values() for o in options]
    run = [o.field for options in cli.RUN_OPTIONS.values() for o in options]
    assert sorted(recipe) == sorted(f.name for f in dataclasses.fields(Recipe))
    assert sorted([*run, *cli.SWITCHES]) == sorted(f.name for f in dataclasses.fields(Run))
    assert len(set(recipe)) == len(recipe)
    flags = {p for command in cli.cli.commands.values() for o in command.params for p in o.opts}
    for switch in cli.SWITCHES.values():
        assert switch in flags


# The documented command line, one value for each option that is not the default.
GIVEN: dict[str, tuple[str, str, Any]] = {
    "method": ("--method", "exact", "exact"),
    "text_field": ("--text-field", "title, body.text", ("title", "body.text")),
    "pretokenized": ("--pretokenized", "input_ids", "input_ids"),
    "id_field": ("--id-field", "url", "url"),
    "normalize": ("--normalize", "whitespace,nfc", ("whitespace", "nfc")),
    "max_chars": ("--max-chars", "5000", 5000),
    "shingle": ("--shingle", "char:24", "char:24"),
    "min_shingles": ("--min-shingles", "9", 9),
    "on_no_text": ("--on-no-text", "drop", "drop"),
    "threshold_ppm": ("--threshold", "0.700001", 700_001),
    "recall_ppm": ("--recall", "0.9", 900_000),
    "sketch": ("--sketch", "fast", "fast"),
    "num_perm": ("--num-perm", "256", 256),
    "seed": ("--seed", "18446744073709551615", 2**64 - 1),
    "sieve_cut": ("--sieve-cut", "50", 50),
    "bucket_cap": ("--bucket-cap", "300", 300),
    "cap_lowest": ("--cap-lowest", "8", 8),
    "cap_splits": ("--cap-splits", "3", 3),
    "cap_slots": ("--cap-slots", "5", 5),
    "verify": ("--verify", "signature", "signature"),
    "cluster": ("--cluster", "connected", "connected"),
    "witness": ("--witness", "best", "best"),
    "keep": ("--keep", "max:meta.score", "max:meta.score"),
    "action": ("--action", "flag", "flag"),
    "write": ("--write", "mask", "mask"),
    "keep_removed": ("--keep-removed", "", True),
    "report": ("--report", "log", "log"),
    "format": ("--format", "csv", "csv"),
    "lines": ("--lines", "", True),
    "on_bad_row": ("--on-bad-row", "keep", "keep"),
    "on_bad_file": ("--on-bad-file", "skip", "skip"),
    "limit": ("--limit", "0", 0),
    "device": ("--device", "cpu", "cpu"),
    "backend": ("--backend", "numpy", "numpy"),
    "gpus": ("--gpus", "4", 4),
    "threads": ("--threads", "3", 3),
    "memory": ("--memory", "1.5GiB", 3 << 29),
    "work_dir": ("--work-dir", "/tmp/w", "/tmp/w"),
    "checkpoint": ("--checkpoint", "64MB", 64 * 10**6),
    "batch_bytes": ("--batch-bytes", "1MB", 10**6),
    "max_removed_ppm": ("--max-removed", "0.25", 250_000),
    "audit": ("--audit", "500", 500),
}


# The same for options that mean something only with a filter.
FILTER: dict[str, tuple[str, str, Any]] = {
    "key_field": ("--key-field", "meta.url", "meta.url"),
    "capacity": ("--capacity", "1000000", 1_000_000),
    "fp_rate_ppb": ("--fp-rate", "0.000000001", 1),
    "bloom": ("--bloom", "seen.bloom", "seen.bloom"),
    "on_full": ("--on-full", "warn", "warn"),
}


# Options of the method with levels.
CASCADE: dict[str, tuple[str, str, Any]] = {
    "search_distance": ("--search-distance", "6", 6),
    "near_action": ("--near-action", "flag", "flag"),
    "far_distance": ("--far-distance", "8", 8),
    "far_jaccard_ppm": ("--far-jaccard", "0.7", 700_000),
    "far_edit_ppm": ("--far-edit", "0.9", 900_000),
    "far_action": ("--far-action", "flag", "flag"),
}


@pytest.mark.parametrize("field", CASCADE)
def test_an_option_of_a_level_sets_its_field(
    field: str, seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    flag, text, value = CASCADE[field]
    assert run_main(capsys, "run", "x", "-o", "y", "--method", "cascade", flag, text)[0] == 0
    assert seen["recipe"] == Recipe(method="cascade", **{field: value})


@pytest.mark.parametrize("field", FILTER)
def test_an_option_of_filters_sets_its_field_and_no_other(
    field: str, seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    flag, text, value = FILTER[field]
    code, out, _ = run_main(capsys, "run", "in.jsonl", "-o", "out", "--method", "bloom", flag, text)
    assert (code, out) == (0, "the summary\n")
    recipe, run = ({field: value}, {}) if hasattr(Recipe, field) else ({}, {field: value})
    assert seen["recipe"] == Recipe(method="bloom", **recipe)
    assert seen["run"] == Run(**run)


def test_again_goes_with_a_saved_filter(seen: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "in.jsonl", "-o", "out", "--method", "lshbloom", "--bloom", "f", "--again"]
    assert run_main(capsys, *arguments)[0] == 0
    assert seen["run"] == Run(bloom="f", again=True)


# Options of SimHash alone, which mean nothing without it.
TERMS = ("weights", "top_terms", "df_checksum", "df_table", "save_df_table")


@pytest.mark.parametrize("field", GIVEN)
def test_an_option_sets_its_field_and_no_other(
    field: str, seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    flag, text, value = GIVEN[field]
    code, out, _ = run_main(capsys, "run", "in.jsonl", "-o", "out", flag, *([text] if text else []))
    assert (code, out) == (0, "the summary\n")
    assert seen["inputs"] == ["in.jsonl"]
    assert seen["output"] == "out"
    if field in {f.name for f in dataclasses.fields(Recipe)}:
        assert seen["recipe"] == Recipe(**{field: value})
        assert seen["run"] == Run()
    else:
        assert seen["recipe"] == Recipe()
        assert seen["run"] == Run(**{field: value})


def test_the_table_above_covers_all_options() -> None:
    tested = {*GIVEN, *FILTER, *TERMS, "bands", "rows", "distance", "edit_max_chars", "stop_shingles", "strip"}
    tested |= {*CASCADE, "key_action", *cli.SWITCHES}
    assert tested == {f.name for kind in (Recipe, Run) for f in dataclasses.fields(kind)}


def test_options_that_go_together(seen: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, _ = run_main(capsys, "run", "a", "-o", "b", "--method", "simhash", "--distance", "7", "--verify", "none")
    assert code == 0
    assert seen["recipe"] == Recipe(method="simhash", distance=7, verify="none")
    weigh = ["run", "a", "-o", "b", "--method", "simhash", "--weights", "tfidf"]
    for flag, text, field, value in (
        ("--top-terms", "64", "top_terms", 64), ("--df-checksum", "0a" * 16, "df_checksum", "0a" * 16),
        ("--df-table", "t.df", "df_table", "t.df"), ("--save-df-table", "t.df", "save_df_table", "t.df"),
    ):  # fmt: skip
        assert run_main(capsys, *weigh, flag, text)[0] == 0
        given = {"method": "simhash", "weights": "tfidf"}
        if field.endswith("table"):
            assert (seen["recipe"], seen["run"]) == (Recipe(**given), Run(**{field: value}))
        else:
            assert seen["recipe"] == Recipe(**given, **{field: value})
    code, _, _ = run_main(capsys, "run", "a", "-o", "b", "--method", "cascade", "--edit-max-chars", "900")
    assert code == 0
    assert seen["recipe"] == Recipe(method="cascade", edit_max_chars=900)
    stops = tmp_path / "stop.txt"
    stops.write_bytes("\ufeffall rights reserved by us\r\n\n   \nécole\nécole\n".encode())
    code, out, _ = run_main(
        capsys, "run", "a", "b*", "--dry-run", "--overwrite", "--quiet", "--bands", "9", "--rows", "13",
        "--num-perm", "117", "--verify", "edit", "--edit-max-chars", "77", "--normalize", "none",
        "--stop-shingles", str(stops), "--strip", str(stops),
    )  # fmt: skip
    assert (code, out) == (0, "")
    assert seen["inputs"] == ["a", "b*"]
    assert seen["output"] is None
    assert seen["recipe"] == Recipe(
        bands=9, rows=13, num_perm=117, verify="edit", edit_max_chars=77, normalize=(),
        stop_shingles=("all rights reserved by us", "école"), strip=("all rights reserved by us", "école"),
    )  # fmt: skip
    assert seen["run"] == Run(dry_run=True, overwrite=True, progress=False)
    assert seen["progress"].show is False


SIMHASH = ["run", "x", "-o", "y", "--method", "simhash"]
TFIDF = [*SIMHASH, "--weights", "tfidf"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "x", "-o", "y", "--treshold", "0.8"], "--threshold"),
        (["run", "-o", "y"], "INPUT"),
        (["run", "x"], "-o is missing"),
        (["run", "x", "-o", ""], "-o '': an output folder without a name; name a new folder"),
        (["run", "x", "-o", "", "--dry-run"], "-o '': an output folder without a name"),
        (["demo", "-o", ""], "-o '': a folder without a name; name a new folder"),
        (["run", "x", "-o", "y", "--bands"], "--bands"),
        (["dedup", "x"], "No such command"),
        (["run", "x", "-o", "y", "--threshold", "0.80000001"], "finer than a millionth"),
        (["run", "x", "-o", "y", "--threshold", "eighty"], "threshold 'eighty' is not a number"),
        (["run", "x", "-o", "y", "--threshold", "1.1"], "threshold 1.1 is outside 0 to 1"),
        (["run", "x", "-o", "y", "--threshold", "0"], r"outside \(0, 1\]"),
        (["run", "x", "-o", "y", "--threshold", "nan"], "threshold"),
        (["run", "x", "-o", "y", "--bands", "2.5"], "bands '2.5' is not a whole number"),
        (["run", "x", "-o", "y", "--bands", "9"], "go together"),
        (["run", "x", "-o", "y", "--method", "ngram"], "choose one of minhash, simhash, cascade, exact"),
        (["run", "x", "-o", "y", "--shingle", "5"], "token:5"),
        (["run", "x", "-o", "y", "--normalize", "nfc,nfkc"], "exclude each other"),
        (["run", "x", "-o", "y", "--normalize", ""], "normalize step"),
        (["run", "x", "-o", "y", "--text-field", "a,"], "text-field"),
        (["run", "x", "-o", "y", "--memory", "much"], "--memory: size 'much'"),
        (["run", "x", "-o", "y", "--memory", "1kB"], "256MB"),
        (["run", "x", "-o", "y", "--backend", "cuda", "--device", "cpu"], "drop one"),
        (["run", "x", "-o", "y", "--threads", "0"], "threads 0"),
        (["run", "x", "-o", "y", "--keep", "newest"], "max:FIELD"),
        (["run", "x", "-o", "y", "--stop-shingles", "/no/such"], "/no/such: No such file"),
        (["run", "x", "-o", "y", "--stop-shingles", os.devnull], "no shingle in it"),
        (["run", "x", "-o", "y", "--strip", "/no/such"], "strip /no/such: No such file.*one string a line"),
        (["run", "x", "-o", "y", "--max-chars", "0"], "max-chars 0 is outside 1 to"),
        (["run", "x", "-o", "y", "--max-chars", "many"], "max-chars 'many' is not a whole number"),
        # Options that would change nothing.
        (["run", "x", "-o", "y", "--method", "exact", "--threshold", "0.8"], "--threshold means nothing"),
        (["run", "x", "-o", "y", "--method", "exact", "--max-removed", "0.5"], "--max-removed means nothing"),
        (["run", "x", "-o", "y", "--distance", "3"], "--distance means nothing with --method minhash"),
        (["run", "x", "-o", "y", "--method", "cascade", "--far-distance", "3", "--far-edit", "0.9"], "is for level 2"),
        (["run", "x", "-o", "y", "--method", "cascade", "--threshold", "0.9"], "--threshold means nothing"),
        (["run", "x", "-o", "y", "--method", "cascade", "--far-distance", "2"], "far-distance 2 is under distance 3"),
        (["run", "x", "-o", "y", "--method", "cascade", "--search-distance", "2"], "less would lose pairs of level 1"),
        (["run", "x", "-o", "y", "--method", "cascade", "--keep", "none"], "cascade decides by the rank rule alone"),
        (["run", "x", "-o", "y", "--method", "cascade", "--far-edit", "0"], r"far-edit 0 is outside 0 to 1"),
        (["run", "x", "-o", "y", "--method", "cascade", "--near-action", "drop"], "choose one of remove, flag"),
        (["run", "x", "-o", "y", "--method", "simhash", "--distance", "9"], "distance 9 is outside 0 to 8"),
        (["run", "x", "-o", "y", "--method", "simhash", "--distance", "-1"], "distance -1 is outside 0 to 8"),
        (["run", "x", "-o", "y", "--method", "simhash", "--recall", "0.9"], "--recall means nothing"),
        (["run", "x", "-o", "y", "--method", "simhash", "--verify", "signature"], "verify signature counts slots"),
        (["run", "x", "-o", "y", "--method", "simhash", "--verify", "none", "--threshold", "0.9"], "distance alone"),
        (["run", "x", "-o", "y", "--method", "simhash", "--verify", "none", "--audit", "9"], "--audit compares true"),
        (["explain", "--texts", "a", "b", "--method", "exact"], "method exact has no one similarity"),
        (["run", "x", "-o", "y", "--bands", "9", "--rows", "13", "--recall", "0.9"], "--recall"),
        (["run", "x", "-o", "y", "--bands", "9", "--rows", "15", "--num-perm", "128"], "135 slots"),
        (["run", "x", "-o", "y", "--bands", "9", "--rows", "3", "--verify", "none", "--threshold", "1"], "--threshold"),
        (["run", "x", "-o", "y", "--verify", "none", "--sieve-cut", "9"], "--sieve-cut"),
        (["run", "x", "-o", "y", "--verify", "edit", "--audit", "9"], "--audit compares true shingle sets"),
        (["run", "x", "-o", "y", "--audit", "0"], "audit 0 looks at no row"),
        (["run", "x", "-o", "y", "--edit-max-chars", "9"], "--edit-max-chars means nothing with --verify exact"),
        (["run", "x", "-o", "y", "--keep", "none", "--witness", "best"], "--witness"),
        (["run", "x", "-o", "y", "--keep", "none", "--cluster", "connected"], "drop --cluster connected"),
        (["run", "x", "-o", "y", "--cap-splits", "0", "--cap-slots", "3"], "--cap-slots"),
        (["run", "x", "-o", "y", "--again"], "--again means nothing with --method minhash"),
        (["run", "x", "-o", "y", "--method", "bloom", "--again"], "name it with bloom"),
        (["run", "x", "-o", "y", "--method", "bloom", "--bloom", ""], "a file without a name"),
        (["run", "x", "-o", "y", "--method", "bloom", "--on-full", "go"], "choose stop or warn"),
        (["run", "x", "-o", "y", "--method", "bloom", "--fp-rate", "0"], "fp-rate 0 is outside"),
        (["run", "x", "-o", "y", "--method", "bloom", "--fp-rate", "0.0000000001"], "finer than a billionth"),
        (["run", "x", "-o", "y", "--method", "bloom", "--capacity", "0"], "capacity 0 is outside"),
        (["run", "x", "-o", "y", "--method", "bloom", "--key-field", ""], "key-field '' names no field"),
        (["run", "x", "-o", "y", "--method", "bloom", "--key-field", "u", "--text-field", "t"], "--text-field means"),
        (["run", "x", "-o", "y", "--method", "bloom", "--bloom", "f", "--limit", "3"], "--limit stops inside a file"),
        (
            ["run", "x", "-o", "y", "--method", "lshbloom", "--bands", "9", "--rows", "3", "--threshold", "0.8"],
            "--threshold means nothing with --method lshbloom and given bands",
        ),
        (["explain", "--method", "bloom"], "--method bloom needs --capacity N"),
        (["explain", "--max-removed", "0.5"], "--max-removed"),
        (["run", "x", "-o", "y", "--weights", "count"], "--weights means nothing with --method minhash"),
        (["run", "x", "-o", "y", "--method", "exact", "--df-table", "t"], "--df-table means nothing with --method ex"),
        ([*SIMHASH, "--top-terms", "5"], "--top-terms means nothing with --weights set; drop it, or weigh by tfidf"),
        ([*SIMHASH, "--weights", "count", "--save-df-table", "t"], "--save-df-table means nothing with --weights co"),
        ([*SIMHASH, "--weights", "idf"], "weights 'idf' is unknown; choose one of set, count, tfidf"),
        ([*TFIDF, "--top-terms", "0"], "top-terms 0 is outside 1 to"),
        ([*TFIDF, "--df-checksum", "12"], "df-checksum '12' is not 32 hexadecimal digits"),
        ([*TFIDF, "--df-table", "a", "--save-df-table", "b"], "drop one of the two"),
        ([*TFIDF, "--dry-run", "--save-df-table", "b"], "a dry run writes nothing; drop one of the two"),
        ([*TFIDF, "--df-table", ""], "df-table '' names no file"),
        (["explain", "--mean-bytes", "5"], "--documents"),
        (["explain", "--documents", "many"], "documents 'many'"),
        (["explain", "--documents", "0"], "above 0"),
        (["explain", "x.jsonl", "--documents", "5"], "drop --documents"),
        (["explain", "--texts", "a", "b", "--seed", "3"], "--seed changes nothing"),
        (["explain", "--texts", "a", "b", "--threads", "3"], "--threads changes nothing"),
        (["explain", "--texts", "a", "b", "--compare", "a", "b"], "drop one"),
        (["explain", "--texts", "a", "b", "--documents", "3"], "--documents"),
        (["explain", "--compare", "/no/a", "/no/b"], "/no/a: No such file"),
        (["explain", "--texts", "a"], "--texts"),
        (["demo", "--limit-mb", "0"], "--limit-mb"),
        (["show", "/no/such/folder", "3"], "no finished run"),
        (["show", "x"], "ROW"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_main(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("gpu-dedup: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert re.search(words, err)
    assert not seen


@pytest.mark.parametrize("method", cli.MEANINGLESS)
def test_every_option_without_meaning_is_refused(
    method: str, seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for field in cli.MEANINGLESS[method] - {
        "bands",
        "rows",
        "edit_max_chars",
        "stop_shingles",
        "distance",
        "key_action",
        *TERMS,
    }:
        given = [cli.SWITCHES[field]] if field in cli.SWITCHES else list({**GIVEN, **FILTER, **CASCADE}[field][:2])
        flag = given[0]
        code, _, err = run_main(capsys, "run", "x", "-o", "y", "--method", method, *given)
        assert code == 2, flag
        assert f"{flag} means nothing with --method {method}" in err


@pytest.mark.parametrize("method", ["minhash", "simhash", "cascade", "exact"])
def test_keys_beside_texts(method: str, seen: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    run = ("run", "x", "-o", "y", "--method", method)
    code, _, _ = run_main(
        capsys, *run, "--key-field", "meta.url", "--key-action", "flag", "--text-field", "body"
    )  # fmt: skip
    assert code == 0
    recipe = seen["recipe"]
    assert (recipe.key_field, recipe.key_action, recipe.texts_from) == ("meta.url", "flag", ("body",))
    code, _, err = run_main(capsys, *run, "--key-action", "flag")
    assert code == 2
    assert "--key-action is for copies by --key-field, and none is named" in err


@pytest.mark.parametrize("method", ["bloom", "lshbloom"])
def test_filters_take_no_action_for_keys_alone(
    method: str, seen: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_main(capsys, "run", "x", "-o", "y", "--method", method, "--key-action", "flag")
    assert code == 2
    assert f"--key-action means nothing with --method {method}" in err


def test_help_lists_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_main(capsys, "run", "--help")
    assert code == 0
    for options in (*cli.RECIPE_OPTIONS.values(), *cli.RUN_OPTIONS.values()):
        for option in options:
            assert f"{option.flag} {option.metavar}" in out
    for heading in (*cli.RECIPE_OPTIONS, *cli.RUN_OPTIONS):
        assert f"\n{heading}:\n" in out
    for switch in cli.SWITCHES.values():
        assert switch in out
    flat = " ".join(out.split())
    for default in ("[default: token:5]", "[default: 0.8]", "[default: 0.98]", "[default: 128]", "[default: 4MiB]"):
        assert default in flat


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", "the most similar of the kept rows before it"),
        ("run", "Texts without a unit (minhash), empty ones (exact)."),
        ("show", "FILE:ROW as the log names it, or an id. Lines and rows count from 0."),
    ],
)
def test_the_help_says_what_would_be_guessed_wrong(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_main(capsys, command, "--help")
    assert code == 0
    assert words in " ".join(out.split())


def test_defaults_in_the_help_are_the_defaults() -> None:
    """A default that the help states as a value is what the fields hold."""
    bare = {**dataclasses.asdict(Recipe()), **dataclasses.asdict(Run())}
    stated = 0
    for options in (*cli.RECIPE_OPTIONS.values(), *cli.RUN_OPTIONS.values()):
        for option in options:
            value = bare[option.field]
            if option.default is not None and value is not None:
                assert option.convert(option.default) == value, option.flag
                stated += 1
    assert stated >= 20


@pytest.mark.parametrize("command", ["run", "explain", "show", "report", "doctor", "demo"])
def test_every_command_has_help_with_its_purpose(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_main(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"Usage: gpu-dedup {command}")
    assert "\n  " in out
    code, listed, _ = run_main(capsys)
    assert code == 0
    assert re.search(rf"^  {command} +\S", listed, re.M)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(capsys, "--version") == (0, f"gpu-dedup {__version__}\n", "")
    text = (REPO / "pyproject.toml").read_text()
    assert f'version = "{__version__}"' in text


def test_the_module_runs_as_a_program() -> None:
    done = program("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gpu-dedup {__version__}\n", "")
    done = program("run", "x", "-o", "y", "--threshold", "2")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-dedup: threshold 2 is outside")


def test_imports_stay_light() -> None:
    heavy = ("numba", "cupy", "pyarrow", "numpy", "tqdm")
    for module in ("gpu_dedup", "gpu_dedup.cli"):
        code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            check=True,
        )
        assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    import gpu_dedup

    assert sorted(gpu_dedup.__all__) == [
        "BloomFilter", "Explanation", "Pairs", "Recipe", "Report", "Result", "Run", "Similarity", "__version__",
        "dedup", "dedup_texts", "explain", "similarity", "sketch",
    ]  # fmt: skip
    for name in gpu_dedup.__all__:
        assert getattr(gpu_dedup, name) is not None
        assert name in dir(gpu_dedup)
    with pytest.raises(AttributeError, match="nothing"):
        gpu_dedup.nothing  # noqa: B018


# ---------------------------------------------------------------------------------------------------------------------
# Errors that come from below.


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    import gpu_dedup.pipeline

    def dedup(*arguments: object) -> object:
        raise error

    monkeypatch.setattr(gpu_dedup.pipeline, "dedup", dedup)


@pytest.mark.parametrize(
    "error", [ValueError("a fault"), InternalError("a fault"), AssertionError("a fault"), EOFError("a fault")]
)
def test_a_fault_of_ours_is_one_line_and_a_traceback_in_a_file(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failing(monkeypatch, error)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, out, err = run_main(capsys, "run", "x", "-o", "y")
    assert (code, out) == (1, "")
    assert err.startswith(f"gpu-dedup: internal error: {type(error).__name__}: a fault; the traceback is in ")
    assert err.count("\n") == 1
    (path,) = tmp_path.iterdir()
    assert str(path) in err
    text = path.read_text()
    assert "Traceback (most recent call last)" in text
    assert "a fault" in text
    assert __version__ in text
    assert "'run', 'x', '-o', 'y'" in text


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, ValueError("a fault"))
    code, _, err = run_main(capsys, "run", "x", "-o", "y", "--debug")
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert err.endswith("gpu-dedup: internal error: ValueError: a fault\n")
    failing(monkeypatch, RecipeError("no good"))
    code, _, err = run_main(capsys, "run", "x", "-o", "y", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_errors_of_users_disk_and_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, UserError("two\nlines"))
    assert run_main(capsys, "run", "x", "-o", "y") == (2, "", "gpu-dedup: two lines\n")
    failing(monkeypatch, OSError(28, "No space left on device", "/data/x"))
    code, _, err = run_main(capsys, "run", "x", "-o", "y")
    assert code == 2
    assert err.startswith("gpu-dedup: /data/x: no space left")
    failing(monkeypatch, MemoryError())
    code, _, err = run_main(capsys, "run", "x", "-o", "y")
    assert code == 1
    assert "--memory" in err


def test_ctrl_c_is_130_and_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    code, out, err = run_main(capsys, "run", "x", "-o", "y")
    assert (code, out) == (130, "")
    assert err.strip() == "gpu-dedup: interrupted"


def test_sigterm_cleans_up_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import gpu_dedup.pipeline

    cleaned = []

    def dedup(*arguments: object) -> object:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            cleaned.append(True)

    monkeypatch.setattr(gpu_dedup.pipeline, "dedup", dedup)
    before = signal.getsignal(signal.SIGTERM)
    code, _, err = run_main(capsys, "run", "x", "-o", "y")
    assert code == 143
    assert err.strip() == "gpu-dedup: terminated"
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) == before


# ---------------------------------------------------------------------------------------------------------------------
# The whole of it, on small files.

LINES = [
    {"id": 1, "text": "The quick brown fox jumps over the lazy dog near the river bank every single morning."},
    {"id": 2, "text": "Something else entirely, about the price of bread in a small town by the sea."},
    {"id": 3, "text": "the quick  brown fox JUMPS over the lazy dog near the river bank every single morning."},
    {"id": 4, "text": ""},
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_run_writes_prints_and_exits_with_0(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = program("run", str(corpus), "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert (out / "in.jsonl").read_text().splitlines() == [json.dumps(LINES[i]) for i in (0, 1, 3)]
    assert "1  exact copies" in done.stdout
    assert str(out / "_gpu_dedup" / "removed.parquet") in done.stdout
    assert "Traceback" not in done.stderr
    assert all(line.startswith("gpu-dedup: ") for line in done.stderr.splitlines())
    same = program("run", str(corpus), "-o", str(out))
    assert same.returncode == 0
    assert "already done" in same.stderr
    again = program("run", str(corpus), "-o", str(out), "--seed", "1")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert again.stderr.count("\n") == 1
    quiet = program("run", str(corpus), "-o", str(out), "--overwrite", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_dry_run_writes_nothing(corpus: Path, tmp_path: Path) -> None:
    done = program("run", str(corpus), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "dry run: nothing was written" in done.stdout
    assert "1  exact copies" in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl"]


def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": 3}\n')
    done = program("run", str(path), "-o", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "bad.jsonl:3: " in done.stderr
    assert "--on-bad-row" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_reader_that_goes_away_is_no_error() -> None:
    for arguments in (["run", "--help"], ["--version"], ["explain"], ["doctor"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [sys.executable, "-m", "gpu_dedup", *arguments],
            stdout=writing, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(REPO)}, timeout=60, check=False
        )  # fmt: skip
        os.close(writing)
        assert (done.returncode, done.stderr) == (0, b""), arguments


def test_ctrl_c_ends_within_two_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("w") as file:
        for i in range(40_000):
            file.write(json.dumps({"text": " ".join(f"w{(i * 7919 + j * 104729) % 50021}" for j in range(60))}) + "\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpu_dedup", "run", str(path), "-o", str(tmp_path / "out"), "--backend", "numpy"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    for _ in range(600):  # until it is at work
        if (tmp_path / "out").exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    assert process.poll() is None
    time.sleep(0.3)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - started < 2
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "gpu-dedup: interrupted"
    assert "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl"]


def script() -> str:
    """What the installed `gpu-dedup` runs."""
    found = re.search(r'^gpu-dedup = "([\w.]+):(\w+)"$', (REPO / "pyproject.toml").read_text(), re.M)
    assert found is not None
    return f"import sys; from {found[1]} import {found[2]} as main; sys.exit(main())"


@pytest.mark.parametrize("way", [["-m", "gpu_dedup"], ["-c", script()]])
def test_ctrl_c_while_the_command_line_is_loaded_ends_it_without_a_word(way: list[str], tmp_path: Path) -> None:
    """Ctrl-C comes in the middle of an import: most of a short run's first moments."""
    (tmp_path / "click.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\nraise SystemExit('not ended')\n"
    )
    done = subprocess.run(
        [sys.executable, *way, "--version"], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPO}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_ctrl_c_is_ours_during_a_command_unless_it_is_ignored(
    before: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu_dedup.pipeline

    seen = []

    def dedup(*arguments: object) -> object:
        seen.append(signal.getsignal(signal.SIGINT))
        raise UserError("no more")

    monkeypatch.setattr(gpu_dedup.pipeline, "dedup", dedup)
    own = signal.signal(signal.SIGINT, before)
    try:
        code, _, _ = run_main(capsys, "run", "x", "-o", "y")
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, own)
    assert code == 2
    assert seen == [signal.SIG_IGN if before == signal.SIG_IGN else signal.default_int_handler]
    assert after == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("arguments", [["run", "--help"], ["--version"], ["explain"]])
def test_a_full_standard_output_is_named(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpu_dedup", *arguments], stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(REPO)}, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "gpu-dedup: standard output: no space left on the disk; free some, or choose another place to send it to\n"
    )


def test_names_that_are_not_utf8_from_end_to_end(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "in"
    folder.mkdir()
    out = os.fsdecode(os.fsencode(tmp_path) + b"/o\xff")
    (folder / os.fsdecode(b"\xff.jsonl")).write_text("".join(json.dumps(line) + "\n" for line in LINES))
    table = pa.table([[LINES[1]["text"], "of its own"], [1, 2], [3, 4]], names=["text", "n", "n"])
    pq.write_table(table, tmp_path / "t")
    os.rename(tmp_path / "t", folder / os.fsdecode(b"\xff.parquet"))
    (folder / "notes.txt").write_text("not input")
    done = program("run", str(folder), "-o", out)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(os.fsencode(out))) == [b"_gpu_dedup", b"\xff.jsonl", b"\xff.parquet"]
    with open(f"{out}/" + os.fsdecode(b"\xff.parquet"), "rb") as file:
        left = pq.ParquetFile(file).read()
    assert left.column_names == ["text", "n", "n"]
    assert [left.column(i).to_pylist() for i in range(3)] == [["of its own"], [2], [4]]
    assert r"\udcff.jsonl row 0" in done.stdout
    assert "notes.txt" in done.stdout
    shown = program("show", out, "1")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("removed  \\udcff.parquet row 0\nkept     \\udcff.jsonl row 1  id 2\n")


def test_click_runner_sees_the_same_commands() -> None:
    result: Result = CliRunner().invoke(cli.cli, ["--help"])
    assert result.exit_code == 0
    assert sorted(cli.cli.commands) == ["apply", "demo", "doctor", "explain", "report", "run", "show", "undo"]


def test_the_page_of_options_is_that_of_the_program() -> None:
    from gpu_dedup import reference

    page = (REPO / "gpu_dedup" / "docs" / "options.md").read_text(encoding="utf-8")
    command = "python -m gpu_dedup.reference > gpu_dedup/docs/options.md"
    assert page == reference.render(), f"options have changed; run: {command}"
