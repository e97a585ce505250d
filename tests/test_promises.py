"""What holds for every input: properties over generated corpora, judged by the oracle from the raw texts."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import corpora
import harness
from harness import FULL_RECALL
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.recipe import Recipe

SMALL = settings(max_examples=20)
VOCABULARY = [*corpora.ENGLISH[:12], "深", "夜", "ﬁn", "Straße", "-", "\U0001f600"]


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    """Texts that are often near copies: words of a tiny vocabulary, and edited copies of earlier texts."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    out: list[str] = []
    for _ in range(draw(st.integers(1, 14))):
        if out and rng.random() < 0.7:
            words = rng.choice(out).split(" ")
            for _ in range(rng.randint(0, 2)):
                words[rng.randrange(len(words))] = rng.choice(VOCABULARY)
            out.append(" ".join(words))
        else:
            out.append(" ".join(rng.choice(VOCABULARY) for _ in range(rng.randint(0, 60))))
    return out


recipes = st.builds(
    Recipe,
    shingle=st.sampled_from(["token:1", "token:2", "token:5", "char:4", "word:2", "code:3", "byte:6"]),
    threshold_ppm=st.sampled_from([300_000, 500_000, 800_000, 1_000_000]),
    keep=st.sampled_from(["first", "longest", "shortest", "max:score", "min:score"]),
    witness=st.sampled_from(["lowest", "best"]),
    bands=st.just(80),  # a pair at 0.3 is missed with a chance of 0.7 ** 80 < 1e-12
    rows=st.just(1),
    sieve_cut=st.just(0),
)
scores = st.lists(st.sampled_from([None, 0, 1, 2.5, float("nan"), 10**20]), min_size=14, max_size=14)


def rows_of(found: list[str], values: list[Any]) -> list[dict[str, Any]]:
    return [{"id": i, "text": text, "score": value} for i, (text, value) in enumerate(zip(found, values, strict=False))]


def go(rows: list[dict[str, Any]] | dict[str, list[dict[str, Any]]], recipe: Recipe) -> harness.Ran:
    with tempfile.TemporaryDirectory() as place:
        files = rows if isinstance(rows, dict) else {"a.jsonl": rows}
        paths = [harness.write_rows(Path(place) / "in" / name, part) for name, part in files.items()]
        ran = harness.run(paths, Path(place) / "out", recipe, backend="numpy", threads=1)
        ran.kept_ids = ran.ids  # type: ignore[attr-defined]  # read before the folder goes
        ran.missed = ran.check(harness.rules_of(recipe), "score")  # type: ignore[attr-defined]
        return ran


@SMALL
@given(texts(), scores, recipes)
def test_every_removal_has_a_kept_witness_and_nothing_removable_stays(
    found: list[str], values: list[Any], recipe: Recipe
) -> None:
    ran = go(rows_of(found, values), recipe)  # `check` asserts the witnesses, counts and bytes
    assert ran.missed == []  # type: ignore[attr-defined]
    assert all(entry["witness_kept"] and entry["guarantee"] == "kept-witness" for entry in ran.removed)


@SMALL
@given(texts(), recipes, st.data())
def test_an_exact_copy_changes_no_other_decision(found: list[str], recipe: Recipe, data: st.DataObject) -> None:
    rows = rows_of(found, [i % 5 for i in range(len(found))])
    chosen = data.draw(st.integers(0, len(rows) - 1))
    before = go(rows, recipe)
    after = go([*rows, {**rows[chosen], "id": "copy"}], recipe)
    log = {entry["row"]: entry for entry in after.removed}
    copy = log.pop(len(rows), None)
    assert list(log.values()) == before.removed
    if found[chosen].split() == []:
        assert copy is None
    else:
        assert copy is not None
        original = log.get(chosen)
        if original is None:
            assert (copy["kept_row"], copy["reason"], copy["similarity"]) == (chosen, "exact", 1.0)
        else:
            assert copy["kept_row"] == original["kept_row"]


@SMALL
@given(texts(), st.permutations(range(14)), st.integers(1, 5), st.sampled_from(["max:score", "min:score"]))
def test_order_and_packing_do_not_matter_to_a_keeper_with_distinct_values(
    found: list[str], permutation: list[int], files: int, keep: str
) -> None:
    rows = rows_of(found, [(i * 5 + 3) % 14 for i in range(len(found))])
    recipe = Recipe(keep=keep, shingle="token:2", threshold_ppm=500_000, **FULL_RECALL)
    plain = go(rows, recipe)
    shuffled = [rows[i] for i in permutation if i < len(rows)]
    size = -(-len(shuffled) // files)
    parts = {f"{i}.jsonl": shuffled[i * size : (i + 1) * size] for i in range(files)}
    mixed = go(parts, recipe)
    assert sorted(mixed.kept_ids) == sorted(plain.kept_ids)  # type: ignore[attr-defined]
    assert {e["id"]: (e["kept_id"], e["shared"], e["union"]) for e in mixed.removed} == {
        e["id"]: (e["kept_id"], e["shared"], e["union"]) for e in plain.removed
    }


@SMALL
@given(texts())
def test_running_on_the_output_removes_nothing_more(found: list[str]) -> None:
    """A representative rule leaves nothing removable, so a second run finds nothing."""
    recipe = Recipe(shingle="token:2", threshold_ppm=500_000, **FULL_RECALL)
    once = go(rows_of(found, [0] * 14), recipe)
    left = [row for row in rows_of(found, [0] * 14) if row["id"] in set(once.kept_ids)]  # type: ignore[attr-defined]
    assert go(left, recipe).removed == []


@SMALL
@given(texts(), st.sampled_from([300_000, 500_000, 800_000]))
def test_connected_removes_at_least_what_representative_removes(found: list[str], threshold: int) -> None:
    recipe = Recipe(shingle="token:2", threshold_ppm=threshold, **FULL_RECALL)
    representative = {entry["row"] for entry in go(rows_of(found, [0] * 14), recipe).removed}
    connected = {entry["row"] for entry in go(rows_of(found, [0] * 14), recipe.with_(cluster="connected")).removed}
    assert representative <= connected
