"""explain: its arithmetic is right, and the similarity of two texts is what sets say it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpu_dedup import Recipe, Run, cli, outlook
from gpu_dedup.errors import InputError, RunError
from gpu_dedup.pipeline import estimate
from gpu_dedup.pipeline.footprint import Footprint, row_bytes
from gpu_dedup.spool import Budget


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = cli.main(["explain", *arguments])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return out


def test_the_default_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys)
    assert text.startswith("minhash token:5, 17 bands x 7 rows, threshold 0.8, keep first\n")
    assert "1 - (1 - s^7)^17" in text
    rows = {m[1]: m[2] for m in re.finditer(r"^  (0\.\d\d) +(\S+ %)", text, re.M)}
    # 1 - (1 - s**7)**17, worked out by hand for three of them.
    assert rows["0.50"] == "12.5 %"
    assert rows["0.80"] == "98.2 %"
    assert rows["0.65"] == "57.5 %"
    assert list(rows) == [f"{s / 100:.2f}" for s in range(50, 100, 5)]
    assert "0.80" in re.search(r"^.*<- threshold$", text, re.M)[0]  # type: ignore[index]
    assert "of its 119 slots agree" in text
    assert "warning" not in text


def test_a_fast_sketch_is_named_and_costs_by_the_shingle(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--sketch", "fast")
    assert text.startswith("minhash token:5, 17 bands x 7 rows of a fast sketch, threshold 0.8, keep first\nrecipe ")
    line = re.search(r"^  sketch +.*$", text, re.M)
    assert line is not None
    assert line[0].endswith("shingles (one in 7 bytes) at 1e+09/s")


def test_the_much_copied_nine_by_thirteen_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--bands", "9", "--rows", "13")
    assert re.search(r"warning: 9 bands x 13 rows finds 40 %", text)
    assert "17 bands x 7 rows" in text


def test_a_threshold_between_the_rows_has_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "--threshold", "0.77").splitlines()
    at = next(i for i, line in enumerate(lines) if "-- threshold" in line)
    assert lines[at].split()[0] == "0.77"
    assert lines[at - 1].split()[0] == "0.75"
    assert lines[at + 1].split()[0] == "0.80"


@pytest.mark.parametrize("threshold", ["0.3", "0.95", "1"])
def test_thresholds_outside_the_table(threshold: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--threshold", threshold, "--num-perm", "512")
    assert f"threshold {threshold}, keep first" in text


def test_every_recipe_option_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Every option changes the text, if only by the fingerprint: none is ignored."""
    bare = output(capsys)
    fingerprint = re.search(r"^recipe ([0-9a-f]{32})$", bare, re.M)
    assert fingerprint is not None
    for arguments in (
        ["--seed", "5"], ["--id-field", "url"], ["--on-bad-row", "keep"], ["--keep", "longest"], ["--limit", "9"],
        ["--text-field", "a,b"], ["--cap-lowest", "5"], ["--witness", "best"], ["--min-shingles", "3"],
    ):  # fmt: skip
        text = output(capsys, *arguments)
        assert fingerprint[1] not in text
        assert f"{arguments[0][2:]} {arguments[1]}" in text or arguments[0] == "--keep"


def test_exact_has_no_curve(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--method", "exact", "--documents", "1000")
    assert "Chance" not in text
    assert "slots" not in text
    assert "1,000 documents of 3,000 bytes" in text


def test_a_filter_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """k, m, rate and memory of a thousand million keys, as solved (tests/test_bloom.py holds the solver)."""
    assert cli.main(["explain", "--method", "bloom", "--capacity", "1000000000", "--key-field", "url"]) == 0
    out = capsys.readouterr().out
    assert "has seen its url before" in out
    for name, value in (
        ("capacity", "1,000,000,000"), ("rate", "1 in 1,000,000"), ("hashes k", "16"), ("blocks m", "75,919,336"),
        ("memory", "4.86 GB"),
    ):  # fmt: skip
        assert re.search(rf"^  {name} +{re.escape(value)} ", out, re.MULTILINE), name
    assert "38.9 a key, without blocks 28.8" in out
    assert re.search(r"^  filter +4.86 GB +1 x 75,919,336 blocks x 64", out, re.MULTILINE)
    assert "Chance that a pair" not in out
    assert cli.main(["explain", "--method", "bloom", "--capacity", "1000000000", "--memory", "4GB"]) == 0
    assert "warning: the filter takes 4.86 GB, over --memory 4 GB" in capsys.readouterr().out
    assert cli.main(["explain", "--method", "lshbloom", "--capacity", "10000000", "--fp-rate", "0.00001"]) == 0
    out = capsys.readouterr().out
    assert "any of 17 bands" in out
    assert "1 in 100,000" in out
    assert "<- threshold" in out
    assert "the later of two rows that meet goes" in out


def test_memory_is_the_sum_of_what_is_shown() -> None:
    from gpu_dedup.pipeline import settle

    corpus = estimate.Corpus.of(1_000_000, 2000)
    recipe = settle(Recipe(keep="longest"))
    run = Run(threads=4, memory=8 * 10**9)
    memory = estimate.memory_of(recipe, run, corpus)
    by_name = {line.name: line.bytes for line in memory.lines}
    assert list(by_name) == ["rows", "tables", "batches", "read ahead", "verify", "program", "matches"]
    assert memory.spilled == 0
    assert by_name["tables"] == (4 * 119 + 8 * 17 + 24 + 40) * 10**6
    assert by_name["rows"] == sum(size for _, size in row_bytes(recipe)) * 10**6
    assert ("place in keeper order", 24) in row_bytes(recipe)
    assert ("place in keeper order", 24) not in row_bytes(Recipe())
    assert memory.bytes == sum(by_name.values())
    # What the run itself goes by, to the byte.
    budget = Budget(0)
    footprint = Footprint(recipe, run, "numba", 10**10, budget)
    footprint.met(10**6, 2 * 10**9)
    assert memory.needed == 8 * 10**9 - footprint.room == memory.bytes - by_name["tables"]


def test_tables_that_do_not_fit_go_to_disk_the_largest_first() -> None:
    from gpu_dedup.pipeline import settle

    recipe = settle(Recipe())
    corpus = estimate.Corpus.of(10_000_000, 2000)
    needed = estimate.memory_of(recipe, Run(threads=1, memory=8 * 10**9), corpus).needed
    signatures, keys = 4 * 119 * 10**7, (8 * 17 + 64) * 10**7
    for room, spilled in ((signatures + keys, 0), (signatures + keys - 1, signatures), (keys, signatures),
                          (keys - 1, signatures + keys)):  # fmt: skip
        memory = estimate.memory_of(recipe, Run(threads=1, memory=needed + room), corpus)
        assert memory.needed == needed
        assert (memory.spilled, memory.bytes) == (spilled, needed + signatures + keys - spilled)
        disk = estimate.disk_lines(recipe, Run(threads=1), corpus, memory.spilled)
        assert [line.name for line in disk] == ["parts", *(["tables"] if spilled else []), "output"]
        assert disk[0].bytes == (25 + 24 + 4 * 119) * 10**7
        assert sum(line.bytes for line in disk[1:-1]) == (spilled + 32 * 10**7 if spilled else 0)
        assert disk[-1].bytes == 2 * 10**10
    mask = estimate.disk_lines(recipe, Run(write="mask", checkpoint=0), corpus, 0)
    assert [(line.name, line.bytes) for line in mask] == [("output", 15 * 10**7)]


def test_a_run_that_will_be_refused_is_said_so_with_the_same_figure(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--documents", "400000000", "--memory", "2GB", "--threads", "2")
    said = re.search(r"^warning: --memory 2 GB is too little.*the least that works is ([\d.]+) GB$", text, re.M)
    assert said is not None
    from gpu_dedup.pipeline import settle

    run = Run(threads=2, memory=2 * 10**9)
    footprint = Footprint(settle(Recipe()), run, "numba", 10**8, Budget(0))
    with pytest.raises(RunError, match=rf"the least that works is {said[1]} GB"):
        footprint.met(400_000_000, 10**8)
    least = str(int(float(said[1]) * 1.01 * 1e9))
    assert "warning" not in output(capsys, "--documents", "400000000", "--memory", least, "--threads", "2")
    text = output(capsys, "--documents", str(2**32), "--memory", "9000GB")
    assert "warning: 4,294,967,296 different texts are more than 4,294,967,295" in text
    assert "warning" not in output(capsys, "--documents", str(2**32 - 1), "--memory", "9000GB")


# ---- before a run ----------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """40,000 rows of 251 bytes; said to be enough for an estimate."""
    monkeypatch.setattr(estimate, "BRIEF_FROM", 1 << 20)
    monkeypatch.setattr(estimate, "BRIEF_BYTES", 1 << 17)
    path = tmp_path / "rows.jsonl"
    with open(path, "w") as file:
        for number in range(20_000):
            file.write(json.dumps({"id": number, "text": f"{number:08d} " * 26}) + "\n")
    return path


def test_a_run_says_first_what_it_will_take(
    lines: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["run", str(lines), "-o", str(tmp_path / "a"), "--threads", "1", "--method", "exact"]) == 0
    first = capfd.readouterr().err.splitlines()[0]
    found = re.match(r"gpu-dedup: estimate: ([\d,]+) rows, memory ([\d.]+ MB), disk ([\d.]+ MB), [\d.]+ s by 1 ", first)
    assert found is not None, first
    assert int(found[1].replace(",", "")) == pytest.approx(20_000, rel=0.02)
    assert f"of {lines.stat().st_size / 1e6:.3g} MB in 1 file)" in first
    assert found[3] == f"{lines.stat().st_size / 1e6:.3g} MB"
    assert cli.main(["explain", "--method", "exact", "--threads", "1", str(lines)]) == 0
    text = capfd.readouterr().out
    assert re.search(r"^  memory +([\d.]+ MB)", text, re.M)[1] == found[2]  # type: ignore[index]
    # Nothing is said when it is to be quiet, and of what is small.
    assert cli.main(["run", str(lines), "-o", str(tmp_path / "b"), "--method", "exact", "--quiet"]) == 0
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(estimate, "BRIEF_FROM", 1 << 30)
    assert cli.main(["run", str(lines), "-o", str(tmp_path / "c"), "--method", "exact"]) == 0
    assert "estimate" not in capfd.readouterr().err


def test_a_disk_that_is_too_small_is_said_before_the_work(
    lines: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"bytes": 1_000_000}
    monkeypatch.setattr(estimate, "free_bytes", lambda path: (free["bytes"], 7))
    size = lines.stat().st_size
    base = ["run", str(lines), "--method", "exact", "--threads", "1", "--overwrite", "-o", str(tmp_path / "out")]
    assert cli.main(base) == 0
    found = re.search(r"warning: (.*): 1 MB are free on this disk, and up to (.*) will be", capfd.readouterr().err)
    assert found is not None
    assert found[1].startswith(str(tmp_path / "out"))
    assert found[2] == f"{size / 1e6:.3g} MB"
    free["bytes"] = size + 1_000_000
    assert cli.main(base) == 0
    assert "warning" not in capfd.readouterr().err
    # Parts of so many rows have no room for sure: nothing is begun.
    free["bytes"] = 300_000
    parts = [*base[:-1], str(tmp_path / "parts"), "--checkpoint", "1MB"]
    assert cli.main(parts) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert re.search(r"300 kB are free.*take 4\d\d kB or more.*--checkpoint 0", error)
    assert not (tmp_path / "parts").exists()
    free["bytes"] = 450_000  # a guess of a third more would not be sure
    assert cli.main(parts) == 0


def test_disks_apart_are_looked_at_apart(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_dedup.read import discover

    recipe, run = Recipe(method="exact"), Run(checkpoint=1000)
    size = lines.stat().st_size
    free = {"/work": (100_000_000, 1), "/out": (size // 2, 2)}
    monkeypatch.setattr(estimate, "free_bytes", free.get)

    def warnings(there: int = 0) -> list[str]:
        place = estimate.Place("/work", True, there, "/out")
        return estimate.brief(discover([str(lines)], None), recipe, run, None, size, place)[1:]

    assert [line.split(":")[1] for line in warnings()] == [" /out"]
    free["/out"] = (size * 2, 2)
    assert warnings() == []
    free["/work"] = (600_000, 1)  # 49 bytes a row are more, 24 are not
    assert ["--work-dir" in line for line in warnings()] == [True]
    assert warnings(there=500_000) == [], "what is there needs no room"
    free["/work"] = None  # type: ignore[assignment]
    assert warnings() == [], "a disk that nobody can ask"


def test_time_falls_with_threads_and_rises_with_slots() -> None:
    from gpu_dedup.pipeline import settle

    corpus = outlook.Corpus.of(1000, 10**6)

    def seconds(recipe: Recipe, **run: object) -> float:
        return sum(s for _, _, s in estimate.time_lines(settle(recipe), Run(**run), corpus))  # type: ignore[arg-type]

    one = seconds(Recipe(), threads=1)
    assert seconds(Recipe(), threads=4) == pytest.approx(one / 4)
    assert seconds(Recipe(num_perm=512, recall_ppm=999_999), threads=1) > one
    assert seconds(Recipe(method="exact"), threads=1) < one
    fast = seconds(Recipe(sketch="fast"), threads=1)
    assert seconds(Recipe(method="exact"), threads=1) < fast < one
    assert seconds(Recipe(sketch="fast", num_perm=512, recall_ppm=999_999), threads=1) == pytest.approx(fast)
    assert seconds(Recipe(), threads=1, backend="numpy") > 5 * one


def test_files_are_sampled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        rows = [{"id": i, "text": "word " * 100} for i in range(500)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = output(capsys, str(tmp_path / "*.jsonl"))
    found = re.search(r"Cost: ([\d,]+) documents of (\d+) bytes", text)
    assert found is not None
    assert int(found[1].replace(",", "")) == pytest.approx(1000, rel=0.02)
    assert found[2] == "500"
    assert "guessed from 1,000 rows" in text
    limited = output(capsys, str(tmp_path / "*.jsonl"), "--limit", "10")
    assert "Cost: 10 documents" in limited


def test_a_corpus_of_nothing_has_no_cost() -> None:
    with pytest.raises(RunError, match="above 0"):
        outlook.Corpus.of(0, 5)


# ---------------------------------------------------------------------------------------------------------------------
# Two texts.


def jaccard(one: list[str], other: list[str], n: int) -> tuple[int, int]:
    left = {tuple(one[i : i + n]) for i in range(len(one) - n + 1)}
    right = {tuple(other[i : i + n]) for i in range(len(other) - n + 1)}
    return len(left & right), len(left | right)


ONE = "The cat sat on the mat and the dog sat on the log, as cats and dogs do."
OTHER = "The cat sat on the rug and the dog sat on the log, as cats and dogs do!"


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_similarity_by_tokens_is_that_of_sets(n: int) -> None:
    words = [re.findall(r"\w+", text.lower()) for text in (ONE, OTHER)]
    (result,) = outlook.similarity(ONE, OTHER, Recipe(), [f"token:{n}"])
    assert (result.shared, result.union) == jaccard(words[0], words[1], n)


@pytest.mark.parametrize("n", [4, 5, 8, 12, 24])
def test_similarity_by_characters_is_that_of_sets(n: int) -> None:
    (result,) = outlook.similarity(ONE, OTHER, Recipe(), [f"char:{n}"])
    assert (result.shared, result.union) == jaccard(list(ONE.lower()), list(OTHER.lower()), n)


def test_the_threshold_is_met_in_whole_numbers() -> None:
    assert outlook.Compared("token:5", 9, 9, 8).matches(800_000)  # 8 of 10
    assert not outlook.Compared("token:5", 9, 9, 8).matches(800_001)
    assert not outlook.Compared("token:5", 0, 0, 0).matches(1)
    assert outlook.Compared("token:5", 0, 0, 0).similarity == 0.0


def test_compare_prints_a_line_for_each_shingle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = output(capsys, "--texts", ONE, OTHER)
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("  ")}
    assert [name for name in outlook.SHINGLES if name not in lines] == []
    shared, union = jaccard(*(re.findall(r"\w+", t.lower()) for t in (ONE, OTHER)), 5)
    assert lines["token:5"][3:6] == [str(shared), str(union), f"{shared / union:.4f}"]
    assert lines["token:5"][-2:] == ["<-", "default"]
    same = len(ONE) - 4  # m, a, t and the full stop are replaced
    assert lines["edit"][1:4] == [str(same), str(len(ONE)), f"{same / len(ONE):.4f}"]
    assert "a copy under --verify edit" in text
    (tmp_path / "a").write_text(ONE)
    (tmp_path / "b").write_text(OTHER, encoding="utf-8-sig")
    assert output(capsys, "--compare", str(tmp_path / "a"), str(tmp_path / "b")) == text


def test_compare_takes_the_options_that_it_depends_on(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(
        capsys, "--texts", ONE, ONE.upper(), "--normalize", "none", "--shingle", "word:2", "--threshold", "0.5"
    )
    assert text.startswith("normalize none; threshold 0.5;")
    assert re.search(r"^  word:2 .*0\.0000 .*<- yours$", text, re.M)
    text = output(capsys, "--texts", ONE, ONE.upper())
    assert re.search(r"^  token:5 .*1\.0000 .*a copy <- default$", text, re.M)


def test_texts_without_units_are_not_alike(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--texts", "---", "---")
    assert re.search(r"^  token:5 +0 +0 +0 +0 +0\.0000", text, re.M)
    assert "a copy" not in re.search(r"^  token:5.*$", text, re.M)[0]  # type: ignore[index]


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match="not UTF-8 at byte 2"):
        outlook.read_text(str(tmp_path / "x"))
    with pytest.raises(InputError, match="No such file"):
        outlook.read_text(str(tmp_path / "y"))
