"""Texts in memory: the answer of files for every kind of column; sketches, similarity and forecast as functions."""

from __future__ import annotations

import collections
import importlib
import importlib.util
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpu_dedup
from gpu_dedup import Recipe, Run, dedup, dedup_texts, explain, similarity, sketch
from gpu_dedup.errors import InputError, RecipeError, RunError

QUIET = Run(backend="numba")


def needs(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return importlib.import_module(name)


def corpus(seed: int = 1) -> list[str]:
    """Texts with exact copies, near copies at 0.8 and more, short ones, empty ones, Chinese."""
    rng = random.Random(seed)
    texts = [" ".join(corpora.english(rng, 60)) for _ in range(60)]
    texts += ["".join(rng.choice(corpora.HAN) for _ in range(80)) for _ in range(20)]
    for text in texts[:40]:
        words = text.split()
        if len(words) > 20:
            words[rng.randrange(len(words))] = "changed"
            texts.append(" ".join(words))
    texts += [*texts[5:15], "", "", "short", "short", "-----", "caf\u00e9", "Caf\u0065\u0301 "]
    rng.shuffle(texts)
    return texts


def by_files(tmp_path: Path, rows: list[dict[str, Any]], recipe: Recipe) -> tuple[list[int], list[dict[str, Any]]]:
    """Row numbers that `dedup` keeps, and its log without the columns that name files."""
    place = tmp_path / "in.jsonl"
    place.write_text("".join(json.dumps({**row, "number": i}) + "\n" for i, row in enumerate(rows)))
    dedup([str(place)], str(tmp_path / "out"), recipe, Run(progress=False, backend="numba"))
    kept = [json.loads(line)["number"] for line in (tmp_path / "out" / "in.jsonl").read_text().splitlines()]
    log = pq.read_table(tmp_path / "out" / "_gpu_dedup" / "removed.parquet")
    return kept, log.select([name for name in log.column_names if not name.endswith("file")]).to_pylist()


RECIPES = [
    Recipe(),
    Recipe(threshold_ppm=600_000, keep="longest"),
    Recipe(cluster="connected", threshold_ppm=700_000),
    Recipe(keep="none"),
    Recipe(action="flag"),
    Recipe(method="exact"),
    Recipe(verify="edit", threshold_ppm=900_000),
    Recipe(verify="none"),
    Recipe(limit=40, on_no_text="drop"),
    Recipe(sketch="fast"),
    Recipe(method="simhash", threshold_ppm=700_000),
    Recipe(method="cascade"),
    Recipe(method="bloom", capacity=1000),
    Recipe(method="lshbloom", capacity=1000),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.method}-{recipe.verify}-{recipe.keep}")
def test_the_answer_is_that_of_a_file(recipe: Recipe, tmp_path: Path) -> None:
    texts = corpus()
    kept, log = by_files(tmp_path, [{"text": text, "id": i * 3} for i, text in enumerate(texts)], recipe)
    result = dedup_texts(texts, recipe, QUIET, ids=[i * 3 for i in range(len(texts))])
    assert result.kept_indices.tolist() == kept
    assert result.removals.to_pylist() == log
    assert 0 < len(log) < len(texts)


def columns() -> dict[str, Callable[[list[str | None]], Any]]:
    """Ways to hold the same texts, None where there is none."""

    def pandas(dtype: Any) -> Callable[[list[str | None]], Any]:
        return lambda texts: needs("pandas").Series(texts, dtype=dtype)

    def dataset(texts: list[str | None]) -> Any:
        datasets = needs("datasets")
        twice = datasets.Dataset.from_dict({"text": [*texts, *texts], "other": [0] * (2 * len(texts))})
        return twice.select(range(len(texts), 2 * len(texts)))["text"]

    return {
        "list": list,
        "tuple": tuple,
        "object array": lambda texts: np.array(texts, object),
        "bytes": lambda texts: [None if text is None else text.encode() for text in texts],
        "string": lambda texts: pa.array(texts, pa.string()),
        "large_string": lambda texts: pa.array(texts, pa.large_string()).slice(0),
        "string_view": lambda texts: pa.array(texts, pa.string_view()),
        "sliced": lambda texts: pa.array(["before", *texts, "behind"]).slice(1, len(texts)),
        "chunked": lambda texts: pa.chunked_array([texts[:7], [], texts[7:50], texts[50:]], pa.string()),
        "dictionary": lambda texts: pa.array(texts).dictionary_encode(),
        "binary": lambda texts: pa.array([None if t is None else t.encode() for t in texts], pa.binary()),
        "pandas": pandas("str"),
        "pandas object": pandas(object),
        "pandas string": pandas("string"),
        "pandas category": pandas("category"),
        "pandas arrow": pandas("large_string[pyarrow]"),
        "pandas, other index": lambda texts: needs("pandas").Series(texts, index=range(len(texts), 0, -1)),
        "polars": lambda texts: needs("polars").Series(texts),
        "polars categorical": lambda texts: needs("polars").Series(texts, dtype=needs("polars").Categorical),
        "datasets": dataset,
    }


@pytest.mark.parametrize("kind", columns())
def test_every_kind_of_column_gives_one_answer(kind: str) -> None:
    texts: list[str | None] = list(corpus())
    texts[3] = texts[20] = None
    recipe = Recipe(on_bad_row="skip", keep="longest")
    want = dedup_texts(texts, recipe, QUIET)
    assert not want.keep[3]
    assert want.removals["reason"].to_pylist().count("bad-row") == 2
    got = dedup_texts(columns()[kind](texts), recipe, Run(backend="numba", batch_bytes=2000, threads=3))
    assert got.removals.to_pylist() == want.removals.to_pylist()
    assert got.clusters.tolist() == want.clusters.tolist()


@pytest.mark.parametrize("kind", ["str array", "StringDType", "datasets transform", "datasets numpy"])
def test_columns_without_nulls(kind: str) -> None:
    texts = [text for text in corpus() if text]
    want = dedup_texts(texts, run=QUIET).clusters.tolist()
    if kind == "str array":
        column: Any = np.array(texts)
    elif kind == "StringDType":
        if not hasattr(np.dtypes, "StringDType"):
            pytest.skip(f"NumPy {np.__version__} has no StringDType")
        column = np.array(texts, np.dtypes.StringDType())
    else:
        table = needs("datasets").Dataset.from_dict({"text": texts})
        if kind == "datasets transform":  # what the transform gives is the text
            column = table.with_transform(lambda rows: {"text": ["same"] * len(rows["text"])})["text"]
            want = [0] * len(texts)
        else:
            column = table.with_format("numpy")["text"]
    assert dedup_texts(column, run=QUIET if want[1] else Run(max_removed_ppm=10**6)).clusters.tolist() == want


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_batches_threads_and_backends_change_nothing(backend: str) -> None:
    texts = corpus(2)
    want = dedup_texts(texts, run=QUIET)
    for column in (texts, pa.array(texts)):
        for size, threads in ((1, 1), (700, 2), (1 << 20, 7)):
            got = dedup_texts(column, run=Run(backend=backend, batch_bytes=size, threads=threads))
            assert got.removals.equals(want.removals)
            assert got.keep.tolist() == want.keep.tolist()


def test_a_small_case_by_hand() -> None:
    texts = ["one two three four five six seven", "other", "One  two three four five six SEVEN", "a b c d e", None]
    texts += ["one two three four five six seven eight"]
    result = dedup_texts(texts, Recipe(threshold_ppm=750_000, on_bad_row="keep"), ids=["a", 7, 2.5, None, True, "f"])
    assert result.keep.tolist() == [True, True, False, True, True, False]
    assert result.keep.dtype == bool
    assert result.clusters.tolist() == [0, 1, 0, 3, 4, 0]
    assert result.kept_indices.tolist() == [0, 1, 3, 4]
    pairs = result.pairs
    assert (pairs.left.tolist(), pairs.right.tolist(), pairs.similarity.tolist()) == ([2, 5], [0, 0], [1.0, 0.75])
    assert (pairs.shared.tolist(), pairs.union.tolist()) == ([-1, 3], [-1, 4])
    assert len(pairs) == 2
    assert len(result) == 6
    log = result.removals.to_pylist()
    assert [row["id"] for row in log] == ["2.5", "f"]
    assert [row["id_type"] for row in log] == ["float", "string"]
    assert [row["kept_id"] for row in log] == ["a", "a"]
    assert result.to_arrow().to_pylist()[5] == {
        "row": 5, "id": "f", "keep": False, "cluster": 0, "reason": "near", "similarity": 0.75, "shared": 3, "union": 4,
    }  # fmt: skip
    assert result.to_arrow()["id"].to_pylist() == ["a", "7", "2.5", None, "true", "f"]
    assert result.to_arrow()["reason"].to_pylist() == [None, None, "exact", None, None, "near"]
    report = result.report
    assert (report.counts.read, report.counts.kept, report.counts.bad) == (6, 4, 1)
    assert report.largest_groups[0].size == 3
    assert report.largest_groups[0].id == "a"
    assert report.bytes_read == report.text_bytes == sum(len(text.encode()) for text in texts if text)
    assert "6  rows" in report.summary()
    frame = needs("pandas") and result.to_pandas()
    assert frame.keep.tolist() == result.keep.tolist()
    assert frame.index.tolist() == list(range(6))


def test_ids_without_any_are_missing() -> None:
    log = dedup_texts(["a", "a"], run=QUIET).removals.to_pylist()
    assert (log[0]["id"], log[0]["id_type"]) == (None, "missing")
    assert "id" not in dedup_texts(["a", "a"], run=QUIET).to_arrow().column_names


def test_connected_groups_name_true_matches() -> None:
    words = [f"w{i}" for i in range(60)]
    chain = [" ".join(words[i : i + 50]) for i in range(0, 10, 2)]
    result = dedup_texts(chain, Recipe(cluster="connected", threshold_ppm=900_000), QUIET)
    assert result.clusters.tolist() == [0] * 5
    assert result.pairs.left.tolist() == [1, 2, 3, 4]
    assert result.pairs.right.tolist() == [0, 1, 2, 3]  # neighbours, not the row that stays: that one is too far
    assert result.pairs.shared.tolist() == [44] * 4
    assert result.pairs.union.tolist() == [48] * 4
    far = result.removals.to_pylist()[-1]
    assert (far["kept_row"], far["linked_row"]) == (0, 3)
    assert far["similarity"] == pytest.approx(38 / 54)


def test_groups_where_nothing_is_kept() -> None:
    result = dedup_texts(["x", "a b c", "a b c", "y", "A B C"], Recipe(keep="none"), QUIET)
    assert result.keep.tolist() == [True, False, False, True, False]
    assert result.clusters.tolist() == [0, 1, 1, 3, 1]


def test_rows_over_the_limit_do_not_exist() -> None:
    result = dedup_texts(["a", "b", "a", "a"], Recipe(limit=3), QUIET)
    assert result.keep.tolist() == [True, True, False, False]
    assert result.clusters.tolist() == [0, 1, 0, 3]
    assert result.report.counts.read == 3


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_texts(n: int) -> None:
    for column in (["a"] * n, pa.array(["a"] * n, pa.string()), np.array(["a"] * n, object)):
        result = dedup_texts(column)
        assert result.keep.tolist() == [True, False][:n]
        assert result.to_arrow().num_rows == n
        assert len(result.pairs) == max(0, n - 1)


@pytest.mark.parametrize(
    "values", [[3, 1, 2], [3.5, None, 2], ["c", "a", "b"], np.array([3, 1, 2]), pa.array([3, 1, 2])]
)
def test_the_copy_with_the_largest_value_stays(values: Any) -> None:
    assert dedup_texts(["t", "t", "t"], Recipe(keep="max:score"), keep_values=values).keep.tolist() == [True, 0, 0]
    least = dedup_texts(["t", "t", "t"], Recipe(keep="min:score"), keep_values=values)
    assert least.keep.tolist() == ([False, False, True] if values[1] is None else [False, True, False])


def test_ids_may_decide() -> None:
    assert dedup_texts(["t", "t"], Recipe(keep="max:id"), ids=[1, 2]).keep.tolist() == [False, True]


def test_times_of_pandas_decide() -> None:
    days = needs("pandas").Series(["2024-01-02", "2025-01-01"]).astype("datetime64[ns]")
    assert dedup_texts(["t", "t"], Recipe(keep="max:day"), keep_values=days).keep.tolist() == [False, True]


ODD = ["plain", "lone \ud800 half", "pair \ud83d\ude00", "pair \U0001f600", "lone \ud800 half"]


def test_lone_surrogates_are_as_in_json(tmp_path: Path) -> None:
    kept, log = by_files(tmp_path, [{"text": text} for text in ODD], Recipe())
    result = dedup_texts(ODD)
    assert result.kept_indices.tolist() == kept == [0, 1, 2]
    assert result.removals.to_pylist() == log
    for size in (1, 20, 1 << 20):
        assert dedup_texts(ODD, run=Run(batch_bytes=size)).clusters.tolist() == result.clusters.tolist()
        assert dedup_texts(np.array(ODD, object), run=Run(batch_bytes=size)).keep.tolist() == result.keep.tolist()


def test_bad_rows_have_a_place_and_a_reason() -> None:
    bad = ["ok", None, float("nan"), 5, b"\xff", ["x"], "ok", "\ud800", True, np.float64("nan"), np.int64(3)]
    with pytest.raises(InputError, match=r'^texts: row 1: field "text" is null; mend it'):
        dedup_texts(bad)
    result = dedup_texts(bad, Recipe(on_bad_row="skip"))
    assert result.kept_indices.tolist() == [0, 7]
    reasons = {entry.line - 1: entry.reason for entry in result.report.bad_rows}
    assert sorted(reasons) == [1, 2, 3, 4, 5, 8, 9, 10]
    assert reasons[3] == "the text is of type int, not a string"
    assert reasons[4] == "not valid UTF-8 at byte 1"
    assert reasons[8] == "the text is of type bool, not a string"
    assert dedup_texts(bad, Recipe(on_bad_row="keep")).kept_indices.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]
    with pytest.raises(InputError, match="row 0: not valid UTF-8 at byte 2"):
        dedup_texts(pa.array([b"a\xff"], pa.binary()))


def test_what_is_no_column_is_refused() -> None:
    for wrong, message in [
        ("text", "a single str, not a column"),
        ({"text": ["a"]}, "a table"),
        (pa.table({"text": ["a"]}), r"a table \(Table\)"),
        ({"a", "b"}, "give a list of it"),
        ((text for text in "ab"), "give a list of it"),
        (np.zeros((2, 2), object), "2 dimensions"),
        (np.arange(3), "the column holds int64, not text"),
        (pa.array([1]), "the column holds int64, not text"),
        (pa.array([["a"]]), "not text"),
        (5, "give a list"),
        (collections.deque(["a"]), "deque is no column that is known here"),
    ]:
        with pytest.raises(InputError, match=message):
            dedup_texts(wrong)
    with pytest.raises(InputError, match="2 ids for 1 texts"):
        dedup_texts(["a"], ids=[1, 2])
    with pytest.raises(InputError, match="1 values of score for 2 texts"):
        dedup_texts(["a", "b"], Recipe(keep="max:score"), keep_values=[1])
    with pytest.raises(RecipeError, match="give them as keep_values"):
        dedup_texts(["a"], Recipe(keep="max:score"))
    with pytest.raises(RecipeError, match="mean nothing with keep first"):
        dedup_texts(["a"], keep_values=[1])
    with pytest.raises(RecipeError, match="names several fields"):
        dedup_texts(["a"], Recipe(text_field=("title", "body")))
    with pytest.raises(RunError, match="overwrite is about files"):
        dedup_texts(["a"], run=Run(overwrite=True))
    with pytest.raises(RecipeError, match=r"row 1: keep max:score finds the text"):
        dedup_texts(["a", "b"], Recipe(keep="max:score"), keep_values=[1, "2"])


def test_a_column_that_changes_meanwhile_is_an_error() -> None:
    class Restless(list[str]):
        def __getitem__(self, key: Any) -> Any:
            got = super().__getitem__(key)
            self.asked = getattr(self, "asked", 0) + bool(got)
            return got if self.asked < 4 else [text + "!" for text in got]

    words = " ".join(f"w{i}" for i in range(50))
    with pytest.raises(InputError, match="changed while it was being deduplicated"):
        dedup_texts(Restless([words, words + " more"]), run=QUIET)


def test_nothing_is_shown_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    dedup_texts(corpus(), run=QUIET)
    assert capsys.readouterr() == ("", "")


@given(st.lists(st.text(st.sampled_from("ab \u4e00\ud800\U0001f600"), max_size=12), max_size=8))
def test_any_strings_are_as_in_json(texts: list[str]) -> None:
    """Against the definition in plain Python: exact classes of what json.loads makes of the texts."""
    back = [json.loads(json.dumps(text)) for text in texts]
    result = dedup_texts(texts, Recipe(method="exact"), Run(backend="numpy"))
    assert result.clusters.tolist() == [back.index(text) for text in back]


def test_the_audit_works_in_memory() -> None:
    audit = dedup_texts(corpus(), run=Run(backend="numba", audit=1000)).report.audit
    assert audit is not None
    assert audit.sampled == audit.kept > 50
    assert audit.missed == 0


# ------------------------------------------------------------------------------------------------------- functions


def test_sketch_is_that_of_the_definition() -> None:
    texts = ["one two three four five six", "", "x", None, "... ---", "\u4e00\u4e8c\u4e09\u56db\u4e94\u516d"]
    recipe = Recipe(bands=4, rows=4, seed=7, on_bad_row="keep")
    got = sketch(texts, recipe, QUIET)
    assert got.shape == (6, 16)
    assert got.dtype == np.uint32
    for row, text in enumerate(texts):
        lsh = oracle.Lsh(bands=4, rows=4, seed=7, cut=0)
        windows = oracle.shingles(oracle.normalise(text or ""), "token", 5)
        want = lsh.signature(windows) if windows else [0xFFFFFFFF] * 16
        assert got[row].tolist() == list(want), text
    assert np.array_equal(sketch(pa.array(texts), recipe, Run(batch_bytes=1, backend="numpy")), got)
    assert sketch([], recipe).shape == (0, 16)
    assert sketch(["a"]).shape == (1, 119)
    with pytest.raises(InputError, match=r"texts: row 3: .* is null"):
        sketch(texts)
    with pytest.raises(RecipeError, match="no MinHash"):
        sketch(["a"], Recipe(method="exact"))


def test_fast_sketch_is_that_of_the_definition() -> None:
    texts = ["one two three four five six", "", "x", " ".join(f"w{i % 300}" for i in range(400))]
    recipe = Recipe(sketch="fast", bands=7, rows=5, seed=7)
    lsh = oracle.Lsh(bands=7, rows=5, seed=7, fast=True)
    windows = [oracle.shingles(oracle.normalise(text), "token", 5) for text in texts]
    for run in (QUIET, Run(batch_bytes=1, backend="numba", progress=False)):
        got = sketch(texts, recipe, run)
        assert got.tolist() == [lsh.signature(own) if own else [0xFFFFFFFF] * 35 for own in windows]
    assert not np.array_equal(sketch(texts, recipe.with_(sketch="minhash"), QUIET), got)


def test_similarity_by_hand() -> None:
    got = similarity("one two three four five six", "ONE two three  four five six seven")
    assert (got.shared, got.union, got.value, float(got)) == (2, 3, 2 / 3, 2 / 3)
    assert similarity("a b c", "a b d", Recipe(shingle="token:1")) == gpu_dedup.Similarity(2, 4)
    assert similarity("", "").value == 0.0
    assert similarity("kitten", "sitting", Recipe(verify="edit")) == gpu_dedup.Similarity(4, 7)
    assert similarity("kitten", "xxxxxx", Recipe(verify="edit")) == gpu_dedup.Similarity(0, 6)
    assert similarity("a", "a", Recipe(method="exact")).value == 1.0
    assert similarity("a", "A", Recipe(method="exact")).value == 0.0
    assert similarity("a b", "a b c", Recipe(shingle="token:1", stop_shingles=("b",))).union == 2
    assert similarity(b"caf\xc3\xa9 au", "cafe\u0301 au").value == 1.0
    long = " ".join(f"w{i}" for i in range(20_000))
    assert similarity(long, long + " more").union == 19_997
    with pytest.raises(InputError, match="text 2 of 2 is not valid UTF-8"):
        similarity("a", b"\xff")
    with pytest.raises(RecipeError, match="raise it"):
        similarity("abc", "abd", Recipe(verify="edit", edit_max_chars=2))


@given(
    *[st.lists(st.sampled_from("ab c\u4e00"), max_size=20).map("".join)] * 2, st.sampled_from(["token", "char", "code"])
)
def test_similarity_is_that_of_sets(one: str, other: str, unit: str) -> None:
    sets = [frozenset(oracle.shingles(oracle.normalise(text), unit, 2)) for text in (one, other)]
    got = similarity(one, other, Recipe(shingle=f"{unit}:2"))
    assert (got.shared, got.union) == oracle.jaccard(sets[0], sets[1])


def test_explain_says_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from gpu_dedup import cli

    told = explain(Recipe(threshold_ppm=700_000), Run(threads=2), documents=5000)
    assert (told.recipe.bands, told.recipe.rows) == (22, 5)
    assert cli.main(["explain", "--threshold", "0.7", "--threads", "2", "--documents", "5000"]) == 0
    assert capsys.readouterr().out == str(told)
    by_similarity = {round(line.similarity, 2): line.found for line in told.forecast}
    assert by_similarity[0.7] == pytest.approx(1 - (1 - 0.7**5) ** 22, abs=2e-3)
    assert explain(Recipe(method="exact")).forecast == []
    assert explain().warnings == []
    with pytest.raises(RecipeError):
        explain(Recipe(threshold_ppm=10_000, num_perm=16, recall_ppm=999_999))


def test_functions_are_not_hidden_by_modules() -> None:
    """Importing every module of the package leaves the public names what they are."""
    import pkgutil

    for module in pkgutil.iter_modules(gpu_dedup.__path__, "gpu_dedup."):
        if module.name not in ("gpu_dedup.__main__", "gpu_dedup.kernels"):
            importlib.import_module(module.name)
    for name in ("sketch", "similarity", "explain", "dedup", "dedup_texts"):
        assert callable(getattr(gpu_dedup, name)), name


def test_what_is_no_recipe_or_no_text_is_told_in_one_line(tmp_path: Path) -> None:
    for call in (
        lambda: dedup_texts(["a"], 0.8),  # type: ignore[arg-type]
        lambda: similarity("a", "b", 0.8),  # type: ignore[arg-type]
        lambda: explain(0.8),  # type: ignore[arg-type]
        lambda: dedup([str(tmp_path)], str(tmp_path / "out"), 0.8),  # type: ignore[arg-type]
    ):
        with pytest.raises(RecipeError, match=r"recipe is 0\.8, a float; give Recipe\("):
            call()
    with pytest.raises(InputError, match="text 2 of 2 is None, a NoneType; give a string"):
        similarity("a", None)  # type: ignore[arg-type]
