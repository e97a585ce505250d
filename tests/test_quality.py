"""The quality benchmark: its judgements by hand on small files, its tables against what must hold, its plots well
formed."""

from __future__ import annotations

import json
import random
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest

REPO = Path(__file__).resolve().parent.parent
sys.path.append(str(REPO / "benchmarks"))
import common  # noqa: E402
import plots  # noqa: E402
import quality  # noqa: E402

PPM = 10**6


def write(path: Path, texts: list[str]) -> Path:
    path.write_bytes(b"".join(corpora.line({"id": i, "text": text}) for i, text in enumerate(texts)))
    return path


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> quality.Truth:
    """Rows 0, 1, 2: a text, copies at 0.9048 and 0.8182; 3, 4: equal; 5: alone; 6, 7: no token; 8: like 5 at 2/3."""
    rng = random.Random("quality")
    one, other = corpora.made_up(rng, 104), corpora.made_up(rng, 104)
    texts = [
        " ".join(one), " ".join(corpora.exchange(rng, one, 1)), " ".join(corpora.exchange(rng, one, 2)),
        "The same", "the  SAME", " ".join(other), "", "...", " ".join(corpora.exchange(rng, other, 4)),
    ]  # fmt: skip
    return quality.Truth(write(tmp_path_factory.mktemp("truth") / "a.jsonl", texts))


def test_the_truth_by_hand(truth: quality.Truth) -> None:
    assert len(truth) == 9
    assert truth.head == [0, 1, 2, 3, 3, 5, 6, 7, 8]
    found = dict(
        zip(zip(truth.later, truth.earlier, strict=True), zip(truth.shared, truth.union, strict=True), strict=True)
    )
    assert found[1, 0] == (95, 105)
    assert found[2, 0] == (90, 110)
    assert found[8, 5] == (80, 120)
    assert set(found) == {(1, 0), (2, 0), (2, 1), (8, 5)}
    assert truth.jaccard(4, 3) == (1, 1)
    assert truth.texts([3, 4]) == ["The same", "the  SAME"]
    assert truth.sizes.tolist() == [100, 100, 100, 1, 0, 100, 0, 0, 100]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        # all as it should be; 1 and 2 have 85 of 115 in common, under 0.8
        ([0, 3, 5, 6, 7, 8], {"removed": 3, "without_witness": 0, "missed_removals": 0, "recall": 1.0}),
        # nothing done: 1 and 2 each have an earlier one, 4 is an exact copy
        (list(range(9)), {"removed": 0, "missed_removals": 3, "missed_exact_copies": 1, "recall": 0.0}),
        # 0 went, and so did both that are like it: nothing is left of it; 5 went without any reason
        ([3, 6, 7, 8], {"removed": 5, "without_witness": 4, "without_partner": 1, "missed_removals": 0}),
        # another one of the group is kept
        ([1, 4, 5, 6, 7, 8], {"removed": 3, "without_witness": 1, "without_partner": 0, "missed_removals": 0}),
        # rows without a token are counted apart
        ([0, 3, 5, 8], {"removed": 5, "without_witness": 0, "removed_without_text": 2}),
        # 8 is like 5, but under the threshold
        ([0, 3, 5, 6, 7], {"removed": 4, "without_witness": 1, "without_partner": 1}),
    ],
)  # fmt: skip
def test_kept_rows_are_judged_by_hand(truth: quality.Truth, kept: list[int], expected: dict[str, Any]) -> None:
    said = quality.judge_kept(truth, kept, 800_000)
    assert {key: said[key] for key in expected} == expected
    assert said["true_pairs"] == 2
    assert said["lone_pairs"] == 0
    assert said["lone_promised"] is None
    assert sum(row["pairs"] for row in said["by_similarity"]) == 2
    assert said["by_similarity"][0]["pairs"] == 1
    assert said["by_similarity"][5]["pairs"] == 1


def test_the_threshold_is_the_callers(truth: quality.Truth) -> None:
    said = quality.judge_kept(truth, [0, 3, 5, 6, 7], 600_000, (20, 4))
    assert (said["true_pairs"], said["without_witness"], said["recall"]) == (4, 0, 1.0)
    assert said["lone_pairs"] == 1
    assert said["lone_promised"] == round(1 - (1 - (2 / 3) ** 4) ** 20, 6)


def entry(row: int, kept: int, reason: str, shared: int | None = None, union: int | None = None) -> dict[str, Any]:
    return {
        "row": row, "kept_row": kept, "reason": reason, "shared": shared, "union": union,
        "similarity": None if union is None else shared / union,
    }  # fmt: skip


def test_a_log_is_judged_by_hand(truth: quality.Truth) -> None:
    right = [entry(1, 0, "near", 95, 105), entry(2, 0, "near", 90, 110), entry(4, 3, "exact")]
    said = quality.judge(truth, right, 800_000, 17, 7)
    assert (said["unfounded_removals"], said["wrong_counts"], said["without_witness"]) == (0, 0, 0)
    for wrong, unfounded, counts in (
        ([entry(1, 0, "near", 94, 105)], 0, 1),  # a wrong count
        ([entry(2, 1, "near", 85, 115)], 1, 0),  # under the threshold, though 0 would be a witness
        ([entry(4, 3, "near", 1, 1)], 0, 1),  # equal texts are exact
        ([entry(1, 0, "exact", 95, 105)], 0, 1),  # different texts are not
        ([entry(1, 0, "near", 95, 105), entry(0, 1, "near", 95, 105)], 2, 0),  # neither witness is kept
    ):
        said = quality.judge(truth, wrong, 800_000, 17, 7)
        assert (said["unfounded_removals"], said["wrong_counts"]) == (unfounded, counts)


def test_lists_of_kept_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kept"
    for text, rows in (("0\n3\n7\n", [0, 3, 7]), ("[0, 3]", [0, 3]), ("", [])):
        path.write_text(text)
        assert quality.kept_rows(path) == rows
    for text in ("0\nx\n", "[1.5]", "-3", '{"a": 1}'):
        path.write_text(text)
        with pytest.raises(SystemExit) as stopped:
            quality.kept_rows(path)
        assert stopped.value.code == 2
        assert capsys.readouterr().err.startswith(f"quality.py: {path}")


def test_stretches_by_hand() -> None:
    """Four slots in two bands of two: a pair that agrees in slots 0, 1 and 2, and one that agrees in none."""
    from gpu_dedup.recipe import Recipe

    equal = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], bool)
    recipe = Recipe(num_perm=16, bands=2, rows=2, sieve_cut=3)
    said = quality.stretch(np.array([0.5, 0.5]), equal, recipe)
    assert said["bias"] == pytest.approx((0.25 - 0.5) / 2)
    assert said["variance_ratio"] == pytest.approx(((0.25**2 + 0.5**2) / 2) / (0.25 / 4))
    assert (said["band"], said["band_promised"]) == (0.25, 0.25)
    assert (said["meets"], said["meets_promised"]) == (0.5, 1 - 0.75**2)
    assert (said["sieve_loses"], said["lost_by_sieve"]) == (0.5, 0)
    assert said["sieve_promised"] == pytest.approx(11 / 16)  # P[Binomial(4, 1/2) < 3]


def test_sketches_are_as_good_as_theory_says(tmp_path: Path) -> None:
    rng = random.Random("sketches")
    texts = []
    for i in range(150):
        words = corpora.made_up(rng, 204)
        texts += [" ".join(words), " ".join(corpora.exchange(rng, words, 1 + i % 12))]
    found, similarity, estimate = quality.sketch_quality(quality.Truth(write(tmp_path / "a.jsonl", texts)), 800_000, 4)
    assert len(similarity) == len(estimate) == 150
    assert (found["slots"], found["bands"], found["rows"], found["sieve_cut"]) == (119, 17, 7, 78)
    assert abs(found["all"]["bias"]) < 4 * found["all"]["bias_error"]
    assert 0.7 < found["all"]["variance_ratio"] < 1.4
    assert abs(found["all"]["meets"] - found["all"]["meets_promised"]) < 0.08
    assert sum(row["pairs"] for row in found["by_similarity"]) == 150
    for row in found["by_similarity"]:
        assert row["from"] - 1e-9 <= row["similarity"] <= row["to"] + 1e-9
        assert row["seeds"] == 4
        assert abs(row["bias_over_seeds"]) < 4 * row["bias_error"]
    picture = quality.recall_plot("x & y", found, None, 0.8).svg()
    ElementTree.fromstring(picture)
    ElementTree.fromstring(quality.estimate_plot("x", 119, similarity, estimate).svg())


def test_options_of_the_run_reach_the_sketches(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = quality.recipe_of(700_000, ["--sketch", "fast", "--num-perm", "64", "--threads", "1"])
    assert (recipe.sketch, recipe.threshold_ppm, recipe.shingle) == ("fast", 700_000, "token:5")
    assert 32 < recipe.slots <= 64
    for options, words in (
        (["--sketch", "slow"], "choose one of minhash, fast"),
        (["--nonsense"], "--nonsense"),
        (["--method", "exact"], "no sketches to judge"),
    ):
        with pytest.raises(SystemExit) as caught:
            quality.recipe_of(800_000, options)
        assert caught.value.code == 2
        assert words in capsys.readouterr().err


def test_a_fast_sketch_is_judged_as_one(tmp_path: Path) -> None:
    """Its variance on small sets is below what independent slots have, which tells it from MinHash."""
    fast = ("--sketch", "fast")
    rng = random.Random("fast")
    texts = []
    for i in range(60):
        words = corpora.made_up(rng, 104)
        texts += [" ".join(words), " ".join(corpora.exchange(rng, words, 1 + i % 5))]
    truth = quality.Truth(write(tmp_path / "a.jsonl", texts))
    found, similarity, estimate = quality.sketch_quality(truth, 800_000, 2, options=fast)
    plain, _, other = quality.sketch_quality(truth, 800_000, 2)
    assert (found["sketch"], plain["sketch"], found["slots"]) == ("fast", "minhash", 119)
    assert len(similarity) >= 60
    assert not np.array_equal(estimate, other)
    assert abs(found["all"]["bias"]) < 4 * found["all"]["bias_error"]
    rows = quality.made_sets(800_000, True, fast)
    assert [row["items"] for row in rows] == [20] * 3 + [100] * 3 + [1000] * 3
    for row in rows:
        assert abs(row["bias"]) < 4 * row["bias_error"]
        low, high = {20: (0.7, 1.0), 100: (0.35, 0.75), 1000: (0.7, 1.1)}[row["items"]]
        assert low < row["variance_ratio"] < high


def test_giant_families_are_what_they_say(tmp_path: Path) -> None:
    for kind, least in (("edited", 0.3), ("template", 0.001)):
        truth = quality.Truth(write(tmp_path / f"{kind}.jsonl", quality.family(kind, 60, 1)))
        later, _, similarity = truth.at(700_000)
        every = len(truth) * (len(truth) - 1) / 2
        assert len(truth) == (60 if kind == "edited" else 72)
        share = float((similarity >= 0.8).sum()) / every
        assert share > least
        if kind == "template":
            assert share < 0.1
            assert len(later) < every / 2


def test_one_command_measures_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = corpora.planted("quality", clusters=16, awkward_rows=False).rows
    path = write(tmp_path / "small.jsonl", [row["text"] for row in rows])
    out = tmp_path / "out.json"
    monkeypatch.setattr(
        sys, "argv",
        ["quality.py", str(path), "--parts", "run,sketch", "--json", str(out), "--plots", str(tmp_path / "p"),
         "--", "--keep", "longest", "--audit", "1000"],
    )  # fmt: skip
    assert quality.main() == 0
    results = json.loads(out.read_text())
    assert results["benchmark"] == "quality"
    assert set(results) >= {"command", "date", "machine", "versions", "commit", "load"}
    run = results["corpora"]["small"]["run"]
    assert (run["missed_removals"], run["audit"]["missed"]) == (0, 0)
    assert run["removed"] > 10
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == ["estimate-small.svg", "recall-small.svg"]
    kept = tmp_path / "kept.txt"
    kept.write_text("\n".join(map(str, range(len(rows)))))
    monkeypatch.setattr(
        sys, "argv", ["quality.py", str(path), "--kept", str(kept), "--name", "lazy", "--json", str(out)]
    )
    assert quality.main() == 0
    lazy = json.loads(out.read_text())["corpora"]["small"]["lazy"]
    assert (lazy["removed"], lazy["recall"]) == (0, 0.0)
    assert lazy["missed_removals"] == run["removed"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/no/such.jsonl"], "no such file"),
        (["--parts", "all"], "--parts 'all' is unknown"),
        (["--kinds", "klingon"], "--kinds 'klingon' is unknown"),
        (["--threshold", "0.3"], "pairs from 0.5 to 1"),
        (["--threshold", "much"], "not a number"),
        (["--kept", __file__], "--kept judges what one tool kept of one FILE"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quality.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        quality.main()
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err


# ------------------------------------------------------------------------------------------------ plots and files


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.5, 1.0, [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (0.0, 1.02, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-1.0, 1.0, [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0]),
        (0, 3000, [0, 500, 1000, 1500, 2000, 2500, 3000]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert plots.ticks(low, high) == expected
    with pytest.raises(ValueError, match="no length"):
        plots.ticks(high, low)


@pytest.mark.parametrize(
    ("points", "corner"),
    [
        ([(0.0, 0.0), (5.0, 0.9)], "right bottom"), ([(5.0, 0.0), (10.0, 0.1), (10.0, 1.0)], "left top"),
        ([(0.0, 0.92), (9.5, 0.9), (9.6, 0.0)], "left bottom"),
    ],
)  # fmt: skip
def test_the_legend_covers_nothing(points: list[tuple[float, float]], corner: str) -> None:
    plot = plots.Plot("a", "x", "y", (0, 10), (0, 1))
    plot.line(points, "line")
    place = next(line for line in plot.svg().splitlines() if line.startswith("<g transform"))
    x, y = (float(number) for number in place.split("(")[1].split(")")[0].split(" "))
    across, down = ("left" if x < plots.WIDTH / 2 else "right"), ("top" if y < plots.HEIGHT / 2 else "bottom")
    assert f"{across} {down}" == corner


def test_a_plot_by_hand() -> None:
    plot = plots.Plot("a < b", "x", "y", (0, 10), (0, 1))
    plot.line([(0, 0), (10, 1)], "line")
    plot.line([(0, 1), (10, 0)], "")
    plot.dots([(5, 0.5), (11, 0.5)], "dots", [(0.4, 0.6), (0, 1)])
    root = ElementTree.fromstring(plot.svg())
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "a < b" in texts
    assert texts[-2:] == ["line", "dots"]
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert lines[0].get("points") == "64.0,348.0 624.0,40.0"
    assert lines[0].get("stroke") == lines[1].get("stroke")
    squares = [element for element in root.iter() if element.tag.endswith("rect") and element.get("width") == "7"]
    assert len(squares) == 2  # one point inside, one in the legend; the other is outside
    assert (float(squares[0].get("x", "")) + 3.5, float(squares[0].get("y", "")) + 3.5) == (344.0, 194.0)
    assert names.count("title") == 1


def test_result_files(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.json"
    common.save(path, "name", {"rows": [1]})
    common.save(None, "name", {})
    values = json.loads(path.read_text())
    assert (values["benchmark"], values["rows"]) == ("name", [1])
    assert values["machine"]["cores"] >= 1
    assert values["versions"]["numpy"] == np.__version__
    assert [file.name for file in path.parent.iterdir()] == ["r.json"]
    assert common.rounded({"a": [1.23456789, 7]}, 3) == {"a": [1.23, 7]}
    seconds, last = common.best(iter([3, 1, 2]).__next__, 3)
    assert last == 2
    assert 0 <= seconds < 1
