"""Whole runs of --method simhash with weights: the table counts heads, its checksum settles the recipe, the same answer
on every backend and road, saved tables."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hashes import shingle_hashes

from gpu_dedup.errors import InputError, OutputError, RecipeError, RunError
from gpu_dedup.outlook import Corpus, explain
from gpu_dedup.pipeline import dedup
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import Report
from gpu_dedup.run import Run
from gpu_dedup.weights import DocumentFrequencies, terms_key

RECIPE = Recipe(method="simhash", shingle="token:2", weights="tfidf", distance=4, verify="none")


def texts(seed: int = 4, groups: int = 60) -> list[str]:
    """Groups of a text, a copy with a word changed and an exact copy, all with the same beginning, and odd ones."""
    rng = np.random.default_rng(seed)
    out = ["", "...", "one"]
    for _ in range(groups):
        words = [f"w{i}" for i in rng.integers(0, 4000, 120)]
        other = [*words[:60], "changed", *words[61:]]
        start = "all rights reserved by the same people in every text "
        out += [start + " ".join(words), start + " ".join(other), start + " ".join(words)]
    return out


def write(path: Path, rows: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return str(path)


def run(source: list[str], out: Path, recipe: Recipe = RECIPE, **fields: Any) -> tuple[Report, list[int]]:
    processes = fields.pop("processes", None)
    report = dedup(source, str(out), recipe, Run(device="cpu", progress=False, **fields), processes=processes)
    import pyarrow.parquet as pq

    return report, pq.read_table(out / "_gpu_dedup" / "removed.parquet")["row"].to_pylist()


def oracle(rows: list[str], recipe: Recipe) -> tuple[set[int], dict[int, int], int]:
    """Rows that go, the table, and its documents: by plain Python over all pairs of different texts."""
    heads = {text: row for row, text in reversed(list(enumerate(rows))) if text}
    found = {row: shingle_hashes(text, "token", 2) for text, row in heads.items()}
    found = {row: hashes for row, hashes in found.items() if hashes}
    table: Counter[int] = Counter(cell for own in found.values() for cell in {h >> 40 for h in own})
    log = [0.0, *(np.log2(np.arange(1, len(found) + 2)) * 65536)]

    def weight(h: int) -> int:  # the table's integers are within 2 of these; what decides here is not that near
        return round(65536 + log[len(found) + 1] - log[table[h >> 40] + 1])

    prints = {}
    for row, hashes in found.items():
        counts = Counter(hashes)
        weights = {h: count * weight(h) for h, count in counts.items()}
        if recipe.weights == "count":
            weights = dict(counts)
        best = sorted(weights.items(), key=lambda entry: (-entry[1], entry[0]))[: recipe.top_terms]
        sums = [sum(w if h >> bit & 1 else -w for h, w in best) for bit in range(64)]
        prints[row] = sum(1 << bit for bit, total in enumerate(sums) if total > 0)
    gone: set[int] = set()
    for row in sorted(prints):
        kept = [one for one in sorted(prints) if one < row and one not in gone]
        if any((prints[row] ^ prints[one]).bit_count() <= recipe.distance for one in kept):
            gone.add(row)
    copies = {row for row, text in enumerate(rows) if text and heads[text] != row}
    return gone | copies, dict(table), len(found)


@pytest.mark.parametrize(
    "recipe", [RECIPE, RECIPE.with_(top_terms=40), RECIPE.with_(weights="count")], ids=["tfidf", "tfidf-40", "count"]
)
def test_against_all_pairs(recipe: Recipe, tmp_path: Path) -> None:
    rows = texts(groups=40)
    report, gone = run([write(tmp_path / "a.jsonl", rows)], tmp_path / "out", recipe)
    wanted, table, documents = oracle(rows, recipe)
    assert set(gone) == wanted
    assert 40 < len(gone) < 80, "copies went, and not all near ones are within the distance"
    if recipe.weights == "count":
        assert report.frequencies is None
        return
    assert report.frequencies is not None
    assert report.frequencies["documents"] == documents == 81
    assert report.frequencies["cells"] == len(table)
    assert report.recipe["df_checksum"] == report.frequencies["checksum"]


def test_the_same_on_every_backend_and_road(tmp_path: Path) -> None:
    rows = texts()
    files = [write(tmp_path / f"{i}.jsonl", rows[i * 61 : (i + 1) * 61]) for i in range(3)]
    recipe = RECIPE.with_(top_terms=50)
    found = []
    for number, fields in enumerate((
        {"backend": "numpy"}, {"backend": "numba"}, {"backend": "numba", "threads": 3, "batch_bytes": 2000},
        {"backend": "numba", "processes": 2},
    )):  # fmt: skip
        report, gone = run(files, tmp_path / f"out{number}", recipe, **fields)
        found.append((report.fingerprint, report.frequencies, gone))
    assert all(one == found[0] for one in found)
    assert len(found[0][2]) > 60


def test_a_saved_table_spares_the_pass(tmp_path: Path) -> None:
    source = [write(tmp_path / "a.jsonl", texts())]
    saved = str(tmp_path / "terms.df")
    first, gone = run(source, tmp_path / "out1", save_df_table=saved)
    assert "count terms" in first.machine.stages
    table = DocumentFrequencies.load(saved, terms_key(RECIPE))
    assert first.frequencies is not None
    assert first.frequencies["checksum"] == table.checksum()
    assert first.frequencies["file"] == ""
    assert "counted in a pass over these texts" in first.summary()
    assert "simhash token:2, weights tfidf, distance 4, not verified" in first.summary()
    for number, fields in enumerate(({}, {"processes": 2}, {"backend": "numpy"}), 2):
        two = [*source, write(tmp_path / "empty.jsonl", [])] if fields else source
        again, same = run(two, tmp_path / f"out{number}", df_table=saved, **fields)
        assert (again.fingerprint, same) == (first.fingerprint, gone)
        assert "count terms" not in again.machine.stages
        assert again.frequencies == {**first.frequencies, "file": saved}
    # The recipe of the report asks for its table, whichever way it comes.
    asked = Recipe.from_dict(first.recipe)
    for number, fields in enumerate(({}, {"df_table": saved}), 5):
        again, same = run(source, tmp_path / f"out{number}", asked, **fields)
        assert (again.fingerprint, same) == (first.fingerprint, gone)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    rows = texts(groups=8)
    source, other = [write(tmp_path / "a.jsonl", rows)], [write(tmp_path / "b.jsonl", rows[:-3])]
    saved = str(tmp_path / "terms.df")
    first, _ = run(source, tmp_path / "out", save_df_table=saved)
    asked = Recipe.from_dict(first.recipe)
    cases: list[tuple[list[str], Recipe, dict[str, Any], type[Exception], str]] = [
        (other, asked, {}, RecipeError, "the texts of this input: the table has the checksum .* give the file of that"),
        (source, RECIPE.with_(shingle="token:3"), {"df_table": saved}, RecipeError, "another normaliser, shingle"),
        (source, RECIPE.with_(df_checksum="0" * 32), {"df_table": saved}, RecipeError, "asks for 00000"),
        (source, RECIPE, {"df_table": str(tmp_path / "no")}, InputError, "no: cannot be read"),
        (source, RECIPE, {"save_df_table": source[0]}, RunError, "none but a table is ever replaced"),
        (source, RECIPE, {"save_df_table": source[0], "overwrite": True}, RunError, "none but a table"),
        (source, RECIPE.with_(weights="set"), {"df_table": saved}, RunError, "df-table is for method simhash"),
        (other, RECIPE, {"save_df_table": saved}, OutputError, "another table is there already"),
    ]
    before = Path(source[0]).read_bytes(), Path(saved).read_bytes()
    for number, (inputs, recipe, fields, error, words) in enumerate(cases):
        with pytest.raises(error, match=words) as caught:
            run(inputs, tmp_path / f"new{number}", recipe, **fields)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / f"new{number}").exists()
    assert before == (Path(source[0]).read_bytes(), Path(saved).read_bytes())
    # The same table is no obstacle; another one goes where that was asked for.
    run(source, tmp_path / "same", save_df_table=saved)
    run(other, tmp_path / "other", save_df_table=saved, overwrite=True)
    assert Path(saved).read_bytes() != before[1]


def test_done_already(tmp_path: Path) -> None:
    """The same command again finds its work done, though only the table settles its recipe."""
    source = [write(tmp_path / "a.jsonl", texts(groups=8))]
    saved = str(tmp_path / "terms.df")
    first, _ = run(source, tmp_path / "out", save_df_table=saved)
    again, _ = run(source, tmp_path / "out", save_df_table=saved)
    assert again.machine.started == first.machine.started
    with pytest.raises(OutputError):  # with other weights it is another run, which needs another folder
        run(source, tmp_path / "out", RECIPE.with_(top_terms=9))


def test_weights_are_part_of_the_recipe() -> None:
    with pytest.raises(RecipeError, match="still to be counted"):
        RECIPE.fingerprint()
    settled = RECIPE.with_(df_checksum="0" * 32)
    several = [settled, settled.with_(df_checksum="1" * 32), settled.with_(top_terms=5), Recipe(method="simhash")]
    assert len({one.fingerprint() for one in [*several, Recipe(method="simhash", weights="count")]}) == 5
    with pytest.raises(RecipeError, match="top-terms is for weights tfidf, and weights count has no use for it"):
        Recipe(method="simhash", weights="count", top_terms=5)


def test_explain_says_what_the_weights_cost() -> None:
    text = explain(RECIPE, Run(), Corpus.of(1000, 3000))
    assert "That costs a pass" in text
    assert text.startswith("simhash token:2, weights tfidf, distance 4")
    assert "weights tfidf of 9 terms" in explain(RECIPE.with_(top_terms=9), Run(), Corpus.of(1000, 3000))
    assert "still to be counted" in text
    assert "document frequencies and weights, 2 x 4 x 2^24 cells" in text
    assert "read twice more" in text
    plain = explain(RECIPE.with_(weights="count"), Run(), Corpus.of(1000, 3000))
    assert "pass" not in plain
