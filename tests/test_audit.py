"""The audit: misses are those of the oracle, the same on every backend; the interval by other formulas; the words."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import corpora
import harness
import numpy as np
import oracle
import pytest
from click.testing import CliRunner

from gpu_dedup import cli
from gpu_dedup.audit import Tally, estimate, sample, wilson
from gpu_dedup.errors import InputError, RunError
from gpu_dedup.pipeline import dedup, recount
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import Audit, Collisions, Miss, Report
from gpu_dedup.run import Run

REPO = Path(__file__).resolve().parent.parent
POOR: dict[str, Any] = {"bands": 1, "rows": 16}


def near_copies(seed: str, groups: int = 30) -> list[dict[str, Any]]:
    """Groups of one text and copies with 0 to 4 words exchanged, in a shuffled order, beside awkward rows."""
    rng = random.Random(seed)
    rows = corpora.awkward(huge=5000)
    for group in range(groups):
        words = corpora.made_up(rng, 160)
        for copy in range(rng.randint(2, 5)):
            text = " ".join(corpora.exchange(rng, words, rng.randint(0, 4)))
            rows.append({"id": f"{group}-{copy}", "text": text, "score": rng.random()})
    rng.shuffle(rows)
    return rows


ROWS = near_copies("audit")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return harness.write_rows(tmp_path / "in" / "a.jsonl", ROWS)


@pytest.fixture(autouse=True)
def list_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recount, "MISSES_LISTED", 10**6)


def audit_of(ran: harness.Ran) -> dict[str, Any]:
    out: dict[str, Any] = ran.report["result"]["audit"]
    return out


# ---------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("keep", ["first", "longest", "max:score"])
def test_all_rows_looked_at_gives_the_misses_of_the_oracle(
    source: Path, tmp_path: Path, backend_name: str, keep: str
) -> None:
    recipe = Recipe(keep=keep, **POOR)
    ran = harness.run(source, tmp_path / "out", recipe, backend=backend_name, audit=10**6, batch_bytes=20_000)
    missed = ran.check(harness.rules_of(recipe), value="score" if ":" in keep else None)
    found = audit_of(ran)
    assert found["missed"] == len({high for high, _ in missed})
    assert found["missed"] > 20
    assert {(m["file"], m["row"]) for m in found["examples"]} == {high for high, _ in missed}
    for miss in found["examples"]:
        assert ((miss["file"], miss["row"]), (miss["like_file"], miss["like_row"])) in missed
        assert Fraction(miss["shared"], miss["union"]) >= Fraction(4, 5)
    assert [m["row"] for m in found["examples"]] == sorted(m["row"] for m in found["examples"])
    # counted, not estimated
    near = sum(entry["reason"] == "near" for entry in ran.removed)
    assert (found["sampled"], found["removed"]) == (found["kept"], near)
    assert found["misses"] == found["misses_low"] == found["misses_high"] == found["missed"]
    assert found["recall"] == found["recall_low"] == found["recall_high"] == round(near / (near + found["missed"]), 6)


def test_the_default_recipe_misses_nothing_here(source: Path, tmp_path: Path, backend_name: str) -> None:
    ran = harness.run(source, tmp_path / "out", Recipe(**harness.FULL_RECALL), backend=backend_name, audit=10**6)
    assert (audit_of(ran)["missed"], audit_of(ran)["recall"]) == (0, 1.0)
    ran = harness.run(source, tmp_path / "default", Recipe(), backend=backend_name, audit=10**6)
    assert (audit_of(ran)["missed"], audit_of(ran)["recall"]) == (0, 1.0)
    assert ran.check(harness.rules_of(Recipe())) == []


@pytest.mark.parametrize("count", [1, 7, 40, 1000])
def test_a_sample_is_the_same_everywhere_and_part_of_a_larger_one(source: Path, tmp_path: Path, count: int) -> None:
    plain = harness.run(source, tmp_path / "plain", Recipe(**POOR), backend="numpy", audit=count, threads=1)
    for name, settings in {
        "fast": {"backend": "numba", "threads": 3, "batch_bytes": 3000},
        "one": {"backend": "numba", "threads": 1, "batch_bytes": 1},
    }.items():
        ran = harness.run(source, tmp_path / name, Recipe(**POOR), audit=count, **settings)
        assert audit_of(ran) == audit_of(plain)
    whole = harness.run(source, tmp_path / "whole", Recipe(**POOR), backend="numba", audit=10**6)
    assert audit_of(plain)["sampled"] == min(count, audit_of(whole)["kept"])
    every = {json.dumps(m) for m in audit_of(whole)["examples"]}
    assert {json.dumps(m) for m in audit_of(plain)["examples"]} <= every
    assert audit_of(plain)["misses_low"] <= audit_of(plain)["misses"] <= audit_of(plain)["misses_high"]


def test_the_interval_holds_the_truth_nearly_always(tmp_path: Path) -> None:
    """Other recipes draw other rows: over 60 of them the share of all misses lies inside nine times in ten at least."""
    rows = near_copies("interval", groups=60)
    source = harness.write_rows(tmp_path / "a.jsonl", rows)
    whole = audit_of(harness.run(source, tmp_path / "whole", Recipe(**POOR), audit=10**6, backend="numba"))
    assert 20 < whole["missed"] < 200
    inside = tight = 0
    for i in range(60):
        # the name of the id field changes the fingerprint and with it the sample, and nothing else
        report = dedup(
            [str(source)], None, Recipe(id_field=f"id{i}", **POOR),
            Run(dry_run=True, audit=40, progress=False, backend="numba"),
        )  # fmt: skip
        found = report.audit
        assert found is not None
        inside += found.misses_low <= whole["missed"] <= found.misses_high
        tight += found.misses_high - found.misses_low < whole["kept"] / 2
    assert inside >= 54
    assert tight >= 54, "an interval that holds everything says nothing"


def test_nothing_else_changes(source: Path, tmp_path: Path) -> None:
    without = harness.run(source, tmp_path / "without", Recipe(), backend="numba")
    with_it = harness.run(source, tmp_path / "with", Recipe(), backend="numba", audit=50)
    assert without.report["result"]["audit"] is None
    assert {**with_it.report["result"], "audit": None} == without.report["result"]
    assert with_it.removed == without.removed
    assert with_it.rows("a.jsonl") == without.rows("a.jsonl")


def test_a_dry_run_has_it_too_and_flagging_is_deciding(source: Path, tmp_path: Path) -> None:
    written = audit_of(harness.run(source, tmp_path / "out", Recipe(**POOR), audit=60))
    report = dedup([str(source)], None, Recipe(**POOR), Run(dry_run=True, audit=60, progress=False))
    assert report.audit is not None
    assert json.loads(report.to_json())["result"]["audit"] == written
    flagged = audit_of(harness.run(source, tmp_path / "flag", Recipe(action="flag", **POOR), audit=10**6))
    whole = audit_of(harness.run(source, tmp_path / "whole", Recipe(**POOR), audit=10**6))
    assert flagged == whole  # every row is looked at, so it does not matter which ones a recipe draws


@pytest.mark.parametrize("packing", ["a.parquet", "a.jsonl.zst"])
def test_formats_and_several_files(tmp_path: Path, packing: str) -> None:
    rows = [row for row in ROWS if not row["id"].endswith("-half")]
    half = len(rows) // 2
    plain = harness.run(harness.write_rows(tmp_path / "p" / "a.jsonl", rows), tmp_path / "o", Recipe(**POOR), audit=50)
    harness.write_rows(tmp_path / "in" / f"1{packing}", rows[:half])
    harness.write_rows(tmp_path / "in" / "2b.jsonl", rows[half:])
    ran = harness.run(tmp_path / "in", tmp_path / "o2", Recipe(**POOR), audit=50)

    def numbers(ran: harness.Ran) -> dict[str, Any]:
        return {name: value for name, value in audit_of(ran).items() if name != "examples"}

    assert numbers(ran) == numbers(plain)

    def global_row(file: str, row: int) -> int:
        return row + (half if file == "2b.jsonl" else 0)

    assert [global_row(m["file"], m["row"]) for m in audit_of(ran)["examples"]] == [
        m["row"] for m in audit_of(plain)["examples"]
    ]


def test_connected_and_keep_none(source: Path, tmp_path: Path, backend_name: str) -> None:
    rules = harness.rules_of(Recipe())
    texts = {row["id"]: row["text"] for row in ROWS}
    sets = {name: oracle.shingles(oracle.normalise(text), "token", 5, frozenset()) for name, text in texts.items()}

    def alike(one: str, other: str) -> bool:
        return oracle.meets(*oracle.jaccard(sets[one], sets[other]), rules.threshold_ppm)

    order = [row["id"] for row in ROWS]
    # keep=none: a kept row with any partner at all is a miss
    ran = harness.run(source, tmp_path / "none", Recipe(keep="none", **POOR), backend=backend_name, audit=10**6)
    want = [i for i, name in enumerate(order) if name in ran.ids and any(alike(name, o) for o in order if o != name)]
    assert [m["row"] for m in audit_of(ran)["examples"]] == want
    assert len(want) > 20
    # connected: so is one that is like a member of a cluster with an earlier kept row
    recipe = Recipe(cluster="connected", **POOR)
    ran = harness.run(source, tmp_path / "connected", recipe, backend=backend_name, audit=10**6)
    stand = {name: name for name in order} | {e["id"]: e["kept_id"] for e in ran.removed}
    place = {name: i for i, name in enumerate(order)}
    want = [
        i
        for i, name in enumerate(order)
        if name in ran.ids and any(alike(name, o) and place[stand[o]] < i for o in order)
    ]
    assert [m["row"] for m in audit_of(ran)["examples"]] == want
    assert len(want) > 20


GPU = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from gpu_dedup import Recipe, Run, dedup
report = dedup(
    [sys.argv[2]], None, Recipe(bands=1, rows=16),
    Run(device="gpu", audit=40, dry_run=True, progress=False, threads=2, batch_bytes=9_000),
)
print(report.machine.backend)
print(json.dumps(json.loads(report.to_json())["result"]["audit"]))
"""


def test_the_cuda_backend_audits_too(tmp_path: Path, emulated: Any) -> None:
    """In a process that finds the stand-in instead of CuPy; the kernels are the real ones."""
    source = harness.write_rows(tmp_path / "a.jsonl", [row for row in ROWS if len(row["text"]) < 4000][:60])
    paths = [str(REPO), str(REPO / "tests" / "cuda" / "standin")]
    done = subprocess.run(
        [sys.executable, "-c", GPU, json.dumps(paths), str(source)],
        env={**os.environ, "GPU_DEDUP_STANDIN": "seed=3"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    backend, audit = done.stdout.splitlines()
    assert backend == "cuda"
    plain = dedup([str(source)], None, Recipe(**POOR), Run(dry_run=True, audit=40, progress=False, backend="numpy"))
    found, want = json.loads(audit), json.loads(plain.to_json())["result"]["audit"]
    listed = want["examples"][: len(found["examples"])]  # here more of them are listed than the program does by itself
    assert found == {**want, "examples": listed}
    assert listed


@pytest.mark.parametrize("rows", [[], [{"id": 1, "text": ""}, {"id": 2, "text": "..."}], [{"id": 1, "text": "a b c"}]])
def test_few_rows(tmp_path: Path, rows: list[dict[str, Any]], backend_name: str) -> None:
    source = harness.write_rows(tmp_path / "a.jsonl", rows)
    found = audit_of(harness.run(source, tmp_path / "out", Recipe(), audit=10, backend=backend_name))
    kept = sum(row["text"] == "a b c" for row in rows)
    assert (found["sampled"], found["kept"], found["compared"]) == (kept, kept, kept)
    assert (found["missed"], found["misses_high"], found["recall"]) == (0, 0, None)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe(method="exact"), "method exact looks for none; drop --audit"),
        (Recipe(verify="edit"), "verify edit decides by something else"),
        (Recipe(verify="signature"), "verify signature"),
        (Recipe(verify="none"), "use --verify exact"),
    ],
)
def test_without_true_sets_there_is_no_audit(tmp_path: Path, recipe: Recipe, words: str) -> None:
    source = harness.write_rows(tmp_path / "a.jsonl", ROWS[:3])
    with pytest.raises(RunError, match=words):
        dedup([str(source)], str(tmp_path / "out"), recipe, Run(audit=5, progress=False))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("count", [0, -3])
def test_no_rows_are_no_audit(count: int) -> None:
    with pytest.raises(RunError, match=f"audit {count} looks at no row"):
        Run(audit=count)


def test_a_text_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where size and time of the file are those of before."""
    source = harness.write_rows(tmp_path / "a.jsonl", ROWS)
    before = recount.Tally

    def late(*arguments: Any) -> Tally:
        times = os.stat(source)
        source.write_bytes(source.read_bytes().replace(b"ba", b"ce"))
        os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
        return before(*arguments)

    monkeypatch.setattr(recount, "Tally", late)
    with pytest.raises(InputError, match="the file changed while"):
        dedup([str(source)], None, Recipe(), Run(audit=5, dry_run=True, progress=False, backend="numpy"))


# ------------------------------------------------------------------------------------------- sample and numbers


def test_a_sample_is_drawn_by_row_and_recipe() -> None:
    rows = np.arange(1000, dtype=np.int64) * 3
    fingerprint = "00112233445566778899aabbccddeeff"
    first = sample(rows, 100, fingerprint)
    assert len(set(first.tolist())) == 100
    assert first.tolist() == sorted(first.tolist())
    assert set(sample(rows, 40, fingerprint).tolist()) <= set(first.tolist())
    # a row is drawn by its number, wherever it stands
    turned = sample(rows[::-1].copy(), 100, fingerprint)
    assert set(rows[::-1][turned].tolist()) == set(rows[first].tolist())
    assert first.tolist() != sample(rows, 100, fingerprint.replace("0", "1")).tolist()
    assert sample(rows, 5000, fingerprint).tolist() == list(range(1000))

    # by the definition, in Python's integers
    def drawn(row: int) -> int:
        z = (row * 0x9E3779B97F4A7C15 + int(fingerprint[:16], 16)) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    assert rows[first].tolist() == sorted(sorted(rows.tolist(), key=drawn)[:100])
    # evenly over the input: each third holds about a third
    thirds = np.bincount(first * 3 // 1000, minlength=3)
    assert thirds.min() > 20


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (5, 10), (10, 10), (3, 1000), (0, 1)])
def test_wilson_solves_its_equation(hits: int, trials: int) -> None:
    """The ends are where |p - share| = z * sqrt(p (1 - p) / n)."""
    low, high = wilson(hits, trials)
    share = hits / trials
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(abs(end - share) - 1.959963984540054 * math.sqrt(end * (1 - end) / trials)) < 1e-12
    assert (low == 0) == (hits == 0)
    assert (high == 1) == (hits == trials)


def test_wilson_by_hand() -> None:
    # Newcombe 1998, table I: 81 of 263 and 15 of 148
    assert [round(end, 4) for end in wilson(81, 263)] == [0.2553, 0.3662]
    assert [round(end, 4) for end in wilson(15, 148)] == [0.0624, 0.1605]
    assert wilson(0, 0) == (0.0, 1.0)


def test_estimates() -> None:
    found = estimate(2, 100, 1000, 80)
    assert found.misses == 20
    assert found.recall == 0.8
    assert found.misses_low == pytest.approx(1000 * wilson(2, 100)[0])
    assert found.recall_low == pytest.approx(80 / (80 + 1000 * wilson(2, 100)[1]))
    assert found.recall_high == pytest.approx(80 / (80 + found.misses_low))
    # what was seen bounds what can be: 98 of 100 were looked at
    tight = estimate(2, 98, 100, 10)
    assert (tight.misses_low, tight.misses_high) == (2.0, 4.0)
    assert estimate(3, 50, 50, 7).recall == 0.7
    assert estimate(0, 50, 50, 0).recall is None
    assert estimate(0, 0, 0, 0).recall is None
    nothing = estimate(0, 10, 1000, 0)
    assert (nothing.recall, nothing.recall_low, nothing.recall_high) == (None, 0.0, None)


def test_a_tally_takes_pairs_in_any_order() -> None:
    witness = np.array([-1, 0, -1, -1, -1])
    stays = witness < 0
    pairs = [(0, 2, 8, 10), (1, 2, 9, 10), (2, 2, 9, 9), (3, 1, 5, 6), (2, 1, 6, 7), (4, 0, 1, 1), (0, 1, 4, 5)]
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [3, 0, 5, 2, 6, 1, 4]):
        for parts in (1, 3, 7):
            tally = Tally(Recipe(bands=1, rows=16), witness, stays, np.array([2, 3, 4]))
            for part in np.array_split(np.array(pairs)[order], parts):
                tally.add(*part.T.copy())
            # sampled heads 2, 3, 4: head 4 is no reason for 2 to go, 0 is one for 3, 0 is one for 4 (1 is gone)
            assert tally.partner.tolist() == [-1, 0, 0]
            assert tally.shared.tolist() == [-1, 4, 8]
            assert tally.union.tolist() == [-1, 5, 10]


# ------------------------------------------------------------------------------------------------ the words


def lines(audit: Audit, **recipe: Any) -> str:
    report = Report(recipe=Recipe(**{**POOR, **recipe}).as_dict(), audit=audit)
    report.collisions = Collisions()
    return report.summary()


def test_summary_words() -> None:
    miss = Miss("a.jsonl", 7, "b.jsonl", 3, 9, 10)
    text = lines(Audit(500, 12_345, 12_345, 800, 2, 49.4, 13.5, 179.6, 0.941834, 0.816660, 0.983405, [miss]))
    assert (
        "audit                 500  sampled ones of 12,345 texts that stay, each against 12,345 by brute force: 2"
        in text
    )
    assert "0.9000  a.jsonl row 7 is like b.jsonl row 3, and both stay" in text
    assert "recall            94.18 %  estimated: 800 near copies at or above 0.8 went, about 49 did not" in text
    assert "95 % interval 81.67 % to 98.34 % (14 to 180 misses)" in text
    text = lines(Audit(50, 50, 50, 10, 0, 0, 0, 0, 1.0, 1.0, 1.0))
    assert "50  all 50 texts that stay" in text
    assert "recall              100 %  counted: 10 near copies at or above 0.8 went, 0 did not" in text
    assert "interval" not in text
    text = lines(Audit(50, 500, 500, 0, 0, 0, 0, 35.7, None, 0.0, None))
    assert "no near copy was found, and none was missed in the sample; by 95 % confidence at most 36 stay" in text
    assert "99.99 %" in lines(Audit(50, 50, 50, 99_999, 1, 1, 1, 1, 0.99999, 0.99999, 0.99999))  # never rounded to 100
    assert "links over several" in lines(Audit(5, 50, 50, 1, 0, 0, 0, 9, 1.0, 0.1, 1.0), cluster="connected")


def test_command_line_and_reading_back(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(
        cli.cli, ["run", str(source), "-o", str(out), "--audit", "60", "--bands", "1", "--rows", "16"]
    )
    assert done.exit_code == 0, done.output
    assert "audit                  60  sampled ones of" in done.output
    report = Report.load(str(out))
    assert report.audit is not None
    assert report.audit.sampled == 60
    values = json.loads((out / "_gpu_dedup" / "report.json").read_text())
    assert Report.from_dict(values) == report
    del values["result"]["audit"]  # a report from before there was an audit
    assert Report.from_dict(values).audit is None
