"""Labelled sets: metrics worked out by hand, every format read, every wrong file refused in one line."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import corpora
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
import labelled

# ------------------------------------------------------------------------------------------------ metrics by hand


def test_set_metrics_by_hand() -> None:
    truth: list[set[str]] = [{"b"}, {"a"}, {"d", "e"}, {"c", "e"}, {"c", "d"}, set(), set(), {"x"}, set()]
    predicted: list[set[str]] = [{"b"}, {"a"}, {"d"}, {"c", "e", "f"}, {"c", "d"}, {"d"}, set(), set(), set()]
    # rows: TP TP FP(not all found) TP(more than all) TP FP(nothing to find) TN FN TN
    said = labelled.set_metrics(truth, predicted)
    assert said["counts"] == {"TP": 4, "FP": 2, "FN": 1, "TN": 2}
    assert said["precision_duplicates"] == 4 / 6
    assert said["recall_duplicates"] == 4 / 5
    assert said["precision_non_duplicates"] == 2 / 3
    assert said["recall_non_duplicates"] == 2 / 4
    assert said["macro_precision"] == (4 / 6 + 2 / 3) / 2
    assert said["accuracy"] == 5 / 9
    assert said["mean_recall"] == pytest.approx((1 + 1 + 0.5 + 1 + 1 + 1 + 1 + 0 + 1) / 9)
    nothing = labelled.set_metrics([set()], [set()])
    assert (nothing["accuracy"], nothing["precision_duplicates"], nothing["recall_non_duplicates"]) == (1, 0, 1)


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        ([0, 0, 1, 1], [5, 5, 9, 9], 1.0),
        # the textbook example: index 1, expected 2 * 1 / 6, largest (2 + 1) / 2
        ([0, 0, 1, 1], [0, 0, 1, 2], (1 - 2 / 6) / (1.5 - 2 / 6)),
        ([0, 0, 1, 1], [0, 1, 0, 1], (0 - 4 / 6) / (2 - 4 / 6)),
        ([0, 1, 2, 3], [0, 1, 2, 3], 1.0),
        ([0, 0, 0, 0], [0, 0, 0, 0], 1.0),
        ([0, 0, 0, 0], [0, 1, 2, 3], 0.0),
        ([7], [8], 1.0),
    ],
)
def test_adjusted_rand_by_hand(one: list[int], other: list[int], value: float) -> None:
    assert labelled.adjusted_rand(one, other) == pytest.approx(value)
    assert labelled.adjusted_rand(other, one) == pytest.approx(value)


def test_a_partition_is_judged_by_hand() -> None:
    # labelled clusters {0, 1, 2}, {3, 4}, {5}; predicted {0, 1}, {2, 3, 4}, {5}
    data = labelled.Labelled("clusters", list("abcdef"), [""] * 6, groups=[0, 0, 0, 1, 1, 2])
    said = labelled.evaluate(data, [0, 0, 2, 2, 2, 5])
    assert said["pairwise"] == {
        "precision": 2 / 4, "recall": 2 / 4, "f1": 0.5, "shared_pairs": 2, "predicted_pairs": 4, "true_pairs": 4,
    }  # fmt: skip
    assert said["ari"] == pytest.approx((2 - 16 / 15) / (4 - 16 / 15))
    half = labelled.evaluate(data, [0, 0, 2, 2, 2, 5], [0, 1, 2])
    assert (half["texts"], half["pairwise"]["recall"], half["pairwise"]["precision"]) == (3, 1 / 3, 1.0)
    # labelled pairs with negatives: only these count
    data = labelled.Labelled("pairs", list("abcd"), [""] * 4, groups=[0, 0, 2, 3], pairs={(0, 1)}, not_pairs={(0, 2)})
    assert labelled.evaluate(data, [0, 0, 0, 0])["pairwise"]["precision"] == 0.5
    assert labelled.evaluate(data, [0, 0, 2, 0])["pairwise"]["precision"] == 1.0
    assert labelled.evaluate(data, [0, 1, 2, 3])["pairwise"]["f1"] == 0.0
    data.not_pairs = None
    assert labelled.evaluate(data, [0, 0, 0, 0])["pairwise"]["precision"] == 1 / 6


def test_id_sets_of_every_spelling() -> None:
    for value in (
        ["11", "12"], [11, 12], "['11', '12']", '["11", "12"]', "['11' '12']", "11 12", "11,12", "11; 12", "{11, 12}",
    ):  # fmt: skip
        assert labelled.id_set(value) == {"11", "12"}, value
    for value in (None, "", [], "[]", "()"):
        assert labelled.id_set(value) == set()
    assert labelled.id_set(7) == labelled.id_set("7") == {"7"}


# --------------------------------------------------------------------------------------------------- whole files


def core_rows() -> list[dict[str, Any]]:
    """Five papers: 1 and 2 alike and labelled; 3 and 4 alike, but not labelled; 5 labelled with one that is gone."""
    rng = random.Random("core")
    one, other, last = (corpora.made_up(rng, 60) for _ in range(3))

    def row(name: int, words: list[str], labels: list[str]) -> dict[str, Any]:
        return {
            "core_id": str(name), "processed_title": " ".join(words[:8]).title(),
            "processed_abstract": " ".join(words[8:]), "labelled_duplicates": labels, "cat": "x",
        }  # fmt: skip

    return [
        row(1, one, ["2"]), row(2, corpora.exchange(rng, one, 1), ["1"]), row(3, other, []),
        row(4, corpora.exchange(rng, other, 1), []), row(5, last, ["99"]),
    ]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    monkeypatch.setattr(sys, "argv", ["labelled.py", *arguments[:cut], "--json", str(out), *arguments[cut:]])
    assert labelled.main() == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def write_core(folder: Path, form: str) -> Path:
    rows = core_rows()
    path = folder / f"core{form}"
    if form == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == ".csv":
        lines = [",".join(rows[0])]
        lines += [",".join(f'"{value}"' for value in row.values()) for row in rows]
        path.write_text("\n".join(lines) + "\n")
    elif form == ".json":
        path.write_text(json.dumps(rows))
    else:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if form.endswith("gz") else data)
    return path


@pytest.mark.parametrize("form", [".parquet", ".csv", ".json", ".jsonl", ".jsonl.gz"])
def test_core_in_every_format(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(monkeypatch, tmp_path, str(write_core(tmp_path, form)))
    assert (found["kind"], found["texts"], found["true_pairs"], found["absent_ids"]) == ("core", 5, 1, 1)
    # 1, 2: TP and equal; 3, 4: FP; 5: FN
    assert found["published"]["counts"] == {"TP": 2, "FP": 2, "FN": 1, "TN": 0}
    assert found["published"]["accuracy"] == 0.4
    assert found["pairwise"]["precision"] == 0.5
    assert found["pairwise"]["recall"] == 1.0
    assert found["recipe"]["shingle"] == "token:2"
    out = capsys.readouterr().out
    assert "1 labelled ids without a text" in out
    assert "as published" in out
    assert found["published_by_others"][0]["accuracy"] == 0.9277


def test_the_command_line_of_the_run_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_core(tmp_path, ".jsonl")
    found = run(monkeypatch, tmp_path, str(path), "--", "--threshold", "1", "--shingle", "char:5")
    assert found["published"]["counts"] == {"TP": 0, "FP": 0, "FN": 3, "TN": 2}
    assert found["published"]["accuracy"] == 0.4
    assert (found["recipe"]["shingle"], found["recipe"]["cluster"]) == ("char:5", "representative")


def news(folder: Path) -> Path:
    rng = random.Random("news")
    rows = []
    for cluster in range(6):
        words = corpora.made_up(rng, 80)
        for copy in range(1 + cluster % 3):
            text = " ".join(corpora.exchange(rng, words, copy))
            middle = len(text) // 2
            text = text[:middle] + "-\n" + text[middle:] if copy else text
            rows.append({"id": f"{cluster}-{copy}", "article": text, "cluster": 100 + cluster})
    path = folder / "news.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_clusters_and_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = news(tmp_path)
    found = run(monkeypatch, tmp_path, str(path))
    assert (found["kind"], found["texts"], found["true_pairs"]) == ("clusters", 12, 8)
    assert (found["ari"], found["pairwise"]["f1"]) == (1.0, 1.0)
    found = run(monkeypatch, tmp_path, str(path), "--search", "--quick")
    assert len(found["tries"]) == 2 * 2 * 2
    assert found["halves"]["chosen_on"]["texts"] + found["halves"]["held_back"]["texts"] == 12
    assert max(entry["goal"] for entry in found["tries"]) == found["halves"]["chosen_on"]["ari"] == 1.0
    assert "the half that it did not look at" in capsys.readouterr().out


def test_halves_keep_groups_whole() -> None:
    ids = [f"doc{i}" for i in range(400)]
    data = labelled.Labelled("clusters", ids, [""] * 400, groups=[i // 2 for i in range(400)])
    one, other = labelled.halves(data)
    assert sorted(one + other) == list(range(400))
    assert {i // 2 for i in one} & {i // 2 for i in other} == set()
    assert 140 < len(one) < 260


@pytest.mark.parametrize("form", ["lists.json", "pairs.csv", "pairs.tsv", "labels.csv", "pairs.jsonl"])
def test_any_pairs_file(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random("pairs")
    words = corpora.made_up(rng, 100)
    texts = {
        "a": " ".join(words), "b": " ".join(corpora.exchange(rng, words, 1)), "c": " ".join(corpora.made_up(rng, 50)),
        "d": " ".join(corpora.made_up(rng, 50)),
    }  # fmt: skip
    path = tmp_path / "texts.json"
    path.write_text(json.dumps({name: {"article": text, "byline": ""} for name, text in texts.items()}))
    pairs = tmp_path / form
    pairs.write_text(
        {
            "lists.json": '[["b", "a"], ["c", "d"], ["a", "gone"]]',
            "pairs.csv": "id_a,id_b\nb,a\nc,d\na,gone\n",
            "pairs.tsv": "id_a\tid_b\nb\ta\nc\td\na\tgone\n",
            "labels.csv": "id_a,id_b,label\nb,a,1\nc,d,1\na,c,0\na,gone,1\n",
            "pairs.jsonl": '{"x": "b", "y": "a"}\n{"x": "c", "y": "d"}\n{"x": "a", "y": "gone"}\n',
        }[form]
    )
    found = run(monkeypatch, tmp_path, str(path), "--pairs", str(pairs))
    assert (found["kind"], found["texts"], found["true_pairs"], found["absent_ids"]) == ("pairs", 4, 2, 1)
    assert found["pairwise"] == {
        "precision": 1.0, "recall": 0.5, "f1": 0.666667, "shared_pairs": 1, "predicted_pairs": 1, "true_pairs": 2,
    }  # fmt: skip


def test_a_folder_of_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = core_rows()
    for part in range(2):
        pq.write_table(pa.Table.from_pylist(rows[part * 3 : part * 3 + 3]), folder / f"{part}.parquet")
    (folder / "README.md").write_text("not read")
    assert run(monkeypatch, tmp_path, str(folder))["texts"] == 5


@pytest.mark.parametrize(
    ("name", "content", "more", "words"),
    [
        ("x.jsonl", "", [], "holds no record"),
        ("x.jsonl", '{"a": 1}\n', [], "fields a are neither CORE's"),
        ("x.jsonl", '{"a": 1}\n{"a"\n', [], "x.jsonl:2: no JSON"),
        ("x.jsonl", "[1]\n", [], "record 0 is a list"),
        ("x.json", '{"a": 1}', [], "neither a list of records"),
        ("x.json", "{", [], "no JSON"),
        ("x.txt", "text", [], "give a file that ends in"),
        ("x.parquet", "PAR1", [], "no Parquet"),
        ("x.csv", "core_id,processed_title\n1,t\n", [], "no field 'processed_abstract'"),
        ("x.csv", "core_id,processed_title,processed_abstract\n1,t,a\n", [], "'labelled_duplicates' or 'duplicates'"),
        ("x.csv", "id,cluster\n1,2\n", [], "no field 'article' or 'text'"),
        ("x.csv", "id,cluster,text\n1,2,a\n2,,b\n", [], "record 1 has no cluster"),
        ("x.jsonl", '{"cluster": 1, "text": 5}\n', [], "record 0: field 'text' is a int"),
        ("x.csv", "id,text\n1,a\n", ["--pairs", "p.csv", "id_a,id_b\n7,8\n"], "none of its ids"),
        ("x.csv", "id,text\n1,a\n1,b\n", ["--pairs", "p.csv", "id_a,id_b\n1,1\n"], "id '1' is there twice"),
        ("x.csv", "id,text\n1,a\n2,b\n", ["--pairs", "p.csv", "id_a,id_b,l\n1,2,maybe\n"], "neither 1 nor 0"),
        ("x.csv", "id,text\n1,a\n2,b\n", ["--pairs", "p.csv", "id_a\n1\n"], "a pair is id_a, id_b"),
        (
            "x.csv",
            "id,text\n1,a\n2,b\n",
            ["--pairs", "p.csv", "a,b,l\n1,2,1\n2,1,0\n"],
            "both as duplicates and as none",
        ),
        ("x.csv", "id,text\n1,a\n2,b\n", ["--pairs", "p.json", '[["1","2"],["1","2","1"]]'], "some have none"),
        ("x.csv", "nr,text\n1,a\n", ["--pairs", "p.csv", "id_a,id_b\n1,1\n"], "no field 'id'"),
    ],
)
def test_a_wrong_file_is_one_line(
    name: str, content: str, more: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / name).write_text(content)
    arguments = [str(tmp_path / name)]
    if more:
        (tmp_path / more[1]).write_text(more[2])
        arguments += [more[0], str(tmp_path / more[1])]
    monkeypatch.setattr(sys, "argv", ["labelled.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        labelled.main()
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("labelled.py: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_missing_file_and_a_wrong_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, words in (
        (["/no/such"], "no such file or folder"),
        ([str(empty)], "no file here ends in"),
        ([str(write_core(tmp_path, ".jsonl")), "--", "--threshold", "9"], "threshold 9 is outside"),
    ):
        monkeypatch.setattr(sys, "argv", ["labelled.py", *arguments])
        with pytest.raises(SystemExit) as stopped:
            labelled.main()
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err
