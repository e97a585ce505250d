"""Copies by key: what is a key, level 0 beside the comparison of texts, by brute force and beside runs without."""

from __future__ import annotations

import random
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import harness
import numpy as np
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cascade import Verdict, full, judged, rows_of

from gpu_dedup import dedup_texts
from gpu_dedup.backend import host_backend
from gpu_dedup.batch import MISSING, TypedText
from gpu_dedup.errors import InputError, RecipeError
from gpu_dedup.keys import NO_KEY, keys_of
from gpu_dedup.pipeline import dedup
from gpu_dedup.pipeline.sieve import may_meet
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.spool import Budget, Table


def keyed_rows(seed: str) -> list[dict[str, Any]]:
    """Rows of test_cascade with keys of every kind: some shared across families, some null, missing or empty."""
    rng = random.Random(seed)
    rows = rows_of(seed)
    for row in rows:
        kind = rng.randrange(6)
        if kind < 3:
            row["url"] = f"https://site.example/{rng.randrange(9)}"
        elif kind == 3:
            row["url"] = rng.choice([1, 1.0, "1", 2.5, 10**30])
        elif kind == 4:
            row["url"] = rng.choice([None, ""])
    rows += [{"id": len(rows) + i, "text": "", "score": 99, "url": "https://site.example/0"} for i in range(2)]
    rng.shuffle(rows)
    return rows


def key_of(row: dict[str, Any]) -> Any:
    """By Python's own equality: 1 == 1.0, and "1" is another."""
    value = row.get("url")
    if value is None or value == "" or not row["text"]:
        return None
    return value if isinstance(value, str) else Fraction(value)


def first_of_key(rows: list[dict[str, Any]], keep: str) -> dict[int, int]:
    """Row -> the first row of its key, for rows that are not it."""
    docs = [oracle.Doc("a.jsonl", i, row["text"], row["id"], row.get("score")) for i, row in enumerate(rows)]
    first: dict[Any, int] = {}
    out = {}
    for doc in oracle.keeper_order(docs, keep):
        key = key_of(rows[doc.row])
        if key is not None and first.setdefault(key, doc.row) != doc.row:
            out[doc.row] = first[key]
    return out


def without(rows: list[dict[str, Any]], gone: Any) -> list[dict[str, Any]]:
    """The rows, those that are gone without a text: they meet nobody."""
    return [{**row, "text": "" if i in gone else row["text"]} for i, row in enumerate(rows)]


def joined(verdicts: Verdict, copies: dict[int, int], recipe: Recipe) -> Verdict:
    """Verdicts over texts, and what the keys add."""
    out = dict(verdicts)
    action = recipe.key_action or recipe.action
    for row, first in copies.items():
        if row not in verdicts:
            gone = first in verdicts and verdicts[first][3] == "remove"
            out[row] = verdicts[first][0] if gone else first, "key", None, action
    return out


OPTIONS: list[dict[str, Any]] = [
    {},
    {"keep": "longest"},
    {"keep": "max:score", "distance": 1, "search_distance": 7},
    {"key_action": "flag"},
    {"action": "flag", "key_action": "remove"},
    {"action": "flag"},
    {"near_action": "flag", "far_action": "flag"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_level_0_of_a_cascade_equals_brute_force(backend_name: str, tmp_path: Path, options: dict[str, Any]) -> None:
    rows = keyed_rows("level 0")
    recipe = Recipe(method="cascade", key_field="url", **full(options))
    copies = first_of_key(rows, recipe.keep)
    removes = (recipe.key_action or recipe.action) == "remove"
    want = joined(judged(without(rows, copies) if removes else rows, recipe), copies, recipe)
    ran = harness.run([harness.write_rows(tmp_path / "a.jsonl", rows)], tmp_path / "out", recipe, backend=backend_name)
    assert {e["row"]: (e["kept_row"], e["reason"], e["level"], e["action"]) for e in ran.removed} == want
    assert {"key", "near"} <= {verdict[1] for verdict in want.values()}
    gone = {row for row, verdict in want.items() if verdict[3] == "remove"}
    assert ran.ids == [row["id"] for i, row in enumerate(rows) if i not in gone]
    for entry in ran.removed:
        assert entry["witness_kept"]
        if entry["reason"] == "key":
            first = copies[entry["row"]]
            assert entry["similarity"] is None
            if entry["kept_row"] == first:
                assert (entry["guarantee"], entry["linked_row"]) == ("kept-witness", None)
            else:
                assert entry["linked_row"] == first
                level = want[first][2]
                assert entry["guarantee"] == ("probabilistic" if level == 1 else "chain")
    level = ran.report["result"]["levels"][0]
    with_key = sum(1 for row in rows if key_of(row) is not None)
    assert (level["level"], level["looked"], level["matched"], level["caught"]) == (
        0, with_key, len(copies), len(copies),
    )  # fmt: skip
    assert level["matched"] <= level["within"] < with_key
    assert level["action"] == ("remove" if removes else "flag")


METHODS: list[dict[str, Any]] = [
    {"method": "exact"},
    {"method": "exact", "keep": "min:score", "on_no_text": "drop"},
    {"method": "minhash", "threshold_ppm": 600_000},
    {"method": "minhash", "threshold_ppm": 600_000, "cluster": "connected", "keep": "shortest"},
    {"method": "minhash", "threshold_ppm": 600_000, "verify": "none"},
    {"method": "simhash", "verify": "none"},
    {"method": "simhash", "distance": 8, "weights": "tfidf"},
    {"method": "cascade", "distance": 1},
]


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_other_methods_see_the_rows_that_keys_leave(tmp_path: Path, options: dict[str, Any]) -> None:
    """A run with keys is a run over the rows that are no copies by key, and those beside it."""
    rows = keyed_rows("methods")
    plain = Recipe(**options)
    copies = first_of_key(rows, plain.keep)
    left = [row for i, row in enumerate(rows) if i not in copies]
    place = [i for i in range(len(rows)) if i not in copies]
    alone = harness.run([harness.write_rows(tmp_path / "left.jsonl", left)], tmp_path / "plain", plain)
    path = harness.write_rows(tmp_path / "a.jsonl", rows)
    ran = harness.run([path], tmp_path / "out", plain.with_(key_field="url"))
    gone = {place[e["row"]]: e for e in alone.removed}
    for entry in ran.removed:
        if entry["reason"] == "key":
            first = copies[entry["row"]]
            stands = place[gone[first]["kept_row"]] if first in gone else first
            assert (entry["kept_row"], entry["linked_row"]) == (stands, first if first in gone else None)
            chain = "probabilistic" if plain.verify == "none" or gone.get(first, {}).get("level") == 1 else "chain"
            assert entry["guarantee"] == ("kept-witness" if stands == first else chain)
            continue
        other = gone[entry["row"]]
        assert entry["kept_row"] == (None if other["kept_row"] is None else place[other["kept_row"]])
        for name in ("reason", "similarity", "shared", "union", "distance", "level", "guarantee", "linked_similarity"):
            assert entry[name] == other[name], name
    assert {e["row"] for e in ran.removed} == set(gone) | set(copies)
    assert ran.report["result"]["counts"]["by_reason"]["key"] == len(copies) > 0
    assert (
        "copies by the key url" in dedup([str(path)], None, plain.with_(key_field="url"), Run(dry_run=True)).summary()
    )


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 9)), max_size=14), st.data())
@settings(max_examples=25)
def test_anything_equals_brute_force(picked: list[tuple[int, int, int]], data: st.DataObject) -> None:
    texts = ["", "one two three four", "one two three five", "six seven", "- -", "six seven eight nine ten eleven"]
    keys = [None, "a", "b", 1, 1.0]
    rows = [
        {"id": i, "text": texts[t], "url": keys[k], "score": score} for i, (k, t, score) in enumerate(picked)
    ]  # fmt: skip
    rows.append({"id": len(rows), "text": "x", "url": "z", "score": 0})
    recipe = Recipe(
        method="cascade", key_field="url", distance=2, far_distance=40, far_jaccard_ppm=200_000, far_edit_ppm=300_000,
        shingle="token:1", bands=100, rows=1, sieve_cut=0,
        keep=data.draw(st.sampled_from(["first", "longest", "max:score"])),
        key_action=data.draw(st.sampled_from([None, "remove", "flag"])),
        action=data.draw(st.sampled_from(["remove", "flag"])),
    )  # fmt: skip
    copies = first_of_key(rows, recipe.keep)
    removes = (recipe.key_action or recipe.action) == "remove"
    want = joined(judged(without(rows, copies) if removes else rows, recipe), copies, recipe)
    with tempfile.TemporaryDirectory() as place:
        path = harness.write_rows(Path(place) / "in" / "a.jsonl", rows)
        ran = harness.run([path], Path(place) / "out", recipe, backend="numpy", threads=1)
    assert {e["row"]: (e["kept_row"], e["reason"], e["level"], e["action"]) for e in ran.removed} == want


def test_settings_and_starts_change_nothing(tmp_path: Path) -> None:
    """Threads, batches, backends, shards, little memory, and a start that goes on from what an earlier one left."""
    rows = keyed_rows("settings")
    paths = [
        harness.write_rows(tmp_path / "in" / f"{i}.jsonl", rows[i::3]) for i in range(3)
    ]  # fmt: skip
    recipe = Recipe(method="cascade", key_field="url", keep="longest", distance=2, far_distance=9)
    runs = [
        harness.run(paths, tmp_path / f"out{i}", recipe, **way)
        for i, way in enumerate(
            [
                {"backend": "numpy", "threads": 1}, {"backend": "numba", "threads": 3, "batch_bytes": 500},
                {"backend": "numba", "memory": 700 * 10**6, "threads": 1},
                {"backend": "numba", "keep_work": True, "work_dir": str(tmp_path / "work"), "checkpoint": 3000},
                {"backend": "numba", "keep_work": True, "work_dir": str(tmp_path / "work"), "checkpoint": 3000},
            ]
        )
    ]  # fmt: skip
    assert "key" in {entry["reason"] for entry in runs[0].removed}
    for ran in runs[1:]:
        assert ran.removed == runs[0].removed
        assert ran.report["result"] == runs[0].report["result"]
    assert any("going on from" in note for note in runs[-1].report["machine"]["notes"])
    report = dedup([str(p) for p in paths], str(tmp_path / "shards"), recipe, Run(progress=False), processes=2)
    assert harness.removed_rows(tmp_path / "shards") == runs[0].removed
    assert report.levels[0].matched == runs[0].report["result"]["levels"][0]["matched"]


def test_a_decision_of_flags_is_not_taken_for_one_of_removals(tmp_path: Path) -> None:
    """--action is no part of a decision, but where keys are removed other rows are looked at than where they are
    flagged."""
    rows = keyed_rows("decision")
    path = harness.write_rows(tmp_path / "a.jsonl", rows)
    kept = {"keep_work": True, "work_dir": str(tmp_path / "work"), "checkpoint": 100, "backend": "numba"}
    recipe = Recipe(key_field="url", threshold_ppm=600_000)
    harness.run([path], tmp_path / "flag", recipe.with_(action="flag"), **kept)
    ran = harness.run([path], tmp_path / "remove", recipe, **kept)
    assert ran.removed == harness.run([path], tmp_path / "fresh", recipe).removed


@pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
def test_a_sieve_loses_no_row_that_has_company(rng: np.random.Generator, tmp_path: Path, share: float) -> None:
    n = 4000
    digest = rng.integers(0, 2**63, (n, 2)).astype(np.uint64)
    digest[rng.random(n) < share] = digest[rng.integers(0, 9)]
    digest[5, 0] = digest[6, 0]  # equal in one word alone
    part_in = rng.random(n) < 0.9
    company: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(part_in).tolist():
        company.setdefault((int(digest[row, 0]), int(digest[row, 1])), []).append(row)
    together = {row for rows in company.values() if len(rows) > 1 for row in rows}
    repeats = sum(len(rows) - 1 for rows in company.values())
    seen = []
    for name, budget in (("numpy", Budget(10**9)), ("numba", Budget(10**9)), ("numba", Budget(0))):
        with Table(np.uint64, 2, lambda: str(tmp_path), budget) as table:
            table.append(digest)
            table.finish()
            meets, sieved = may_meet(table, part_in, host_backend(name), 2)
        found = set(np.flatnonzero(meets).tolist())
        assert together <= found <= set(np.flatnonzero(part_in).tolist())
        assert len(found) < len(together) + n // 10
        assert sieved.asked == np.count_nonzero(part_in)
        assert repeats <= sieved.may_repeat < repeats + n // 10
        seen.append((found, sieved))
    assert seen[0] == seen[1] == seen[2]


def test_what_is_a_key() -> None:
    values = [
        "a", "A", 1, 1.0, Decimal("1.00"), "1", True, None, MISSING, "", float("nan"), [1], {"a": 1}, 2**70,
        float(2**70), 0.5, "\0number\x001", TypedText("2020-01-01", "date"), "2020-01-01", b"\x01", "é", "e\u0301",
        -0.0, 0, "\ud800", float("inf"),
    ]  # fmt: skip
    tape, length, refused = keys_of(values)
    assert [values[i] for i in range(len(values)) if length[i] == NO_KEY] == [
        True, None, MISSING, "", pytest.approx(float("nan"), nan_ok=True), [1], {"a": 1},
    ]  # fmt: skip
    assert refused == [(6, "true or false"), (11, "a list"), (12, "an object")]
    same: dict[bytes, list[int]] = {}
    for i in np.flatnonzero(length != NO_KEY).tolist():
        assert len(tape[i]) == length[i]
        same.setdefault(tape[i], []).append(i)
    assert [places for places in same.values() if len(places) > 1] == [[2, 3, 4], [13, 14], [22, 23]]


def test_keys_of_columns_and_separated_values(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": ["one", "two", "three", "four", "five"],
            "day": pa.array([1, 1, 2, None, None], pa.date32()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    ran = harness.run([tmp_path / "a.parquet"], tmp_path / "out", Recipe(method="exact", key_field="day"))
    assert [(e["row"], e["kept_row"], e["reason"]) for e in ran.removed] == [(1, 0, "key")]
    (tmp_path / "b.csv").write_text("text,url\none,u\ntwo,u\nthree,\nfour,\nfive,1\nsix,1.0\n")
    ran = harness.run([tmp_path / "b.csv"], tmp_path / "csv", Recipe(key_field="url"))
    assert [(e["row"], e["kept_row"], e["reason"]) for e in ran.removed] == [(1, 0, "key")]


def test_texts_in_memory() -> None:
    recipe = Recipe(method="exact", key_field="url")
    result = dedup_texts(["a", "b", "c", "b"], recipe, keys=["x", "x", None, None], ids=list("pqrs"))
    assert result.keep.tolist() == [True, False, True, True]
    assert result.removals.column("reason").to_pylist() == ["key"]
    assert dedup_texts(["a", "b"], recipe.with_(key_field="id"), ids=["x", "x"]).keep.tolist() == [True, False]
    with pytest.raises(RecipeError, match="give its values as keys"):
        dedup_texts(["a"], recipe)
    with pytest.raises(RecipeError, match="keys mean nothing without key_field"):
        dedup_texts(["a"], Recipe(), keys=["a"])


def test_what_keys_cannot_be_is_refused(tmp_path: Path) -> None:
    for options, words in (
        ({"method": "lshbloom"}, "use method bloom"), ({"keep": "none"}, "keep none keeps no copy"),
        ({"on_no_text": "drop"}, "on-no-text drop takes out rows"), ({"key_action": "drop"}, "key-action 'drop'"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=words):
            Recipe(key_field="url", **options)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="key-action is for copies by key-field"):
        Recipe(key_action="flag")
    path = harness.write_rows(tmp_path / "a.jsonl", [{"text": "a", "url": "x"}, {"text": "b", "url": ["x"]}])
    for name in ("numpy", "numba"):
        with pytest.raises(InputError, match=r"a\.jsonl:2: key-field url is a list, which no key can be; .*on-bad-row"):
            dedup([str(path)], None, Recipe(key_field="url"), Run(dry_run=True, progress=False, backend=name))
    assert dedup([str(path)], None, Recipe(key_field="url", on_bad_row="keep"), Run(dry_run=True)).counts.kept == 2
    with pytest.raises(RecipeError, match=r"key-field 'ulr': no row has a value in it \(fields here: text, url\)"):
        dedup([str(path)], None, Recipe(key_field="ulr", on_bad_row="keep"), Run(dry_run=True, progress=False))
    (tmp_path / "t.txt").write_text("text")
    with pytest.raises(RecipeError, match="key-field 'url' names a field, and plain text has none"):
        dedup([str(tmp_path / "t.txt")], None, Recipe(key_field="url"), Run(dry_run=True, progress=False))
