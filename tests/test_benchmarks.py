"""The corpora, the alternation and the tables of benchmarks/compare.py; no peer is needed, and no time is judged."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import oracle
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this tree", allow_module_level=True)


def load(name: str, path: Path) -> ModuleType:
    """A module of benchmarks/, under a name of its own: tests/ has a corpora.py, too."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


corpora = load("benchmark_corpora", BENCHMARKS / "corpora.py")
compare = load("benchmark_compare", BENCHMARKS / "compare.py")
driver = load("benchmark_driver", BENCHMARKS / "peers" / "driver.py")


def english(count: int, words: int = 120) -> list[str]:
    rng = random.Random(7)
    return [" ".join(f"w{rng.randrange(3000)}" for _ in range(words)) + f". End {i}!\n" for i in range(count)]


def chinese(count: int) -> list[str]:
    return list(itertools.islice(corpora.made_chinese(3), count))


# ----------------------------------------------------------------------------------------------------------- corpora


@pytest.mark.parametrize("texts", [english(60), chinese(60)], ids=["english", "chinese"])
def test_planted_pairs_have_the_jaccard_they_claim(texts: list[str]) -> None:
    made = corpora.plant(texts, seed=5, near=0.5)
    sets = [oracle.shingles(oracle.normalise(text), "token", 5) for text in made.texts]
    assert len(made.pairs) > 15
    for pair in made.pairs:
        assert oracle.jaccard(sets[pair.original], sets[pair.copy]) == (pair.shared, pair.union)
    shares = [pair.shared / pair.union for pair in made.pairs]
    assert min(shares) < 0.65
    assert max(shares) > 0.9
    assert all(share >= 0.4 for share in shares)  # the target is from 0.5 up; insertions and removals stray a little


def test_planting_is_the_same_for_a_seed_and_loses_nothing() -> None:
    texts = english(50)
    one, again, other = (corpora.plant(texts, seed, near=0.3, exact=0.2) for seed in (1, 1, 2))
    assert one == again
    assert one.texts != other.texts
    assert set(texts) <= set(one.texts)
    copies = len(one.texts) - len(texts) - len(one.pairs)
    assert sum(one.texts.count(text) - 1 for text in set(texts)) == copies > 0
    assert one.bytes == sum(len(text.encode()) for text in one.texts)


def test_a_text_too_short_to_edit_is_copied_as_it_is() -> None:
    assert corpora.edited(random.Random(1), "only four words here", 0.5) == "only four words here"
    assert corpora.edited(random.Random(1), "", 0.5) == ""


def test_editing_strikes_the_target() -> None:
    rng = random.Random(3)
    text = " ".join(f"word{i}" for i in range(2004))
    for target in (0.5, 0.8, 0.95):
        sets = [oracle.shingles(oracle.normalise(t), "token", 5) for t in (text, corpora.edited(rng, text, target))]
        shared, union = oracle.jaccard(*sets)
        assert abs(shared / union - target) < 0.03


@pytest.mark.parametrize("texts", [english(20), chinese(20)], ids=["english", "chinese"])
def test_growing_deals_the_words_anew(texts: list[str]) -> None:
    grown = list(itertools.islice(corpora.grow(texts, seed=4), 60))
    assert grown == list(itertools.islice(corpora.grow(texts, seed=4), 60))
    assert grown[:20] == texts
    for number in (20, 40):
        for before, after in zip(texts, grown[number : number + 20], strict=True):
            assert sorted(before.replace(" ", "")) == sorted(after.replace(" ", ""))
            old, new = (oracle.shingles(oracle.normalise(text), "token", 5) for text in (before, after))
            shared, union = oracle.jaccard(old, new)
            assert shared < 0.2 * union


def test_growing_adds_near_copies_after_their_original() -> None:
    plain = list(itertools.islice(corpora.grow(english(30), seed=4), 30))
    mixed = list(itertools.islice(corpora.grow(english(30), seed=4, near=0.5), 40))
    extra = [i for i, text in enumerate(mixed) if text not in plain]
    assert len(extra) >= 8
    for i in extra:
        sets = [oracle.shingles(oracle.normalise(text), "token", 5) for text in mixed[i - 1 : i + 1]]
        shared, union = oracle.jaccard(*sets)
        assert shared >= 0.4 * union


def test_growing_nothing_is_refused() -> None:
    with pytest.raises(SystemExit, match="nothing to make a corpus of"):
        next(corpora.grow(["", "..."], seed=1))


def test_texts_go_through_files_unchanged(tmp_path: Path) -> None:
    texts = ["plain", "", "two\nlines\u2028x", "half \ud800", "中文"]
    assert corpora.write_texts(tmp_path / "a.jsonl", texts) == (5, 5 + 0 + 13 + 8 + 6)
    assert list(corpora.read_texts([tmp_path])) == texts
    assert list(corpora.read_texts([tmp_path / "a.jsonl"], rows=2)) == texts[:2]
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["id"] for line in lines] == list("01234")
    assert corpora.write_texts(tmp_path / "b.jsonl", texts, size=5) == (1, 5)


@pytest.mark.parametrize("kind", ["english", "code", "short", "chinese"])
def test_corpora_of_this_machine(kind: str) -> None:
    """Real text where there is some, the size that was asked for, and the same again."""
    size = 150_000
    made = corpora.corpus(kind, size, seed=2)
    assert made == corpora.corpus(kind, size, seed=2)
    longest = max(len(text.encode()) for text in made.texts)
    assert 0.6 * size <= made.bytes <= 1.5 * size + 2 * longest
    assert compare.language_of(made.texts) == ("zh" if kind == "chinese" else "en")


# ----------------------------------------------------------------------------------------------------------- drivers


def test_shingles_of_the_drivers_are_those_of_the_oracle() -> None:
    for text in [*english(5), *chinese(5), "Only THREE words", "", "...", "mixed 中文 and English words, 好的"]:
        expected = {" ".join(window) for window in oracle.shingles(oracle.normalise(text), "token", 5)}
        assert set(driver.shingles(text)) == expected


def test_blocks_of_the_drivers_give_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*english(30), "", "form\x0cfeed \u2028 \x85"]
    corpora.write_texts(tmp_path / "a.jsonl", texts)
    for size in (1, 700, 5000, 10**6):
        monkeypatch.setattr(driver, "BLOCK", size)
        rows = [row for block in driver.blocks(str(tmp_path / "a.jsonl")) for row in driver.block_rows(block)]
        assert rows == list(enumerate(texts))


def test_greedy_keeps_a_row_whose_only_match_went() -> None:
    # 1 goes with 0; 2 is like 1 alone, so it stays; 3 is like 2 and goes.
    assert driver.greedy(4, [(1, 0), (1, 2), (3, 2), (3, 3)]) == [True, False, True, False]


# ------------------------------------------------------------------------------------------------------------ tables


def results(**changes: Any) -> dict[str, Any]:
    row = {"wall_s": 2.0, "cpu_s": 3.0, "memory_mb": 300.0, "mb_per_s": 50.0, "times_ours": 1.0, "kept": 900}
    seen = {"documents": 1000, "true_pairs": 90, "without_witness": 0, "missed_removals": 1, "recall": 0.99}
    return {
        "corpus": "made", "rows": 1000, "text_mb": 100.0, "cores": 2, "threshold": 0.8, "repeat": 3,
        "peers": {"slow": {"version": "1.2"}, "broken": {"version": ""}},
        "end_to_end": {
            "gpu-dedup": row,
            "slow": {**row, "wall_s": 9.0, "times_ours": 4.5, "mb_per_s": 11.1, "cpu_s": 9.0, "memory_mb": 301.0},
            "broken": {"why": "exit 1: Error | here"},
        },
        "quality": {"gpu-dedup": seen, "slow": {**seen, "without_witness": 20, "missed_removals": 4, "recall": 0.9}},
        "sketch": {
            "gpu-dedup": {"hashes_100": 100.0, "hashes_1000": 110.0, "hashes_10000": 111.0, "text": 90.0},
            "slow": {"hashes_100": 1.0, "hashes_1000": 2.0, "hashes_10000": "takes no hashes", "text": 3.0},
        },
        **changes,
    }  # fmt: skip


def test_table_says_what_was_measured_and_why_not() -> None:
    text = compare.markdown(results())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2] == "| gpu-dedup | 2.00 | 3.0 | 300 | 50.0 | 1.00 | 900 | 0 | 1 | 0.9900 |"
    assert rows[3] == "| slow 1.2 | 9.00 | 9.0 | 301 | 11.1 | 4.50 | 900 | 20 | 4 | 0.9000 |"
    assert rows[4].startswith("| broken | exit 1: Error / here |")
    assert "| slow | 1.00 | 2.00 | takes no hashes | 3.00 |" in rows
    assert len({line.count("|") for line in rows[:5]}) == 1
    assert "Quality over 1,000 texts with 90 true pairs." in text
    assert text.endswith("- No peer did better than gpu-dedup in any column.\n")


def test_table_says_where_a_peer_wins() -> None:
    given = results()
    given["end_to_end"]["slow"].update(times_ours=0.8, memory_mb=100.0)
    given["quality"]["slow"]["missed_removals"] = 0
    given["sketch"]["slow"]["hashes_1000"] = 289.0
    given["sketch"]["gpu-dedup --sketch fast"] = {
        "hashes_100": 90.0, "hashes_1000": 500.0, "hashes_10000": 600.0, "text": 95.0
    }  # fmt: skip
    assert compare.verdicts(given) == [
        "- A peer wins: faster end to end than gpu-dedup (2.0 s): slow (9.0 s).",
        "- A peer wins: less memory than gpu-dedup (300.0 MB): slow (100.0 MB).",
        "- A peer wins: fewer missed removals than gpu-dedup (1): slow (0).",
        "- A peer wins: faster sketch of 1,000 hashed shingles than gpu-dedup (110.0 M shingles/s; "
        "gpu-dedup --sketch fast: 500.0 M shingles/s): slow (289.0 M shingles/s).",
    ]


def test_nothing_is_claimed_where_no_peer_ran() -> None:
    given = results(quality={}, sketch={})
    del given["end_to_end"]["slow"]
    assert compare.verdicts(given) == []
    assert "Sketch alone" not in compare.markdown(given)


def test_summary_takes_medians_and_the_largest_memory() -> None:
    costs = [compare.Cost(4.0, 8.0, 10**6), compare.Cost(2.0, 3.0, 3 * 10**6), compare.Cost(2.5, 4.0, 2 * 10**6)]
    said = compare.summary(costs, 10**7)
    assert said == {"wall_s": 2.5, "cpu_s": 4.0, "memory_mb": 3.0, "mb_per_s": 4.0, "walls": [4.0, 2.0, 2.5]}


def test_rate_is_the_median() -> None:
    assert compare.rate({"seconds": [1.0, 0.5, 9.0], "shingles": 2_000_000}) == 2.0
    assert compare.rate({"seconds": [0.5], "bytes": 10**6}) == 2.0


def test_quality_is_judged_for_every_tool(tmp_path: Path) -> None:
    quality = load("benchmark_quality", BENCHMARKS / "quality.py")
    text = " ".join(f"word{i}" for i in range(100))
    corpora.write_texts(tmp_path / "a.jsonl", [text, text, text + " more", "another text of some words", ""])
    sys.modules["quality"] = quality
    try:
        said = compare.quality(quality.Truth(tmp_path / "a.jsonl"), {"all": [0, 1, 2, 3, 4], "one": [2, 4]}, 0.8)
    finally:
        del sys.modules["quality"]
    assert (said["all"]["missed_removals"], said["all"]["without_witness"]) == (2, 0)
    assert (said["one"]["missed_removals"], said["one"]["without_witness"]) == (0, 1)


# -------------------------------------------------------------------------------------------------- alternating runs


class Stub:
    """A Bench without processes: gpu-dedup takes 1, 2, 3 ... s, a peer 4 s; `broken` fails on the real file."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def run_ours(self, source: Path) -> tuple[Any, list[int]]:
        self.calls.append(f"ours {source}")
        return compare.Cost(float(len(self.calls)), 1.0, 10**6), [0, 2]

    def run_peer(self, peer: Any, python: Path, source: Path) -> tuple[Any, list[int], dict[str, float]]:
        self.calls.append(f"{peer.name} {source}")
        if peer.name == "broken" and source.name == "all":
            raise compare.PeerError("exit 1: out of luck")
        return compare.Cost(4.0, 1.0, 10**6), [0, 1, 2], {"sketch": 3.0}

    def sketch(self, driver: str, variant: str, python: Path, source: Path, mode: str, length: int) -> dict[str, Any]:
        self.calls.append(f"{driver} {mode} {length}")
        if driver == "broken":
            raise compare.PeerError("exit 1: out of luck")
        return {"why": "takes no hashes"} if mode == "hashes" else {"seconds": [0.5], "bytes": 10**6}

    def sketch_ours(self, source: Path, mode: str, length: int, variant: str = "") -> dict[str, Any]:
        self.calls.append(f"ours {variant} {mode} {length}".replace("  ", " "))
        seconds = [0.25] if variant == "fast" else [1.0]
        return {"seconds": seconds, "shingles": 5 * 10**6} if mode == "hashes" else {"seconds": seconds, "bytes": 10**6}


def fake_peers() -> list[tuple[Any, Any]]:
    made = [compare.Peer(name, (name,), name) for name in ("good", "broken", "absent")]
    return list(zip(made, (Path("p"), Path("p"), compare.PeerError("cannot be installed: no")), strict=True))


def test_runs_alternate_and_a_failure_is_a_row() -> None:
    stub, said = Stub(), []
    table, kept = compare.end_to_end(stub, fake_peers(), Path("all"), Path("few"), 8 * 10**6, 2, said.append)
    assert stub.calls == [
        "ours few", "good few", "ours all", "good all", "ours all", "good all", "broken few", "ours all", "broken all",
    ]  # fmt: skip
    assert kept == {"gpu-dedup": [0, 2], "good": [0, 1, 2]}
    assert table["good"]["times_ours"] == round((4 / 3 + 4 / 5) / 2, 2)  # neighbours: 4 s beside 3 s and beside 5 s
    assert table["good"]["mb_per_s"] == 2.0
    assert table["gpu-dedup"]["walls"] == [3.0, 5.0, 8.0]
    assert table["broken"] == {"why": "exit 1: out of luck"}
    assert table["absent"] == {"why": "cannot be installed: no"}


def test_without_peers_gpu_dedup_runs_alone() -> None:
    table, kept = compare.end_to_end(Stub(), [], Path("all"), Path("few"), 10**6, 3, lambda text: None)
    assert list(table) == list(kept) == ["gpu-dedup"]
    assert len(table["gpu-dedup"]["walls"]) == 3


def test_sketches_of_all_that_have_one() -> None:
    stub = Stub()
    out = compare.sketches(stub, fake_peers(), Path("all"), lambda text: None)
    assert out["gpu-dedup"] == {"hashes_100": 5.0, "hashes_1000": 5.0, "hashes_10000": 5.0, "text": 1.0}
    fast = out["gpu-dedup --sketch fast"]
    assert fast == {"hashes_100": 20.0, "hashes_1000": 20.0, "hashes_10000": 20.0, "text": 4.0}
    assert (out["good"]["hashes_100"], out["good"]["text"]) == ("takes no hashes", 2.0)
    assert out["broken"]["text"] == "exit 1: out of luck"
    assert out["absent"]["text"] == "cannot be installed: no"
    first = ["ours hashes 100", "ours fast hashes 100", "good hashes 100"]
    assert stub.calls[:6] == [*first, *(call.replace("100", "1000") for call in first)]
    alone = compare.sketches(Stub(), [], Path("all"), lambda text: None)
    assert alone == {name: out[name] for name in ("gpu-dedup", "gpu-dedup --sketch fast")}


def test_a_change_of_our_own_answer_ends_the_comparison() -> None:
    stub = Stub()
    answers = itertools.count()
    stub.run_ours = lambda source: (compare.Cost(1.0, 1.0, 1), [next(answers)])  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="kept other rows"):
        compare.end_to_end(stub, fake_peers(), Path("all"), Path("few"), 10**6, 2, lambda text: None)


def test_the_whole_command_without_peers(tmp_path: Path) -> None:
    corpora.write_texts(tmp_path / "mine.jsonl", [*english(40), *english(40)])
    options = ["--input", str(tmp_path / "mine.jsonl"), "--name", "mine", "--peers", "none", "--repeat", "1"]
    options += ["--no-sketch", "--json", str(tmp_path / "out.json"), "--work-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "compare.py"), *options], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "out.json").read_text())
    assert (said["rows"], said["end_to_end"]["gpu-dedup"]["kept"]) == (80, 40)
    seen = said["quality"]["gpu-dedup"]
    assert (seen["removed"], seen["without_witness"], seen["missed_removals"]) == (40, 0, 0)
    assert {"machine", "date", "versions", "command", "load"} <= set(said)
    assert str(tmp_path) not in json.dumps(said)
    assert "| gpu-dedup |" in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []  # nothing is left behind


# ------------------------------------------------------------------------------------------------------- measurement

CPUS = set(list(os.sched_getaffinity(0))[:1]) if hasattr(os, "sched_getaffinity") else {0}


def test_a_process_and_its_children_are_measured(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; "
        "subprocess.run([sys.executable, '-c', 'x = bytearray(80_000_000); sum(range(3_000_000)); "
        "import time; time.sleep(0.5)']); x = bytearray(10_000_000); time.sleep(0.1)"
    )
    start = time.perf_counter()
    cost = compare.run_measured([sys.executable, "-c", code], tmp_path / "log", CPUS, 60)
    assert 0.6 <= cost.wall <= time.perf_counter() - start
    assert cost.cpu > 0.01
    assert 80_000_000 <= cost.memory < 400_000_000


def test_a_failure_and_a_hang_are_told_in_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(compare.PeerError, match=r"^exit 1: ValueError: no such thing$"):
        compare.run_measured([sys.executable, "-c", "raise ValueError('no such thing')"], log, CPUS, 60)
    with pytest.raises(compare.PeerError, match=r"^not done after 0 s$"):
        compare.run_measured([sys.executable, "-c", "import time; time.sleep(60)"], log, CPUS, 0.3)


def test_every_peer_has_a_driver_that_compiles() -> None:
    assert len({peer.name for peer in compare.PEERS}) == len(compare.PEERS)
    for name in [*(peer.driver for peer in compare.PEERS), "ours"]:
        path = BENCHMARKS / "peers" / f"{name}.py"
        compile(path.read_text(encoding="utf-8"), str(path), "exec")


# ------------------------------------------------------------------------------------------------- large.py, growth.py


def test_a_slope_is_the_power_that_cost_grows_by() -> None:
    growth = load_beside("growth")
    assert growth.slope([(1, 3), (2, 6), (4, 12), (8, 24)]) == pytest.approx(1)
    assert growth.slope([(1, 5), (10, 500), (100, 50_000)]) == pytest.approx(2)
    assert growth.slope([(1, 7), (8, 7)]) == pytest.approx(0)
    assert growth.slope([(4, 7)]) is None
    assert growth.slope([(4, 7), (8, 0)]) is None


def test_a_large_corpus_names_its_copies(tmp_path: Path) -> None:
    """Every planted pair is where the listing says, with the counts of sets."""
    large = load_beside("large")
    real = english(40)
    rows: dict[int, list[str]] = {}
    pairs: list[tuple[int, int, int, int]] = []
    for number in range(2):
        rows[number] = []
        for row, (text, source) in enumerate(itertools.islice(large.stream(number, real, 0.3, 1), 300)):
            rows[number].append(text)
            if source is not None:
                assert rows[source[0]][source[1]] == source[2]
                pairs.append((source[0], source[1], number, row))
    assert sum(of == 0 and to == 1 for of, _, to, _ in pairs) > 40, "exact copies of the real texts, and near ones"
    (tmp_path / "pairs-0.tsv").write_text("head\n0\t1\t0\t5\t90\t100\n0\t2\t0\t6\t9\t10\n0\t3\t0\t7\t4\t10\n")
    (tmp_path / "pairs-1.tsv").write_text("head\n0\t1\t1\t5\t10\t10\n0\t9\t1\t6\t79\t100\n")
    found = large.recall(tmp_path, {"0.jsonl": {5: ()}, "1.jsonl": {6: ()}})
    told = {bucket["from"]: (bucket["pairs"], bucket["found"]) for bucket in found if bucket["pairs"]}
    assert told == {0.9: (2, 1), 0.75: (1, 1), 1.0: (1, 0)}


def load_beside(name: str) -> ModuleType:
    """A script that imports others of its folder by name; what it brings in goes again (tests/ has a corpora.py)."""
    names = ("common", "corpora", "large", "plots")
    before = {one: sys.modules.pop(one) for one in names if one in sys.modules}
    path = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return load(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    finally:
        sys.path[:] = path
        for one in names:
            sys.modules.pop(one, None)
        sys.modules.update(before)
