"""--method cascade against brute force over all pairs: every level, action and keeper; what the report counts."""

from __future__ import annotations

import functools
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpora
import harness
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import cli, hamming, outlook
from gpu_dedup.backend import host_backend
from gpu_dedup.cluster import Crowd, FarMatches, Pairs, decide_levels
from gpu_dedup.errors import RecipeError, RunError
from gpu_dedup.outlook import Corpus
from gpu_dedup.pipeline import dedup, settle
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import Report
from gpu_dedup.run import Run

WORDS = corpora.made_up(random.Random("test_cascade"), 2000)
# Finds every pair of level 2, whatever the bits: see harness.FULL_RECALL.
FULL = {"bands": 64, "rows": 2, "sieve_cut": 0}


def full(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a cascade, and such bands where it has any."""
    return {**(FULL if Recipe(method="cascade", **{"key_field": "url", **options}).banded else {}), **options}


def rows_of(seed: str, families: int = 3) -> list[dict[str, Any]]:
    """Families at rising distances from their first text, in a mixed order; exact copies among them."""
    rng = random.Random(seed)
    texts = []
    for family in range(families):
        base = WORDS[200 * family : 200 * family + 45]
        texts += [" ".join(base)] * 2
        texts += [" ".join(base) + mark for mark in ("!", " ?")]  # the same shingles
        texts += [" ".join([*base, *WORDS[1500 + 3 * i : 1501 + 4 * i]]) for i in range(4)]
        texts += [" ".join(corpora.exchange(rng, base, 1 + i % 3)) for i in range(4)]
        texts.append(texts[-1].upper())
    rng.shuffle(texts)
    return [{"id": i, "text": text, "score": (i * 37) % 41} for i, text in enumerate(texts)]


edit_distance = functools.cache(oracle.edit_distance)


@functools.cache
def fingerprint(text: str, unit: str, n: int) -> int:
    return oracle.Prints(0).signature(oracle.windows(text, unit, n))


Verdict = dict[int, tuple[int, str, int | None, str]]  # row -> witness, reason, level, action


def judged(rows: list[dict[str, Any]], recipe: Recipe) -> Verdict:
    """The rule by its words: all pairs, no search, no order of work."""
    docs = [oracle.Doc("a.jsonl", i, row["text"], row["id"], row.get("score")) for i, row in enumerate(rows)]
    ranked = oracle.keeper_order(docs, recipe.keep)
    text = {doc.row: oracle.normalise(doc.text, recipe.steps) for doc in docs}
    spec = recipe.spec
    windows = {row: list(oracle.windows(value, spec.unit, spec.n)) for row, value in text.items()}
    prints = {row: fingerprint(text[row], spec.unit, spec.n) for row in text}
    head: dict[str, int] = {}
    heads: list[int] = []
    for doc in ranked:
        if text[doc.row] and text[doc.row] not in head:
            head[text[doc.row]] = doc.row
            if windows[doc.row]:
                heads.append(doc.row)

    def level_of(x: int, y: int) -> int | None:
        bits = (prints[x] ^ prints[y]).bit_count()
        if bits <= recipe.distance:
            return 1
        if bits > recipe.far_distance:
            return None
        shared, union = oracle.jaccard(frozenset(windows[x]), frozenset(windows[y]))
        if not oracle.meets(shared, union, recipe.far_jaccard_ppm):
            return None
        longest = max(len(text[x]), len(text[y]))
        same = longest - edit_distance(text[x], text[y])
        return 2 if longest <= recipe.edit_max_chars and oracle.meets(same, longest, recipe.far_edit_ppm) else None

    flags = {1: (recipe.near_action or recipe.action) == "flag", 2: (recipe.far_action or recipe.action) == "flag"}
    state: dict[int, str] = {}
    out: Verdict = {}
    for place, x in enumerate(heads):
        kinds = {y: level_of(x, y) for y in heads[:place]}
        removing = [y for y in heads[:place] if kinds[y] and not flags[kinds[y]] and state[y] != "removed"]
        flagging = [y for y in heads[:place] if kinds[y] and flags[kinds[y]] and state[y] == "stays"]
        state[x] = "removed" if removing else "flagged" if flagging else "stays"
        if removing or flagging:
            witness = (removing or flagging)[0]
            out[x] = witness, "near", kinds[witness], "remove" if removing else "flag"
    for doc in docs:
        own = head.get(text[doc.row])
        if own is None or own == doc.row:
            continue
        if own in out and (out[own][3] == "remove" or recipe.action == "flag"):
            witness, _, level, action = out[own]
            out[doc.row] = witness, "exact+near", level, action
        else:
            out[doc.row] = own, "exact", None, recipe.action
    return out


def check(ran: harness.Ran, rows: list[dict[str, Any]], recipe: Recipe) -> Verdict:
    want = judged(rows, recipe)
    assert {
        entry["row"]: (entry["kept_row"], entry["reason"], entry["level"], entry["action"]) for entry in ran.removed
    } == want
    gone = {row for row, verdict in want.items() if verdict[3] == "remove"}
    assert ran.ids == [row["id"] for i, row in enumerate(rows) if i not in gone and row["text"] is not None]
    for entry in ran.removed:
        assert entry["witness_kept"]
        if entry["level"] == 1:
            assert (entry["guarantee"], entry["similarity"]) == ("probabilistic", None)
            assert entry["distance"] <= recipe.distance
        elif entry["level"] == 2:
            assert entry["guarantee"] == "kept-witness"
            assert recipe.distance < entry["distance"] <= recipe.far_distance
            assert oracle.meets(entry["shared"], entry["union"], recipe.far_jaccard_ppm)
            one, other = (oracle.normalise(rows[entry[name]]["text"], recipe.steps) for name in ("row", "kept_row"))
            if entry["reason"] == "near":
                longest = max(len(one), len(other))
                assert entry["edit_similarity"] == (longest - edit_distance(one, other)) / longest
            assert entry["edit_similarity"] >= recipe.far_edit_ppm / 10**6
        else:
            assert entry["edit_similarity"] is None
    return want


RECIPES: list[dict[str, Any]] = [
    {},
    {"distance": 1, "search_distance": 7},
    {"distance": 2, "far_action": "flag"},
    {"distance": 4, "near_action": "flag", "keep": "longest"},
    {"distance": 2, "action": "flag"},
    {"distance": 2, "action": "flag", "near_action": "remove", "keep": "max:score"},
    {"distance": 0, "far_distance": 20, "far_jaccard_ppm": 500_000, "far_edit_ppm": 950_000},
    {"distance": 3, "far_distance": 3},
    {"distance": 1, "far_distance": 12, "edit_max_chars": 400},
]


@pytest.mark.parametrize("options", RECIPES, ids=str)
def test_equals_brute_force(backend_name: str, tmp_path: Path, options: dict[str, Any]) -> None:
    rows = rows_of("brute force")
    recipe = Recipe(method="cascade", **full(options))
    ran = harness.run([harness.write_rows(tmp_path / "a.jsonl", rows)], tmp_path / "out", recipe, backend=backend_name)
    want = check(ran, rows, recipe)
    levels = {verdict[2] for verdict in want.values()}
    assert {1} <= levels or recipe.distance == 0
    assert {2} <= levels or recipe.far_distance == recipe.distance or recipe.edit_max_chars < 500


def test_the_search_by_fingerprints_needs_no_bands(tmp_path: Path) -> None:
    """A band of sixteen rows finds hardly anything; fingerprints to far-distance find all, without sketches."""
    rows = rows_of("no bands")
    narrow = {"bands": 1, "rows": 16, "sieve_cut": 16}
    path = harness.write_rows(tmp_path / "a.jsonl", rows)
    recipe = Recipe(method="cascade", distance=1, far_distance=8, search_distance=8)
    want = check(harness.run([path], tmp_path / "all", recipe), rows, recipe)
    few = harness.run([path], tmp_path / "few", recipe.with_(search_distance=None, **narrow))
    assert len(few.removed) < len(want)
    settled = settle(recipe)
    assert (settled.bands, settled.rows, settled.sieve_cut) == (None, None, None)
    for chosen, other in (
        ({"search_distance": 7}, "7 bits, which is all of far-distance 7"),
        ({"far_distance": 3}, "3 bits, which is all of far-distance 3"),
    ):
        with pytest.raises(RecipeError, match=f"num-perm is for bands, and this cascade has none: .* {other}; drop it"):
            Recipe(method="cascade", num_perm=64, **chosen)
    # A recall that no bands reach is nothing to a search without them.
    hard = {"far_jaccard_ppm": 10_000, "method": "cascade"}
    with pytest.raises(RecipeError):
        settle(Recipe(**hard))
    assert settle(Recipe(**hard, search_distance=7)).bands is None


@pytest.mark.parametrize("option", ["--recall=0.9", "--num-perm=64", "--seed=4", "--bucket-cap=9"])
def test_options_of_bands_that_are_not_there(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more, why in (
        (["--far-distance=3"], "which has no pairs"),
        (["--search-distance=7"], "whose pairs --search-distance 7 finds all"),
    ):
        assert cli.main(["explain", "--method=cascade", option, *more]) == 2
        said = capsys.readouterr().err
        assert said == f"gpu-dedup: {option.partition('=')[0]} is for the bands of level 2, {why}; drop it\n"


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    rng = random.Random(draw(st.integers(0, 2**32)))
    vocabulary = [*corpora.ENGLISH[:8], "深", "-"]
    out: list[str] = []
    for _ in range(draw(st.integers(1, 11))):
        if out and rng.random() < 0.7:
            words = rng.choice(out).split(" ")
            words[rng.randrange(len(words))] = rng.choice(vocabulary)
            out.append(" ".join(words))
        else:
            out.append(" ".join(rng.choice(vocabulary) for _ in range(rng.randint(0, 30))))
    return out


@given(
    texts(), st.integers(0, 5), st.integers(0, 30), st.sampled_from(["first", "longest", "shortest"]),
    st.sampled_from([(None, None), ("flag", None), (None, "flag"), ("flag", "flag")]),
    st.sampled_from(["remove", "flag"]), st.sampled_from(["token:1", "token:3", "char:4"]),
)  # fmt: skip
@settings(max_examples=30)
def test_anything_equals_brute_force(
    found: list[str], distance: int, more: int, keep: str, actions: tuple[str | None, str | None], action: str,
    shingle: str,
) -> None:  # fmt: skip
    rows = [{"id": i, "text": text} for i, text in enumerate(found)]
    recipe = Recipe(
        method="cascade", distance=distance, far_distance=distance + more, keep=keep, near_action=actions[0],
        far_action=actions[1], action=action, shingle=shingle, far_jaccard_ppm=400_000, far_edit_ppm=600_000,
        **({"bands": 100, "rows": 1, "sieve_cut": 0} if more else {}),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        path = harness.write_rows(Path(place) / "in" / "a.jsonl", rows)
        check(harness.run([path], Path(place) / "out", recipe, backend="numpy", threads=1), rows, recipe)


def test_the_report_counts_each_level(tmp_path: Path) -> None:
    rows = rows_of("report")
    path = harness.write_rows(tmp_path / "a.jsonl", rows)
    recipe = Recipe(method="cascade", distance=2, far_action="flag", far_distance=10, **FULL)
    report = dedup([str(path)], str(tmp_path / "out"), recipe, Run(progress=False))
    exact, near, far = report.levels
    want = judged(rows, recipe)
    assert (exact.level, exact.action, exact.looked) == (0, "remove", len(rows))
    assert exact.matched == exact.caught == sum(1 for v in want.values() if v[1] != "near")
    assert (near.level, near.action, far.level, far.action) == (1, "remove", 2, "flag")
    assert near.caught == sum(1 for v in want.values() if v[1:3] == ("near", 1))
    assert far.caught == sum(1 for v in want.values() if v[1:3] == ("near", 2))
    assert far.looked >= far.within >= far.alike >= far.matched >= far.caught > 0
    assert report.counts.flagged == sum(1 for v in want.values() if v[3] == "flag")
    assert {"near fingerprints", "collide", "level 2", "read candidates again"} <= set(report.machine.stages)
    assert report.forecast[0].keys() == {"similarity", "near", "between", "bands", "far", "found"}
    assert (tmp_path / "out" / "_gpu_dedup" / "report.html").read_text().count("level 2 to 10 bits") == 1
    summary = report.summary()
    assert f"copies by equal texts, of {len(rows)} rows" in summary
    assert "pairs at 2 bits or less, not verified" in summary
    assert "texts flagged" in summary
    assert Report.load(str(tmp_path / "out")).to_dict() == report.to_dict()


@dataclass
class Groups:
    leader: Any
    hi: Any
    lo: Any
    count: int


@given(st.data())
@settings(max_examples=150)
def test_rounds_decide_as_all_pairs_at_once(data: st.DataObject) -> None:
    """Groups, far pairs and matches at random: whoever is asked, and in however many rounds, the decision is that of
    the kernel over all matches, and each pair is asked about once at most."""
    m = data.draw(st.integers(1, 12))
    leader = np.arange(m)
    for i in range(m):  # a group is led by its lowest member
        leader[i] = leader[data.draw(st.integers(0, i))]
    leaders = sorted(set(leader.tolist()))
    all_pairs = [(h, low) for h in range(m) for low in range(h)]
    groups = [(h, low) for h in leaders for low in leaders if low < h]
    near = data.draw(st.lists(st.sampled_from(groups), unique=True, max_size=3)) if groups else []
    crowd = Crowd(Groups(leader, *_columns(near), 99), m)
    together = {(leader[h], leader[low]) for h, low in near}
    free = [
        (h, low)
        for h, low in all_pairs
        if leader[h] != leader[low] and not {(leader[h], leader[low]), (leader[low], leader[h])} & together
    ]
    pairs = sorted(data.draw(st.lists(st.sampled_from(free), unique=True))) if free else []
    matched = np.array([data.draw(st.booleans()) for _ in pairs], bool)
    hi, lo = _columns(pairs)
    asked: list[int] = []

    def judge(chosen: Any) -> FarMatches:
        asked.extend(chosen.tolist())
        return FarMatches(matched[chosen], chosen + 1, chosen + 2, chosen + 3, chosen + 4)

    near_flags, far_flags, most = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.integers(1, 5))
    recipe = Recipe(
        method="cascade", near_action="flag" if near_flags else "remove", far_action="flag" if far_flags else "remove"
    )
    backend = host_backend("numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_dedup.cluster.MAX_ROUNDS", most)
        found = decide_levels(crowd, m, Pairs(hi, lo), judge, recipe, backend, {"verified": 0, "over_cap": 0})
    witness, level, state = backend.levels(*crowd.graph, hi[matched], lo[matched], near_flags, far_flags)
    assert found.witness.tolist() == witness.tolist()
    assert found.level is not None
    assert found.flagged is not None
    assert found.level.tolist() == level.tolist()
    assert found.flagged.tolist() == (state == 1).tolist()
    assert len(asked) == len(set(asked))
    for head in np.flatnonzero(level == 2).tolist():
        number = pairs.index((head, int(witness[head])))
        counts = found.shared, found.union, found.edit_same, found.edit_longest
        assert [column[head] for column in counts if column is not None] == [number + i for i in (1, 2, 3, 4)]


def _columns(pairs: list[tuple[int, int]]) -> tuple[Any, Any]:
    return np.array([h for h, _ in pairs], np.int64), np.array([low for _, low in pairs], np.int64)


def test_a_pair_that_changes_nothing_is_not_looked_at(tmp_path: Path) -> None:
    """Thirty texts that are all alike: one is held against 29, and not 435 pairs with one another."""
    rng = random.Random("lazy")
    base = WORDS[:300]
    rows = [{"id": i, "text": " ".join(corpora.exchange(rng, base, 3))} for i in range(30)]
    path = harness.write_rows(tmp_path / "a.jsonl", rows)
    recipe = Recipe(method="cascade", distance=0, far_distance=30, far_jaccard_ppm=500_000, **FULL)
    report = dedup([str(path)], None, recipe, Run(dry_run=True, progress=False))
    assert report.levels[2].within > 400
    assert report.verification is not None
    assert report.verification.verified < 40
    assert report.counts.kept == 1


@pytest.mark.parametrize("weights", ["set", "tfidf"])
def test_threads_backends_and_batches_change_nothing(weights: str, tmp_path: Path) -> None:
    path = harness.write_rows(tmp_path / "a.jsonl", rows_of("settings"))
    recipe = Recipe(method="cascade", distance=2, far_distance=9, search_distance=5, far_action="flag", weights=weights)
    ways: list[dict[str, Any]] = [
        {"backend": "numpy", "threads": 1}, {"backend": "numba", "threads": 3, "batch_bytes": 500},
        {"backend": "numba", "threads": 1, "memory": 800 * 10**6},
    ]  # fmt: skip
    runs = [harness.run([path], tmp_path / f"out{i}", recipe, **way) for i, way in enumerate(ways)]
    assert {1, 2} <= {entry["level"] for entry in runs[0].removed}
    for ran in runs[1:]:
        assert ran.removed == runs[0].removed
        assert ran.report["result"] == runs[0].report["result"]
        assert ran.rows("a.jsonl") == runs[0].rows("a.jsonl")


def test_too_many_pairs_of_level_2_end_with_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = harness.write_rows(tmp_path / "a.jsonl", rows_of("many"))
    monkeypatch.setattr("gpu_dedup.pipeline.near.MOST_FAR", 3)
    with pytest.raises(RunError, match=r"pairs of texts are 1 to 8 bits apart, over the 3 .*lower --search-distance"):
        dedup(
            [str(path)],
            None,
            Recipe(method="cascade", distance=0, far_distance=8, search_distance=8),
            Run(dry_run=True, progress=False),
        )


def test_the_chances_of_levels_by_hand() -> None:
    (low, high) = hamming.level_forecast([(0.5, 0.4), (0.9, 0.5)], 3, 3, 7, 0.75)
    near, to_far = hamming.chance_within(0.9, 3), hamming.chance_within(0.9, 7)
    assert (low.far, low.found) == (0.0, hamming.chance_within(0.5, 3))
    assert (high.near, high.far) == (near, pytest.approx((to_far - near) * 0.5))
    assert high.found == pytest.approx(near + (to_far - near) * 0.5)
    (searched,) = hamming.level_forecast([(0.9, 0.0)], 3, 7, 7, 0.75)
    assert searched.found == pytest.approx(to_far)


def test_what_levels_cannot_be_is_refused() -> None:
    for options, words in (
        ({"cluster": "connected"}, "rank rule alone"), ({"witness": "best"}, "rank rule alone"),
        ({"verify": "none"}, "drop verify"), ({"sketch": "fast"}, "drop sketch fast"),
        ({"far_distance": 65}, "far-distance 65 is outside 0 to 64"),
        ({"far_jaccard_ppm": 0}, "far-jaccard 0 is outside"),
        ({"search_distance": 8}, "more would find none of level 2"), ({"near_action": "drop"}, "near-action 'drop'"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=words):
            Recipe(method="cascade", **options)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="method cascade decides by distance and two"):
        dedup(["x"], None, Recipe(method="cascade"), Run(dry_run=True, audit=5, progress=False))


def test_explain_shows_both_levels() -> None:
    text = outlook.explain(Recipe(method="cascade", search_distance=7), Run(), Corpus.of(1_000_000, 2000))
    assert "cascade token:5, distance 3; to 7 with Jaccard 0.75 and edit similarity 0.75, no bands" in text
    assert "Its pairs come from fingerprints to 7 bits: no bands are needed." in text
    assert "Sieve" not in text
    assert "slots" not in text
    none = outlook.explain(Recipe(method="cascade", far_distance=3), Run(), None)
    assert "Level 2: none, as far-distance is distance." in none
    text = outlook.explain(Recipe(method="cascade", search_distance=6), Run(), Corpus.of(1_000_000, 2000))
    assert "  level 1  4 to 7 bits  in bands  level 2      found" in text
    assert "and from fingerprints to 6 bits" in text
    line = next(line for line in text.splitlines() if line.startswith("  0.95"))
    assert line.split()[1:3] == ["31.2", "%"]
