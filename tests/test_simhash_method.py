"""--method simhash from files to files: candidates by Hamming distance, verified or not, as plain Python decides."""

from __future__ import annotations

import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import corpora
import harness
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import cli, outlook
from gpu_dedup.errors import RecipeError, RunError
from gpu_dedup.outlook import Corpus
from gpu_dedup.pipeline import dedup
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import Report
from gpu_dedup.run import Run

WORDS = corpora.made_up(random.Random("test_simhash_method"), 3000)


def prose(start: int, words: int = 150) -> str:
    return " ".join(WORDS[start : start + words])


def rows_of(seed: str) -> list[dict[str, Any]]:
    """Planted copies in every script, and a family at rising distances."""
    rng = random.Random(seed)
    rows = corpora.planted(3, clusters=8, loners=4, huge=3_000).rows
    base = WORDS[:120]
    rows += [
        {"id": f"e{i}", "text": " ".join(corpora.exchange(rng, base, i % 6)), "score": (i * 37) % 41} for i in range(24)
    ]
    return rows


def judged(rows: list[dict[str, Any]], recipe: Recipe) -> dict[int, oracle.Removal]:
    docs = [oracle.Doc("a.jsonl", i, row["text"], row["id"], row.get("score")) for i, row in enumerate(rows)]
    verdict = oracle.decide(docs, harness.rules_of(recipe), oracle.Prints(recipe.distance))
    return {place[1]: removal for place, removal in verdict.removed.items()}


def check(ran: harness.Ran, rows: list[dict[str, Any]], recipe: Recipe) -> None:
    """The log is what plain Python says, distances and all."""
    want = judged(rows, recipe)
    assert {entry["row"]: (entry["kept_row"], entry["reason"]) for entry in ran.removed} == {
        row: (removal.witness[1] if removal.witness else None, removal.reason) for row, removal in want.items()
    }
    spec = recipe.spec
    stop = harness.rules_of(recipe).stop
    prints = oracle.Prints(recipe.distance)

    def fingerprint(row: int) -> int:
        text = oracle.normalise(rows[row]["text"], recipe.steps)
        return prints.signature(w for w in oracle.windows(text, spec.unit, spec.n) if w not in stop)

    for entry in ran.removed:
        if entry["reason"] in ("near", "exact+near"):
            removal = want[entry["row"]]
            assert (entry["shared"], entry["union"]) == (removal.shared, removal.union), entry
            apart = (fingerprint(entry["row"]) ^ fingerprint(entry["kept_row"])).bit_count()
            assert entry["distance"] == apart, entry
            assert apart <= recipe.distance or recipe.cluster == "connected"
        else:
            assert entry["distance"] is None
    ran.check(harness.rules_of(recipe), "score")


RECIPES: list[dict[str, Any]] = [
    {},
    {"distance": 0},
    {"distance": 8, "threshold_ppm": 600_000, "keep": "longest"},
    {"distance": 6, "verify": "none"},
    {"distance": 6, "verify": "none", "cluster": "connected", "keep": "max:score"},
    {"distance": 7, "verify": "none", "keep": "none"},
    {"distance": 5, "verify": "edit", "threshold_ppm": 900_000, "edit_max_chars": 700},
    {"distance": 5, "witness": "best", "keep": "shortest", "shingle": "char:5"},
    {"distance": 6, "cluster": "connected", "threshold_ppm": 700_000},
    {"distance": 6, "keep": "none", "min_shingles": 20},
]


@pytest.mark.parametrize("options", RECIPES, ids=str)
def test_equals_brute_force(backend_name: str, tmp_path: Path, options: dict[str, Any]) -> None:
    rows = rows_of("brute force")
    recipe = Recipe(method="simhash", **options)
    path = harness.write_rows(tmp_path / "in" / "a.jsonl", rows)
    ran = harness.run([path], tmp_path / "out", recipe, backend=backend_name)
    check(ran, rows, recipe)
    guarantees = {entry["guarantee"] for entry in ran.removed if entry["reason"] == "near"}
    expected = "probabilistic" if recipe.verify == "none" else "kept-witness"
    if recipe.verify != "none" and (recipe.cluster == "connected" or recipe.keep == "none"):
        expected = "chain"
    assert guarantees <= {expected}
    if recipe.distance >= 3:
        assert guarantees, "a recipe that finds nothing tests nothing"


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    """Texts of a tiny vocabulary, edited copies among them: short ones share their fingerprints by ties."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    vocabulary = [*corpora.ENGLISH[:8], "深", "Straße", "-"]
    out: list[str] = []
    for _ in range(draw(st.integers(1, 12))):
        if out and rng.random() < 0.6:
            words = rng.choice(out).split(" ")
            words[rng.randrange(len(words))] = rng.choice(vocabulary)
            out.append(" ".join(words))
        else:
            out.append(" ".join(rng.choice(vocabulary) for _ in range(rng.randint(0, 40))))
    return out


@given(
    texts(), st.integers(0, 8), st.sampled_from(["exact", "edit", "none"]),
    st.sampled_from([{}, {"cluster": "connected"}, {"keep": "none"}, {"keep": "longest"}]),
    st.sampled_from(["token:1", "token:3", "char:4"]),
)  # fmt: skip
@settings(max_examples=25)
def test_anything_equals_brute_force(
    found: list[str], distance: int, verify: str, more: dict[str, Any], shingle: str
) -> None:
    rows = [{"id": i, "text": text} for i, text in enumerate(found)]
    recipe = Recipe(method="simhash", distance=distance, verify=verify, shingle=shingle, threshold_ppm=500_000, **more)
    with tempfile.TemporaryDirectory() as place:
        path = harness.write_rows(Path(place) / "in" / "a.jsonl", rows)
        check(harness.run([path], Path(place) / "out", recipe, backend="numpy", threads=1), rows, recipe)


def test_texts_without_a_fingerprint_never_meet(tmp_path: Path) -> None:
    """Their word would be 0, and so equal."""
    stop = "all rights reserved"
    rows = [{"id": i, "text": text} for i, text in enumerate(["...", "!!!", "", stop, f"{stop}!", "?? --"])]
    recipe = Recipe(method="simhash", distance=8, verify="none", shingle="token:3", stop_shingles=(stop,))
    ran = harness.run([harness.write_rows(tmp_path / "a.jsonl", rows)], tmp_path / "out", recipe)
    assert ran.removed == []
    assert ran.report["result"]["counts"]["no_text"] == 6


def test_report_says_what_met(tmp_path: Path) -> None:
    base = prose(0)
    rows = [{"id": i, "text": text} for i, text in enumerate([base, base + "!", base.upper(), prose(400), prose(700)])]
    path = harness.write_rows(tmp_path / "a.jsonl", rows)
    report = dedup([str(path)], str(tmp_path / "out"), Recipe(method="simhash"), Run(progress=False))
    found = report.collisions
    assert found is not None
    assert (found.documents, found.candidates, found.equal, found.capped) == (4, 1, 1, 0)
    assert found.tables >= 1
    assert report.verification is not None
    assert (report.verification.verified, report.verification.matched) == (1, 1)
    assert report.forecast[0].keys() == {"similarity", "bits", "found"}
    summary = report.summary()
    assert "simhash token:5, distance 3, Jaccard 0.8, keep first" in summary
    assert re.search(
        r"candidates +1  pairs at distance 3 or less \(\d+ met in \d+ tables?; 1 text with an earlier", summary
    )
    assert "sieve" not in summary
    assert Report.load(str(tmp_path / "out")).to_dict() == report.to_dict()
    assert cli.main(["show", str(tmp_path / "out"), "0"]) == 0


def test_show_names_the_distance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = WORDS[:150]
    rows = [{"id": i, "text": " ".join(words)} for i, words in enumerate([base, [*base[:-1], "other"]])]
    recipe = Recipe(method="simhash", distance=8)
    ran = harness.run([harness.write_rows(tmp_path / "a.jsonl", rows)], tmp_path / "out", recipe)
    (entry,) = ran.removed
    assert cli.main(["show", str(tmp_path / "out"), "0"]) == 0
    bits = f"{entry['distance']} bit" + ("" if entry["distance"] == 1 else "s")
    assert f"145 of 147 token:5 shingles, distance {bits}, guarantee kept-witness" in capsys.readouterr().out


def test_flag_dry_run_limit_and_audit(tmp_path: Path) -> None:
    rows = rows_of("flags")
    path = harness.write_rows(tmp_path / "a.jsonl", rows)
    recipe = Recipe(method="simhash", distance=4, threshold_ppm=700_000)
    plain = harness.run([path], tmp_path / "plain", recipe, audit=1000)
    flagged = harness.run([path], tmp_path / "flag", recipe.with_(action="flag"))
    assert [entry["row"] for entry in flagged.removed] == [entry["row"] for entry in plain.removed]
    assert len(flagged.ids) == len(rows)
    report = dedup([str(path)], None, recipe, Run(dry_run=True, progress=False))
    assert report.counts.removed == len(plain.removed)
    few = rows[: len(rows) - 20]
    limited = harness.run([path], tmp_path / "limit", recipe.with_(limit=len(few)))
    assert {entry["row"] for entry in limited.removed} == set(judged(few, recipe))
    # The audit counts every pair at the threshold, so also those that are too many bits apart.
    missed = {
        high
        for high, _ in plain.check(harness.rules_of(recipe), "score")
        if high not in {(e["file"], e["row"]) for e in plain.removed}
    }
    audit = plain.report["result"]["audit"]
    assert audit["sampled"] == audit["kept"]
    assert audit["missed"] == len(missed) > 0


def test_a_high_distance_says_its_cost_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = harness.write_rows(tmp_path / "a.jsonl", [{"id": i, "text": prose(200 * i)} for i in range(5)])
    for distance, said in ((4, 0), (5, 1)):
        ran = harness.run([path], tmp_path / f"out{distance}", Recipe(method="simhash", distance=distance))
        notes = [note for note in ran.report["machine"]["notes"] if "among 5 fingerprints takes" in note]
        assert len(notes) == said


def test_a_search_over_the_budget_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = harness.write_rows(tmp_path / "a.jsonl", [{"id": i, "text": prose(200 * i)} for i in range(9)])
    monkeypatch.setattr("gpu_dedup.hamming.MOST_COMPARED", 30)
    with pytest.raises(RunError, match=r"distance 3 among 9 different fingerprints costs some .*; lower --distance"):
        dedup([str(path)], str(tmp_path / "out"), Recipe(method="simhash"), Run(progress=False))
    assert not (tmp_path / "out").exists()


def test_recipes_that_mean_nothing_are_refused() -> None:
    for distance in (-1, 9):
        with pytest.raises(RecipeError, match=f"distance {distance} is outside 0 to 8"):
            Recipe(method="simhash", distance=distance)
    with pytest.raises(RecipeError, match="verify signature counts slots"):
        Recipe(method="simhash", verify="signature")
    recipe = Recipe(method="simhash")
    assert recipe.fingerprint() != recipe.with_(distance=4).fingerprint()
    assert json.loads(json.dumps(recipe.as_dict()))["distance"] == 3


def test_explain_shows_the_curve_and_the_cost() -> None:
    text = outlook.explain(Recipe(method="simhash"), Run(threads=2), Corpus.of(10_000_000, 3000))
    assert "simhash token:5, distance 3, Jaccard 0.8, keep first\n" in text
    assert re.search(r"^  0\.95 +4\.6 +31\.2 %", text, re.M)
    assert "distance 3 among 10,000,000 fingerprints takes 10 tables and some 3.2e+09 comparisons" in text
    assert "Of pairs at the threshold 0.8 it finds 0.9 %" in text
    assert re.search(r"^  search +720 MB   72 x 1 more tables at work x 10,000,000$", text, re.M)
    none = outlook.explain(Recipe(method="simhash", verify="none", distance=0), Run(), None)
    assert "the distance alone decides" in none
    assert "texts of equal fingerprints are grouped" in none


def test_two_texts_are_compared_by_distance() -> None:
    one, other = prose(0), prose(0, 149) + " other"
    text = outlook.compare(one, other, Recipe(method="simhash"), False)
    (line,) = [line for line in text.splitlines() if "<- default" in line]
    windows = [list(oracle.windows(oracle.normalise(t, Recipe().steps), "token", 5)) for t in (one, other)]
    prints = [oracle.Prints(3).signature(w) for w in windows]
    apart = (prints[0] ^ prints[1]).bit_count()
    assert line.split()[6] == str(apart)
    assert ("a copy" in line) == (apart <= 3)
    assert "distance: bits of 64" in text


@pytest.mark.parametrize("method", ["simhash", "cascade"])
def test_shards_and_kept_work_change_nothing(method: str, tmp_path: Path) -> None:
    """The first pass in two processes; and taken up from parts that an earlier run with another distance left."""
    rows = rows_of("shards")
    half = len(rows) // 2
    paths = [
        str(harness.write_rows(tmp_path / "in" / name, part))
        for name, part in (("a.jsonl", rows[:half]), ("b.jsonl", rows[half:]))
    ]
    recipe = Recipe(method=method, distance=5)
    plain = harness.run([Path(path) for path in paths], tmp_path / "plain", recipe)
    run = Run(progress=False, backend="numba")
    dedup(paths, str(tmp_path / "two"), recipe, run, processes=2)
    assert harness.removed_rows(tmp_path / "two") == plain.removed
    work = Run(progress=False, keep_work=True, work_dir=str(tmp_path / "work"))
    dedup(paths, str(tmp_path / "first"), recipe.with_(distance=1), work)
    again = dedup(paths, str(tmp_path / "again"), recipe, work)
    assert any("going on from" in note for note in again.machine.notes)
    assert harness.removed_rows(tmp_path / "again") == plain.removed
