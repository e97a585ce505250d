"""Whole runs from files to files: what happens to each awkward kind of input; and the answer equals brute force."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import harness
import numpy as np
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import FULL_RECALL, Ran

from gpu_dedup.errors import InputError, OutputError, RecipeError, RunError, UserError
from gpu_dedup.pipeline import dedup, settle
from gpu_dedup.recipe import Recipe, ppm
from gpu_dedup.run import Run

WORDS = corpora.made_up(random.Random("test_pipeline"), 4000)
Go = Callable[..., Ran]


def prose(start: int, words: int = 150) -> str:
    """A text of words that no other text has, if the starts lie far enough apart."""
    return " ".join(WORDS[start : start + words])


@pytest.fixture
def go(backend_name: str, tmp_path: Path) -> Go:
    """go(lines or rows or {rel: lines or rows}, **recipe) runs on one backend and reads back the result."""
    count = 0

    def call(data: Any, run: dict[str, Any] | None = None, **recipe: Any) -> Ran:
        nonlocal count
        count += 1
        folder = tmp_path / f"in{count}"
        files = data if isinstance(data, dict) else {"a.jsonl": data}
        paths = []
        for rel, rows in files.items():
            if isinstance(rows, bytes):
                (folder / rel).parent.mkdir(parents=True, exist_ok=True)
                (folder / rel).write_bytes(rows)
            elif rows and isinstance(rows[0], bytes):
                harness.write_lines(folder / rel, rows)
            else:
                harness.write_rows(folder / rel, rows)
            paths.append(folder / rel)
        return harness.run(paths, tmp_path / f"out{count}", Recipe(**recipe), backend=backend_name, **(run or {}))

    return call


def texts(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"id": name, "text": text} for name, text in pairs]


# ------------------------------------------------------------------------------------------- empty, short, no text


def empty_rows() -> list[dict[str, Any]]:
    return texts(
        ("e1", ""), ("d1", prose(0)), ("e2", ""), ("w1", " \n\t "), ("d2", prose(200)), ("e3", ""), ("p1", "..."),
        ("p2", "!!! ???"),
    )  # fmt: skip


def test_rows_without_text_never_meet(go: Go) -> None:
    ran = go(empty_rows())
    assert ran.ids == ["e1", "d1", "e2", "w1", "d2", "e3", "p1", "p2"]
    assert ran.removed == []


def test_rows_without_text_can_be_dropped(go: Go) -> None:
    ran = go(empty_rows(), on_no_text="drop")
    assert ran.ids == ["d1", "d2"]
    assert ran.reasons() == dict.fromkeys(["e1", "e2", "w1", "e3", "p1", "p2"], "no-text")
    assert {entry["guarantee"] for entry in ran.removed} == {None}
    assert {(entry["kept_file"], entry["kept_row"], entry["similarity"]) for entry in ran.removed} == {
        (None, None, None)
    }


def test_equal_texts_without_units_are_exact_copies(go: Go) -> None:
    ran = go(texts(("a", "-----"), ("b", "....."), ("c", "-----")))
    assert ran.groups == {"a": ["c"]}


def test_exact_groups_empty_texts(go: Go) -> None:
    ran = go(empty_rows(), method="exact")
    assert ran.ids == ["e1", "d1", "w1", "d2", "p1", "p2"]
    assert ran.groups == {"e1": ["e2", "e3"]}


def test_short_texts_are_one_shingle(go: Go) -> None:
    names = ["cat", "dog", "cat", "yes please", "no thanks", "a", "b", "月", "火"]
    rows = [{"id": f"s{i}", "text": text} for i, text in enumerate(names, 1)]
    ran = go(rows)
    assert ran.ids == ["s1", "s2", "s4", "s5", "s6", "s7", "s8", "s9"]
    assert ran.groups == {"s1": ["s3"]}
    # the same units in other clothes: a near copy with similarity 1, not an exact one
    ran = go([*rows, {"id": "near", "text": "Yes -- please!"}])
    assert ran.groups == {"s1": ["s3"], "s4": ["near"]}
    near = ran.removed[-1]
    assert (near["reason"], near["shared"], near["union"], near["similarity"]) == ("near", 1, 1, 1.0)


def test_min_shingles_leaves_short_texts_to_exact_copies(go: Go) -> None:
    rows = texts(
        ("a", "one two three"), ("b", "one, two, three"), ("c", "ONE two three"), ("d", prose(0)), ("e", prose(0) + "!")
    )
    assert go(rows).ids == ["a", "d"]
    assert go(rows, min_shingles=2).groups == {"a": ["c"], "d": ["e"]}


def test_min_shingles_counts_different_shingles(go: Go) -> None:
    """A text that says one thing a hundred times has one shingle, however long it is."""
    rows = texts(("a", "no " * 20), ("b", "no " * 30), ("c", prose(0)), ("d", prose(0) + " more"))
    assert go(rows).groups == {"a": ["b"], "c": ["d"]}
    assert go(rows, min_shingles=10).groups == {"c": ["d"]}


def test_stop_shingles_do_not_count(go: Go) -> None:
    boiler = "all rights are reserved here"
    rows = texts(
        ("a", boiler), ("b", boiler + "."), ("c", f"{boiler} {prose(0, 30)}"), ("d", f"{prose(0, 30)} {boiler}")
    )
    plain = go(rows, threshold_ppm=700_000)
    assert plain.groups == {"a": ["b"], "c": ["d"]}
    # without the stopped shingle a and b have no sketch; equal normalised text would still meet
    stopped = go(rows, threshold_ppm=700_000, stop_shingles=("All rights are  reserved HERE",))
    assert stopped.ids == ["a", "b", "c"]
    (entry,) = stopped.removed
    assert (entry["shared"], entry["union"]) == (26, 34)
    assert go(rows, stop_shingles=(boiler,), on_no_text="drop", threshold_ppm=700_000).reasons() == {
        "a": "no-text", "b": "no-text", "d": "near"
    }  # fmt: skip
    with pytest.raises(UserError, match="shingle"):
        go(rows, stop_shingles=("two words",))


# --------------------------------------------------------------------------------------------------------- bad rows

BAD_TYPES: list[dict[str, Any]] = [
    {"id": "g1", "text": prose(0)},
    {"id": "n1", "text": None},
    {"id": "n2"},
    {"id": "n3", "text": None},
    {"id": "t1", "text": 42},
    {"id": "t2", "text": 42.0},
    {"id": "t3", "text": True},
    {"id": "t4", "text": ["a", "b"]},
    {"id": "t5", "text": {"body": "x"}},
    {"id": "l1", "text": "None"},
    {"id": "l2", "text": "null"},
    {"id": "l3", "text": "nan"},
    {"id": "g2", "text": prose(0)},
]
BAD_IDS = ["n1", "n2", "n3", "t1", "t2", "t3", "t4", "t5"]


def all_ids(ran: Ran) -> list[Any]:
    return [harness.record(row)["id"] for rel in ran.inputs for row in ran.rows(rel)]


@pytest.mark.parametrize("method", ["exact", "minhash"])
def test_rows_of_the_wrong_type(go: Go, method: str) -> None:
    lines = [corpora.line(row) for row in BAD_TYPES]
    with pytest.raises(InputError, match=r"a\.jsonl:2: .*null"):
        go(lines, method=method)
    skipped = go(lines, method=method, on_bad_row="skip")
    assert all_ids(skipped) == ["g1", "l1", "l2", "l3"]
    assert {entry["id"] for entry in skipped.removed if entry["reason"] != "bad-row"} == {"g2"}
    assert [entry["row"] for entry in skipped.removed if entry["reason"] == "bad-row"] == [1, 2, 3, 4, 5, 6, 7, 8]
    kept = go(lines, method=method, on_bad_row="keep")
    assert all_ids(kept) == ["g1", *BAD_IDS, "l1", "l2", "l3"]
    assert kept.rows("a.jsonl") == lines[:-1]
    assert kept.groups == {"g1": ["g2"]}


def test_malformed_lines(go: Go) -> None:
    lines = [
        b'{"id": "a", "text": "first line after a BOM"}\r\n',
        b"\r\n",
        b'{"id": "b", "text": "second line with CRLF"}\r\n',
        b'{"id": "broken", "text": "cut he\n',
        b"   \n",
        b"[1, 2, 3]\n",
        b'"just a string"\n',
        b'{"id": "c", "text": "first line after a BOM"}\n',
        b'{"id": "d", "text": "last line without newline"}',
    ]
    data = b"\xef\xbb\xbf" + b"".join(lines)
    with pytest.raises(InputError, match=r"a\.jsonl:4: "):
        go(data, method="exact")
    ran = go(data, method="exact", on_bad_row="skip")
    assert ran.ids == ["a", "b", "d"]
    assert (ran.out / "a.jsonl").read_bytes() == b"\xef\xbb\xbf" + lines[0] + lines[2] + lines[8]
    assert [(entry["row"], entry["reason"]) for entry in ran.removed] == [
        (3, "bad-row"), (5, "bad-row"), (6, "bad-row"), (7, "exact")
    ]  # fmt: skip
    assert (ran.removed[-1]["kept_row"], ran.removed[-1]["kept_id"]) == (0, "a")
    kept = go(data, method="exact", on_bad_row="keep")
    assert (kept.out / "a.jsonl").read_bytes() == b"\xef\xbb\xbf" + b"".join(lines[i] for i in (0, 2, 3, 5, 6, 8))


def test_bad_rows_are_reported_with_their_place(go: Go) -> None:
    lines = [corpora.line({"id": "a", "text": "one"}), b"{]\n", b'{"text": 5}\n', b'{"text": "\xff"}\n']
    report = go(lines, on_bad_row="skip").report["result"]
    assert [(entry["file"], entry["line"]) for entry in report["bad_rows"]] == [
        ("a.jsonl", 2),
        ("a.jsonl", 3),
        ("a.jsonl", 4),
    ]
    assert all(entry["reason"] for entry in report["bad_rows"])
    assert (report["counts"]["read"], report["counts"]["bad"], report["counts"]["kept"]) == (4, 3, 1)


def test_lone_surrogates(go: Go) -> None:
    lines = [
        rb'{"id": "a", "text": "half pair \ud835 here"}' b"\n",
        rb'{"id": "b", "text": "half pair \ud835 here"}' b"\n",
        rb'{"id": "c", "text": "half pair \ud83d here"}' b"\n",
        rb'{"id": "d", "text": "half pair \ufffd here"}' b"\n",
        rb'{"id": "e", "text": "half pair ? here"}' b"\n",
        rb'{"id": "f", "text": "whole pair \ud83d\ude00 here"}' b"\n",
    ]
    ran = go(lines, method="exact")
    assert ran.ids == ["a", "c", "d", "e", "f"]
    assert ran.rows("a.jsonl") == [lines[0], *lines[2:]]
    # as near copies a half pair is a break like any other, so c and e have the units of a; U+FFFD is a unit (So)
    assert go(lines).groups == {"a": ["b", "c", "e"]}


# ------------------------------------------------------------------------------------------------------- normaliser


def forms() -> list[dict[str, Any]]:
    return texts(
        ("nfc", "Caf\u00e9 cr\u00e8me na\u00efve"), ("nfd", "Cafe\u0301 cre\u0300me nai\u0308ve"),
        ("wide", "\uff21\uff22\uff23 \uff11\uff12\uff13"),
        ("ascii", "ABC 123"), ("lig", "\ufb01nal o\ufb03ce"), ("nolig", "final office"),
        ("ss", "stra\u00dfe"), ("SS", "STRASSE"),
        ("noacc", "Cafe creme naive"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("normalize", "groups"),
    [
        ((), {}),
        (("nfc",), {"nfc": ["nfd"]}),
        (("nfkc",), {"nfc": ["nfd"], "wide": ["ascii"], "lig": ["nolig"]}),
        (("nfkc", "lower"), {"nfc": ["nfd"], "wide": ["ascii"], "lig": ["nolig"], "ss": ["SS"]}),
        (("lower",), {"ss": ["SS"], "lig": ["nolig"]}),
    ],
)
def test_normal_forms_decide_but_never_reach_the_output(
    go: Go, normalize: tuple[str, ...], groups: dict[str, list[str]]
) -> None:
    lines = [corpora.line(row) for row in forms()]
    ran = go(lines, method="exact", normalize=normalize)
    assert ran.groups == groups
    gone = {name for members in groups.values() for name in members}
    assert ran.rows("a.jsonl") == [line for line, row in zip(lines, forms(), strict=True) if row["id"] not in gone]


@pytest.mark.parametrize(
    ("normalize", "groups"),
    [
        ((), {}),
        (("whitespace",), {"a": ["b", "c", "d", "f"]}),
        (("lower", "whitespace"), {"a": ["b", "c", "d", "e", "f"]}),
        (("lower", "punctuation", "whitespace"), {"a": ["b", "c", "d", "e", "f", "g"]}),
        (("lower", "nospace"), {"a": ["b", "c", "d", "e", "f"]}),
    ],
)
def test_white_space_and_case(go: Go, normalize: tuple[str, ...], groups: dict[str, list[str]]) -> None:
    rows = texts(
        ("a", "The gate opens\nat noon."), ("b", "The gate opens\r\nat noon."), ("c", "The gate opens\nat noon.\n"),
        ("d", "The  gate opens at noon."), ("e", "THE GATE OPENS AT NOON."), ("f", "The gate opens\u00a0 at noon."),
        ("g", "The gate opens at noon"),
    )  # fmt: skip
    assert go(rows, method="exact", normalize=normalize).groups == groups


# ------------------------------------------------------------------------------------------------- scripts, clusters

CHINESE = (
    "清晨的港口还没有完全醒来，几只海鸥沿着防波堤慢慢走动。老渔夫把昨晚补好的网铺在木板上，一边检查绳结，一边哼着没有名字的曲子。"
    "远处的灯塔刚刚熄灭，雾气贴着水面向北移动，船身轻轻碰撞，发出空洞而安静的声音。市场里的摊位才陆续亮起灯来，新的一天就这样开始了。"
)


@pytest.mark.parametrize("shingle", ["token:5", "char:5", "code:5", "byte:15"])
def test_scripts_without_blanks(go: Go, shingle: str) -> None:
    rows = texts(
        ("zh1", CHINESE),
        ("zh2", CHINESE.replace("昨晚", "今晚")),
        ("zh3", "图书馆顶楼的阅览室在冬天重新开放。管理员把旧地图挂在窗边，让来访的学生用放大镜寻找早已改道的河流。"),
        ("ja1", "駅前の小さな喫茶店では、毎朝七時に同じ客が同じ席に座り、新聞を広げて長い時間をかけて読む。"),
        ("th1", "เช้าวันนี้ตลาดริมน้ำเปิดเร็วกว่าปกติเพราะเรือขนผักมาถึงก่อนฟ้าสาง"),
        ("ko1", "산골 마을의 작은 학교에는 교실이 하나뿐이지만 창밖으로 강이 보이고 아이들은 점심마다 종이배를 띄운다"),
    )
    ran = go(rows, shingle=shingle)
    assert ran.ids == ["zh1", "zh3", "ja1", "th1", "ko1"]
    assert ran.groups == {"zh1": ["zh2"]}


def test_scripts_beyond_latin_have_units(go: Go) -> None:
    rows = texts(
        ("ar1", "يفتح البائع متجره الصغير قبل شروق الشمس ويرتب الكتب القديمة على الرصيف في صفوف متوازية"),
        ("ar2", "في المساء تعود القوارب إلى الشاطئ محملة بالسمك ويجتمع الأطفال حول الصيادين ليسمعوا حكايات البحر"),
        ("hi1", "पहाड़ी गाँव की पाठशाला में केवल एक कमरा है और उसकी खिड़की से नदी दिखाई देती है"),
        ("hi2", "बूढ़ा दर्ज़ी सुबह से रात तक अपनी मशीन चलाता है और हर कपड़े की जेब में एक लाल धागा सिल देता है"),
        ("ru1", "Старый сторож каждое утро проверяет замки на складе и записывает в тетрадь погоду и время прихода"),
        ("he1", "הספרייה בקצה הרחוב נפתחת מוקדם בבוקר והילדים מחכים בשקט ליד הדלת עם ספרים ישנים"),
    )
    ran = go(rows)
    assert ran.ids == ["ar1", "ar2", "hi1", "hi2", "ru1", "he1"]
    assert go(rows, on_no_text="drop").removed == []  # none of them is without units


def survivors() -> list[dict[str, Any]]:
    rng = random.Random("survivors")
    words = WORDS[200:400]
    return texts(
        ("x1", prose(0, 200)), ("x2", " ".join(words)), ("x3", " ".join(words)),
        ("x4", prose(600, 200)), ("x5", " ".join(words)), ("x6", " ".join(corpora.exchange(rng, words, 1))),
    )  # fmt: skip


@pytest.mark.parametrize("verify", ["exact", "signature", "none", "edit"])
@pytest.mark.parametrize("cluster", ["representative", "connected"])
def test_every_group_has_one_survivor(go: Go, verify: str, cluster: str) -> None:
    ran = go(survivors(), verify=verify, cluster=cluster)
    assert ran.ids == ["x1", "x2", "x4"]
    assert ran.groups == {"x2": ["x3", "x5", "x6"]}
    assert ran.reasons() == {"x3": "exact", "x5": "exact", "x6": "near"}
    assert all(entry["witness_kept"] for entry in ran.removed)
    near = ran.removed[-1]
    weak = verify in ("signature", "none")
    assert near["guarantee"] == ("probabilistic" if weak else "chain" if cluster == "connected" else "kept-witness")
    if verify == "exact":
        assert (near["shared"], near["union"]) == corpora.known_jaccard(200, 1) == (191, 201)
    assert {entry["guarantee"] for entry in ran.removed[:2]} == {"kept-witness"}


def test_exact_method_leaves_near_copies(go: Go) -> None:
    assert go(survivors(), method="exact").ids == ["x1", "x2", "x4", "x6"]


def test_chain_under_representative_does_not_drift(go: Go) -> None:
    corpus = corpora.chain("drift")
    ran = go(corpus.rows, threshold_ppm=750_000)
    assert ran.ids == ["c00", "c02", "c04", "c06", "c08", "c10"]
    assert ran.groups == {f"c{i:02}": [f"c{i + 1:02}"] for i in range(0, 12, 2)}
    assert {(entry["shared"], entry["union"]) for entry in ran.removed} == {(95, 117)}  # 106 shingles, 11 words further


def test_chain_under_connected_says_how_weak_it_is(go: Go) -> None:
    corpus = corpora.chain("drift")
    ran = go(corpus.rows, threshold_ppm=750_000, cluster="connected")
    assert ran.ids == ["c00"]
    assert ran.groups == {"c00": [f"c{i:02}" for i in range(1, 12)]}
    assert {entry["guarantee"] for entry in ran.removed} == {"chain"}
    similarities = [entry["similarity"] for entry in ran.removed]
    assert similarities == sorted(similarities, reverse=True)
    assert (similarities[0], similarities[-1]) == (95 / 117, 0.0)
    assert [entry["linked_row"] for entry in ran.removed] == list(range(11))  # each hangs on its neighbour
    assert {entry["linked_similarity"] for entry in ran.removed} == {95 / 117}


def test_giant_bucket_costs_linear_work(go: Go) -> None:
    """5,000 copies of one licence are one document; 400 near copies of one text overflow the bucket cap."""
    rng = random.Random("giant")
    boiler = prose(0, 120)
    rows = []
    for i in range(5000):
        rows.append({"id": f"g{i}", "text": boiler})
        if i % 500 == 1:
            rows.append({"id": f"other{i}", "text": prose(200 + i // 500 * 300, 200)})
    ran = go(rows, run={"max_removed_ppm": 1_000_000})
    assert ran.ids == ["g0", *(f"other{i}" for i in range(1, 5000, 500))]
    assert {(entry["kept_id"], entry["reason"]) for entry in ran.removed} == {("g0", "exact")}

    words = WORDS[:150]
    rows = [{"id": str(i), "text": " ".join(corpora.exchange(rng, words, 1 if i else 0))} for i in range(400)]
    ran = go(rows)
    assert ran.check(harness.rules_of(Recipe())) == []
    assert ran.ids == ["0"]
    assert ran.report["result"]["collisions"]["capped"] > 0


# ---------------------------------------------------------------------------------------------------------- keepers


def which_kept() -> dict[str, list[dict[str, Any]]]:
    rng = random.Random("which")
    one, two = WORDS[:200], WORDS[300:500]
    longer = [*one, "six", "more", "words", "at", "the", "end"]
    other = corpora.exchange(rng, two, 1)
    return {
        "a.jsonl": [
            {"id": "a1", "text": " ".join(one), "score": 0.2, "date": "2021-01-01"},
            {"id": "a2", "text": " ".join(two) + "...", "score": 0.9, "date": "2020-01-01"},
        ],
        "b.jsonl": [
            {"id": "b1", "text": " ".join(longer), "score": 0.7, "date": "2023-05-05"},
            {"id": "b2", "text": " ".join(two[:-1]), "score": 0.9, "date": "2022-02-02"},
            {"id": "b3", "text": " ".join(one), "score": 0.7, "date": "2019-09-09"},
            {"id": "b4", "text": " ".join(other)[: len(" ".join(two))], "score": None, "date": "2024-01-01"},
        ],
    }


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("first", ["a1", "a2"]),
        ("longest", ["b1", "a2"]),
        ("shortest", ["a1", "b2"]),
        ("max:score", ["b1", "a2"]),
        ("min:score", ["a1", "a2"]),
        ("min:date", ["b3", "a2"]),
        ("max:date", ["b1", "b4"]),
    ],
)
def test_which_copy_stays(go: Go, keep: str, kept: list[str]) -> None:
    data = which_kept()
    ran = go(data, keep=keep)
    assert sorted(ran.ids) == sorted(kept)
    rules = harness.rules_of(Recipe(keep=keep))
    field = keep.partition(":")[2] or None
    assert ran.check(rules, field) == []


def test_order_of_files_is_the_order_given(go: Go) -> None:
    data = which_kept()
    ran = go({"b.jsonl": data["b.jsonl"], "a.jsonl": data["a.jsonl"]})
    assert ran.ids == ["b1", "b2"]


def test_mixed_kinds_of_keeper_values_are_refused(go: Go) -> None:
    rows = [{"id": 1, "text": prose(0), "score": 1}, {"id": 2, "text": prose(0), "score": "high"}]
    with pytest.raises(UserError, match="score") as caught:
        go(rows, keep="max:score")
    assert "\n" not in str(caught.value)


def test_a_keeper_field_that_no_row_has_is_refused(go: Go) -> None:
    rows = [{"text": prose(0), "score": 1}, {"text": prose(0), "score": 9}]
    with pytest.raises(RecipeError, match="keep max:scroe: no row has a value in the field 'scroe'"):
        go(rows, keep="max:scroe")


def test_names_that_are_no_utf8(backend_name: str, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xe9.jsonl")
    harness.write_rows(tmp_path / "in" / name, texts(("a", prose(0)), ("b", prose(0) + " more")))
    dedup([tmp_path / "in"], tmp_path / "out", run=Run(backend=backend_name))
    assert [row["file"] for row in harness.removed_rows(tmp_path / "out")] == ["\\udcff\\udce9.jsonl"]
    assert b'"a"' in (tmp_path / "out" / name).read_bytes()


def test_damage_outside_the_text_is_found_before_anything_leans_on_it(backend_name: str, tmp_path: Path) -> None:
    """A Parquet file whose other column is corrupt is left out as a whole, also from a dry run."""
    bad = tmp_path / "in" / "bad.parquet"
    bad.parent.mkdir()
    other = [" ".join(map(str, range(n, n + 2000))) for n in (0, 7)]
    table = pa.table({"id": ["x", "y"], "text": [prose(0), prose(400)], "other": other})
    pq.write_table(table, bad, use_dictionary=False, compression="zstd")
    content = bytearray(bad.read_bytes())
    at = pq.ParquetFile(bad).metadata.row_group(0).column(2).data_page_offset
    content[at : at + 60] = b"\xff" * 60
    bad.write_bytes(bytes(content))
    harness.write_rows(bad.parent / "good.jsonl", texts(("a", prose(0)), ("b", prose(0) + " more")))
    with pytest.raises(OSError, match=r"Couldn|corrupt|[Uu]nexpected|[Ii]nvalid"):
        pq.read_table(bad)
    for number, dry in enumerate((False, True)):
        run = Run(backend=backend_name, dry_run=dry)
        report = dedup(bad.parent, tmp_path / f"out{number}", Recipe(on_bad_file="skip"), run)
        assert report.inputs[0].rel == "bad.parquet"
        assert report.inputs[0].problem
        assert (report.counts.read, report.counts.kept) == (2, 1)


def test_a_small_file_of_many_rows_goes_on_with_numba(tmp_path: Path) -> None:
    rows = [{"text": f"{prose(0, 40)} {i}"} for i in range(900)]
    path = harness.write_rows(tmp_path / "many.jsonl.zst", rows)
    assert path.stat().st_size < 20_000
    report = dedup(path, tmp_path / "out")
    assert report.machine.backend == "numba"
    assert report.counts.kept == 1


def test_a_work_folder_that_cannot_be_used_is_refused_before_the_work(tmp_path: Path) -> None:
    path = harness.write_rows(tmp_path / "a.jsonl", texts(("a", prose(0))))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match="cannot be used as work folder"):
        dedup(path, tmp_path / "out", run=Run(work_dir=str(tmp_path / "file" / "below")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Recipe(text_field="body"), "text_field is 'body', a str"),  # type: ignore[arg-type]
        (lambda: Recipe(threshold_ppm=0.8), "threshold_ppm is 0.8, a float"),  # type: ignore[arg-type]
        (lambda: Recipe(limit=True), "limit is True, a bool"),
        (lambda: Recipe(bucket_cap=2**63), "bucket-cap 9223372036854775808 is outside 2 to"),
        (lambda: Recipe(sieve_cut=-4), "sieve-cut -4 is outside"),
        (lambda: Run(threads="2"), "threads is '2', a str"),  # type: ignore[arg-type]
        (lambda: Run(memory="8GB"), "memory is '8GB', a str"),  # type: ignore[arg-type]
        (lambda: ppm("threshold", "nan"), "threshold nan is outside 0 to 1"),
        (lambda: ppm("threshold", "1e999999999"), "is outside 0 to 1"),
        (lambda: ppm("threshold", "0.12345678"), "finer than a millionth"),
    ],
)
def test_values_of_the_wrong_kind_are_refused_with_their_name(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        make()


def test_keep_none_drops_every_row_with_a_partner(go: Go) -> None:
    rng = random.Random("none")
    words = WORDS[300:500]
    rows = texts(
        ("new1", prose(0)), ("new2", " ".join(words)), ("new3", " ".join(corpora.exchange(rng, words, 1))),
        ("new4", prose(600)), ("new5", prose(900)), ("new6", "twice"), ("new7", "TWICE"),
    )  # fmt: skip
    ran = go(rows, keep="none")
    assert ran.ids == ["new1", "new4", "new5"]
    assert not any(entry["witness_kept"] for entry in ran.removed)
    witnesses = {entry["id"]: (entry["kept_id"], entry["reason"]) for entry in ran.removed}
    assert witnesses == {
        "new2": ("new3", "near"), "new3": ("new2", "near"), "new6": ("new7", "exact"), "new7": ("new6", "exact")
    }  # fmt: skip


def test_copies_across_parts(go: Go) -> None:
    rng = random.Random("parts")
    texts_of = {
        name: WORDS[i * 250 : i * 250 + 200] for i, name in enumerate(["z00", "z01", "z02", "z11", "z12", "z21", "z22"])
    }
    copies = {"z10": "z02", "z20": "z12", "z30": "z22", "z31": "z01", "z32": "z00"}
    parts: dict[str, list[dict[str, Any]]] = {f"part{i}.jsonl": [] for i in range(4)}
    for name in sorted([*texts_of, *copies]):
        words = texts_of.get(name) or corpora.exchange(rng, texts_of[copies[name]], 1)
        parts[f"part{name[1]}.jsonl"].append({"id": name, "text": " ".join(words)})
    ran = go(parts)
    assert ran.ids == list(texts_of)
    assert {entry["id"]: entry["kept_id"] for entry in ran.removed} == copies
    assert {entry["file"] for entry in ran.removed} == {"part1.jsonl", "part2.jsonl", "part3.jsonl"}


# ------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("ending", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_truncated_files(go: Go, ending: str, tmp_path: Path) -> None:
    rng = random.Random("cut")
    rows = [{"id": str(i), "text": " ".join(corpora.english(rng, 200))} for i in range(300)]
    whole = harness.write_rows(tmp_path / f"whole.{ending}", rows).read_bytes()
    good = [{"id": "good1", "text": prose(0)}, {"id": "good2", "text": prose(0)}]
    for cut in (len(whole) // 3, len(whole) - 5):
        data = {f"cut.{ending}": whole[:cut], "good.jsonl": good}
        before = set(tmp_path.iterdir())
        with pytest.raises(InputError, match=rf"cut\.{ending}: .*(truncated|corrupt)") as caught:
            go(data, method="exact")
        assert "\n" not in str(caught.value)
        left = [
            path for made in set(tmp_path.iterdir()) - before if made.name.startswith("out") for path in made.rglob("*")
        ]
        assert [path for path in left if path.is_file()] == []
        ran = go(data, method="exact", on_bad_file="skip")
        assert ran.ids == ["good1"]
        assert not (ran.out / f"cut.{ending}").exists()
        problems = {entry["rel"]: entry["problem"] for entry in ran.report["result"]["inputs"]}
        assert problems["good.jsonl"] is None
        assert re.search("truncated.* corrupt", problems[f"cut.{ending}"])


def test_schema_drift_between_parquet_shards(go: Go, tmp_path: Path) -> None:
    a, b, c, d, e = (prose(i * 200) for i in range(5))
    shards = {
        "s0.parquet": pa.table({"id": ["p0", "p1"], "text": [a, b], "lang": pa.array([None, None], pa.null())}),
        "s1.parquet": pa.table({"id": ["p2", "p3"], "text": [c, a], "lang": ["en", None]}),
        "s2.parquet": pa.table(
            {"id": ["p4", "p5"], "text": pa.array([b, d], pa.large_string()), "more": [[1, 2], None]}
        ),
        "s3.parquet": pa.table({"text": pa.array([d, e]).dictionary_encode(), "id": ["p6", "p7"]}),
        "s4.parquet": pa.table({"id": ["p8", "p9"], "text": pa.array([None, None], pa.null())}),
        "s5.parquet": pa.table({"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}),
        "s6.parquet": pa.table({"id": ["pa"], "text": pa.array([e], pa.string_view())}),
        "s7.parquet": pa.table({"id": ["pb"], "text": pa.array([e.encode()], pa.binary())}),
    }
    data = {}
    for name, table in shards.items():
        pq.write_table(table.replace_schema_metadata({"made": "by hand"}), tmp_path / name)
        data[name] = (tmp_path / name).read_bytes()
    ran = go(data, method="exact", on_bad_row="keep")
    assert {entry["id"]: entry["kept_id"] for entry in ran.removed} == {
        "p3": "p0",
        "p4": "p1",
        "p6": "p5",
        "pa": "p7",
        "pb": "p7",
    }
    for name in shards:
        before, after = pq.read_schema(tmp_path / name), pq.read_schema(ran.out / name)
        assert after.equals(before, check_metadata=True), name
    assert pq.read_table(ran.out / "s2.parquet").to_pylist() == [{"id": "p5", "text": d, "more": None}]
    assert pq.read_table(ran.out / "s4.parquet").num_rows == 2
    assert pq.read_table(ran.out / "s6.parquet").num_rows == 0
    with pytest.raises(InputError, match=r"s4\.parquet"):
        go(data, method="exact")


def test_lines_of_megabytes(go: Go) -> None:
    rng = np.random.default_rng(5)
    big = [f"w{number}" for number in rng.integers(0, 50_000, 120_000)]
    near = list(big)
    near[1000] = "changed"
    rows = texts(
        ("s1", prose(0)), ("big1", " ".join(big)), ("s2", prose(300)), ("s3", prose(0)), ("big2", " ".join(near))
    )
    ran = go({"long.jsonl.zst": rows}, run={"batch_bytes": 1 << 16})
    assert ran.ids == ["s1", "big1", "s2"]
    assert ran.groups == {"s1": ["s3"], "big1": ["big2"]}
    near_entry = ran.removed[-1]
    assert near_entry["union"] - near_entry["shared"] == 10  # one word exchanged: five shingles out, five in


def test_odd_but_legal_files(go: Go) -> None:
    data = {
        "empty.jsonl": b"",
        "blank.jsonl": b"\n\n  \n",
        "one.jsonl": b'{"text": "the only line, no id, no line feed"}',
        "again.jsonl": b'\n{"text": "the only line, no id, no line feed"}\n',
        "separators.jsonl": '{"id": 1, "text": "raw \u2028 and \u2029 \x7f\u0085 are text"}\n'.encode(),
    }
    ran = go(data)
    assert (ran.out / "empty.jsonl").read_bytes() == b""
    assert (ran.out / "one.jsonl").read_bytes() == data["one.jsonl"]
    assert (ran.out / "again.jsonl").read_bytes() == b""
    assert (ran.out / "separators.jsonl").read_bytes() == data["separators.jsonl"]
    assert [(e["file"], e["row"], e["kept_file"], e["kept_row"], e["id"]) for e in ran.removed] == [
        ("again.jsonl", 1, "one.jsonl", 0, None)
    ]


def test_files_without_removals_are_copied_as_they_are(go: Go, tmp_path: Path) -> None:
    """A gzip file keeps its very bytes, odd members included, while nothing goes from it."""
    member = gzip.compress(corpora.line({"id": 1, "text": prose(0)}), 1, mtime=77)
    data = {
        "whole.jsonl.gz": member + gzip.compress(corpora.line({"id": 2, "text": prose(300)}), 9, mtime=5),
        "b.jsonl": [{"id": 3, "text": prose(0)}],
    }
    ran = go(data)
    assert (ran.out / "whole.jsonl.gz").read_bytes() == data["whole.jsonl.gz"]
    assert ran.rows("b.jsonl") == []


def test_several_text_fields(go: Go) -> None:
    rows = [
        {"id": "a", "title": "A title", "body": {"text": prose(0)}},
        {"id": "b", "title": "Another", "body": {"text": prose(0)}},
        {"id": "c", "title": "A", "body": {"text": "title\n" + prose(0)}},
        {"id": "d", "title": None, "body": {"text": prose(0)}},
    ]
    assert go(rows, method="exact", text_field=("body.text",)).groups == {"a": ["b", "d"]}
    assert go(rows, method="exact", text_field=("title", "body.text")).ids is not None
    ran = go(rows, method="exact", text_field=("title", "body.text"), normalize=("whitespace",))
    assert [harness.record(row)["id"] for row in ran.rows("a.jsonl")] == ["a", "b", "d"]


def test_ids_of_every_kind_come_back_as_they_were(go: Go) -> None:
    values: list[Any] = [10**30, 0.1, True, None, "text", [1, "a"], {"k": 1}, "10", 10]
    rows: list[dict[str, Any]] = [{"id": "first", "text": prose(0)}]
    rows += [{"id": value, "text": prose(0)} for value in values] + [{"text": prose(0)}]
    ran = go(rows)
    assert [(entry["id"], entry["id_type"]) for entry in ran.removed] == [
        (str(10**30), "int"), ("0.1", "float"), ("true", "bool"), (None, "null"), ("text", "string"),
        ('[1,"a"]', "list"), ('{"k":1}', "object"), ("10", "string"), ("10", "int"), (None, "missing"),
    ]  # fmt: skip
    assert {entry["kept_id"] for entry in ran.removed} == {"first"}


# ----------------------------------------------------------------------------------------------- guards and switches


def test_flag_keeps_the_rows_and_logs_them(go: Go) -> None:
    ran = go(survivors(), action="flag")
    assert ran.ids == ["x1", "x2", "x3", "x4", "x5", "x6"]
    assert {entry["id"]: (entry["kept_id"], entry["action"]) for entry in ran.removed} == {
        "x3": ("x2", "flag"), "x5": ("x2", "flag"), "x6": ("x2", "flag")
    }  # fmt: skip


def near_heavy() -> list[dict[str, Any]]:
    rng = random.Random("guard")
    return [{"id": i, "text": " ".join(corpora.exchange(rng, WORDS[:60], 1))} for i in range(1000)]


@pytest.mark.parametrize("backend_name", ["numba"], indirect=True)  # a thousand texts that all meet are slow in NumPy
def test_max_removed_stops_before_writing(go: Go, tmp_path: Path) -> None:
    rows = near_heavy()
    with pytest.raises(RunError, match="max-removed"):
        go(rows, shingle="token:2")
    assert [path for path in tmp_path.glob("out*/**/*") if path.is_file()] == []
    assert len(go(rows, shingle="token:2", run={"max_removed_ppm": 1_000_000}).ids) < 100
    assert len(go(rows[:999], shingle="token:2").ids) < 100  # too few rows to judge


def test_dry_run_writes_nothing_and_reports_the_same(tmp_path: Path) -> None:
    source = harness.write_rows(tmp_path / "in" / "a.jsonl", survivors())
    ran = harness.run(source, tmp_path / "out")
    report = dedup([str(source)], str(tmp_path / "dry"), Recipe(), Run(dry_run=True, progress=False))
    assert not (tmp_path / "dry").exists()
    said = json.loads(report.to_json())
    for group in ran.report["result"]["largest_groups"]:
        group["id"] = group["text"] = None  # looked up in the pass that writes
        for member in group["members"]:
            member["text"] = None
    assert said["result"] == ran.report["result"]
    assert said["result"]["counts"]["kept"] == 3


def test_limit_makes_later_rows_not_exist(go: Go) -> None:
    ran = go({"a.jsonl": survivors(), "b.jsonl": survivors()}, limit=4)
    assert ran.ids == ["x1", "x2", "x4"]
    assert ran.groups == {"x2": ["x3"]}


def test_outputs_of_others_are_not_touched(tmp_path: Path) -> None:
    source = harness.write_rows(tmp_path / "in" / "a.jsonl", survivors())
    harness.run(source, tmp_path / "out")
    before = (tmp_path / "out" / "a.jsonl").read_bytes()
    with pytest.raises(OutputError, match="overwrite"):
        harness.run(source, tmp_path / "out", Recipe(seed=1))
    assert (tmp_path / "out" / "a.jsonl").read_bytes() == before
    assert harness.run(source, tmp_path / "out", overwrite=True).ids == ["x1", "x2", "x4"]
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "precious").write_text("keep me")
    for overwrite in (False, True):
        with pytest.raises(OutputError):
            harness.run(source, tmp_path / "foreign", overwrite=overwrite)
    assert (tmp_path / "foreign" / "precious").read_text() == "keep me"
    with pytest.raises(UserError):
        harness.run(tmp_path / "in", tmp_path / "in" / "below")
    with pytest.raises(UserError):
        harness.run([source, source], tmp_path / "twice")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "in", "out"]


# ------------------------------------------------------------------------------------------------ against brute force

RECIPES: list[dict[str, Any]] = [
    {},
    {"threshold_ppm": 700_000, "witness": "best"},
    {"cluster": "connected", "threshold_ppm": 600_000},
    {"keep": "longest"},
    {"keep": "shortest", "shingle": "char:7"},
    {"keep": "max:score", "shingle": "word:3"},
    {"keep": "min:score", "shingle": "code:4", "normalize": ("nfc", "whitespace")},
    {"keep": "none", "shingle": "byte:9"},
    {"shingle": "token:1", "threshold_ppm": 900_000},
    {"shingle": "char:12", "normalize": ("nfkc", "lower", "digits", "punctuation", "nospace")},
    {"method": "exact"},
    {"method": "exact", "normalize": ("nfkc", "lower", "punctuation", "whitespace"), "keep": "max:score"},
    {"on_no_text": "drop", "min_shingles": 20},
    {"verify": "edit", "threshold_ppm": 900_000},
]


def expected(rows: list[dict[str, Any]], recipe: Recipe) -> dict[int, oracle.Removal]:
    docs = [oracle.Doc("a.jsonl", i, row["text"], row["id"], row["score"]) for i, row in enumerate(rows)]
    return {place[1]: removal for place, removal in oracle.decide(docs, harness.rules_of(recipe)).removed.items()}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "options", RECIPES, ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()) or "default"
)
def test_equals_brute_force_over_all_pairs(go: Go, options: dict[str, Any], seed: int) -> None:
    """With bands that miss nothing, a run must remove exactly the rows, name the witnesses and count the shingles that
    plain Python finds by comparing everything with everything."""
    rows = corpora.planted(seed, huge=30_000).rows
    if options.get("verify") == "edit":  # the oracle's distance takes the product of both lengths
        rows = [{**row, "text": row["text"][:200]} for row in rows]
    extra = {} if options.get("method") == "exact" else FULL_RECALL
    recipe = Recipe(**options, **extra)
    ran = go(rows, **options, **extra)
    want = expected(rows, recipe)
    assert {entry["row"]: (entry["kept_row"], entry["reason"]) for entry in ran.removed} == {
        row: (removal.witness[1] if removal.witness else None, removal.reason) for row, removal in want.items()
    }
    for entry in ran.removed:
        removal = want[entry["row"]]
        assert entry["witness_kept"] == removal.witness_kept, entry
        if removal.shared is not None and removal.union is not None:
            assert entry["similarity"] == removal.shared / removal.union, entry
            assert (entry["shared"], entry["union"]) == (removal.shared, removal.union), entry
    missed = ran.check(harness.rules_of(recipe), "score")
    if recipe.verify == "exact" and recipe.min_shingles == 0 and recipe.keep != "none":
        assert missed == []


LSH_RECIPES: list[dict[str, Any]] = [
    {},
    {"bands": 5, "rows": 9},
    {"sketch": "fast"},
    {"sketch": "fast", "bands": 20, "rows": 5, "verify": "signature", "seed": 9, "shingle": "char:4"},
    {"bands": 30, "rows": 4, "seed": 2**64 - 1, "threshold_ppm": 600_000, "cluster": "connected"},
    {"verify": "signature"},
    {"verify": "signature", "threshold_ppm": 500_000, "num_perm": 64, "witness": "best", "keep": "longest"},
    {"verify": "none", "bands": 20, "rows": 5},
    {"verify": "none", "bands": 20, "rows": 5, "cluster": "connected"},
    {"bucket_cap": 3, "cap_lowest": 1, "cap_splits": 3, "cap_slots": 2, "shingle": "char:5", "keep": "max:score"},
    {"bucket_cap": 2, "cap_lowest": 1, "cap_splits": 0, "verify": "none", "bands": 4, "rows": 4},
    {"keep": "none", "threshold_ppm": 500_000, "recall_ppm": 900_000},
]


@pytest.mark.parametrize("options", LSH_RECIPES, ids=str)
def test_equals_the_definition_bands_and_all(go: Go, options: dict[str, Any]) -> None:
    """The same where bands, sieve and cap rule do miss pairs: plain Python with the published hashes knows which."""
    rng = random.Random("bands and all")
    rows = corpora.planted(3, clusters=8, loners=4, huge=3_000).rows
    base = corpora.made_up(rng, 90)
    rows += [
        {"id": f"e{i}", "text": " ".join(corpora.exchange(rng, base, i % 9)), "score": (i * 37) % 41} for i in range(24)
    ]
    recipe = settle(Recipe(**options))
    assert recipe.bands is not None
    assert recipe.rows is not None
    lsh = oracle.Lsh(
        recipe.bands, recipe.rows, recipe.seed, 0 if recipe.verify == "none" else recipe.sieve_cut or 0,
        recipe.bucket_cap, recipe.cap_lowest, recipe.cap_splits, recipe.cap_slots, recipe.sketch == "fast",
    )  # fmt: skip
    docs = [oracle.Doc("a.jsonl", i, row["text"], row["id"], row["score"]) for i, row in enumerate(rows)]
    want = {place[1]: removal for place, removal in oracle.decide(docs, harness.rules_of(recipe), lsh).removed.items()}
    ran = go(rows, **options)
    assert {entry["row"]: (entry["kept_row"], entry["reason"]) for entry in ran.removed} == {
        row: (removal.witness[1] if removal.witness else None, removal.reason) for row, removal in want.items()
    }
    for entry in ran.removed:
        removal = want[entry["row"]]
        if entry["reason"] != "exact" and not (recipe.verify == "signature" and recipe.cluster == "connected"):
            assert (entry["shared"], entry["union"]) == (removal.shared, removal.union), entry
            assert entry["similarity"] == (removal.shared / removal.union if removal.union else None), entry
    ran.check(harness.rules_of(recipe), "score")


def test_kept_fast_sketches_serve_the_same_slots_alone(tmp_path: Path) -> None:
    """Fewer slots of a fast sketch are another sketch, where those of MinHash are its first ones."""
    rows = corpora.planted(5, clusters=6, loners=3, huge=2_000).rows
    source = harness.write_rows(tmp_path / "in" / "a.jsonl", rows)
    work = tmp_path / "work"

    def go_on(**options: Any) -> list[str]:
        """The notes of a run that leaves its work, which must decide as one without any does."""
        recipe = Recipe(**options)
        settings: dict[str, Any] = {"backend": "numpy", "threads": 1}
        fresh = harness.run(source, tmp_path / "fresh", recipe, overwrite=True, **settings)
        ran = harness.run(
            source,
            tmp_path / "out",
            recipe,
            overwrite=True,
            work_dir=str(work),
            keep_work=True,
            checkpoint=1,
            **settings,
        )
        assert ran.removed == fresh.removed
        assert len(ran.removed) > 5
        return [note for note in ran.report["machine"]["notes"] if "earlier start" in note]

    fast = {"sketch": "fast", "bands": 16, "rows": 4}
    assert go_on(**fast) == []
    assert len(go_on(**fast, threshold_ppm=600_000)) == 1
    assert go_on(**{**fast, "bands": 12}) == []
    assert len(go_on(**{**fast, "bands": 12, "rows": 4, "verify": "signature"})) == 1
    assert go_on(bands=12, rows=4) == []
    assert len(go_on(bands=10, rows=4)) == 1
