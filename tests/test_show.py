"""Side by side: the spans are right, wide characters count twice, nothing in a text steers the terminal."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup import Recipe, Run, cli, dedup
from gpu_dedup.errors import InputError
from gpu_dedup.report import Report
from gpu_dedup.show import (
    COLORS,
    DIFFERENT,
    MARKS,
    SHARED,
    MissingInputError,
    Span,
    char_width,
    find,
    reflow,
    safe,
    show,
    side_by_side,
    spans,
    text_width,
    tidy,
    tokens,
)


def marked(left: str, right: str) -> str:
    """The diff as one line: [-left-]{+right+} around what differs."""
    out = ""
    for part in spans(left, right):
        if part.kind == SHARED:
            out += part.left
        else:
            out += (f"[-{part.left}-]" if part.left else "") + (f"{{+{part.right}+}}" if part.right else "")
    return out


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("a b c", "a b c", "a b c"),
        ("a b c", "a x c", "a [-b-]{+x+} c"),
        ("a b c", "a b", "a b[- c-]"),
        ("", "new", "{+new+}"),
        ("", "", ""),
        ("one two", "three", "[-one two-]{+three+}"),
        ("我喜欢猫", "我喜欢狗", "我喜欢[-猫-]{+狗+}"),
        ("x=1;", "x=2;", "x=[-1-]{+2+};"),
        ("line one\nline two", "line one\nline 2", "line one\nline [-two-]{+2+}"),
    ],
)
def test_spans(left: str, right: str, expected: str) -> None:
    assert marked(left, right) == expected


WORDS = st.lists(st.sampled_from(["a", "b", " ", "\n", "漢", "!", "long", "é", "\t", "\ud800"]), max_size=60).map(
    "".join
)


@given(WORDS, WORDS)
def test_spans_put_together_are_the_texts(left: str, right: str) -> None:
    parts = spans(left, right)
    assert "".join(part.left for part in parts) == left
    assert "".join(part.right for part in parts) == right
    for part in parts:
        assert part.kind in (SHARED, DIFFERENT)
        assert (part.left == part.right) == (part.kind == SHARED)
    assert all(one.kind != other.kind for one, other in itertools.pairwise(parts) if one.kind == SHARED)


@given(WORDS)
def test_tokens_put_together_are_the_text(text: str) -> None:
    assert "".join(tokens(text)) == text


def test_long_texts_are_compared_between_anchors() -> None:
    words = [f"w{i % 977}x{i}" for i in range(60_000)]
    other = list(words)
    other[30_000] = "changed"
    del other[45_000:45_003]
    other[10:10] = ["put", "in"]
    started = time.process_time()
    parts = spans(" ".join(words), " ".join(other))
    assert time.process_time() - started < 10
    different = [(part.left.split(), part.right.split()) for part in parts if part.kind == DIFFERENT]
    assert different == [([], ["put", "in"]), ([words[30_000]], ["changed"]), (words[45_000:45_003], [])]


def test_long_texts_with_nothing_in_common_end_soon() -> None:
    started = time.process_time()
    parts = spans("a b " * 40_000, "c d " * 40_000)
    assert time.process_time() - started < 10
    assert "".join(part.left for part in parts) == "a b " * 40_000
    assert not any(word in part.left for part in parts if part.kind == SHARED for word in "abcd")


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (
            "All of it was said before",
            "Everything they wrote was new then",
            "[-All of it was said before-]{+Everything they wrote was new then+}",
        ),
        ("a red fox", "a blue fox", "a [-red-]{+blue+} fox"),
        ("one two three", "four five six", "[-one two three-]{+four five six+}"),
        ("keep this long sentence x", "keep this long sentence y", "keep this long sentence [-x-]{+y+}"),
        ("same", "same", "same"),
    ],
)
def test_tidy_joins_what_is_shared_by_chance(left: str, right: str, expected: str) -> None:
    out = ""
    for part in tidy(spans(left, right)):
        out += part.left if part.kind == SHARED else f"[-{part.left}-]{{+{part.right}+}}"
    assert out == expected


@given(WORDS, WORDS)
def test_tidy_loses_nothing(left: str, right: str) -> None:
    parts = tidy(spans(left, right))
    assert "".join(part.left for part in parts) == left
    assert "".join(part.right for part in parts) == right
    assert all((part.left == part.right) == (part.kind == SHARED) for part in parts)


def test_lines_break_at_blanks_and_do_not_begin_with_one() -> None:
    parts = spans("aaaa bbbb cccc dddd eeee ffff", "aaaa bbbb cccc dddd eeee ffff")
    assert [line.partition(" | ")[2] for line in side_by_side(parts, 41, MARKS)] == ["aaaa bbbb cccc dddd", "eeee ffff"]


def test_a_line_end_that_one_side_has_is_visible() -> None:
    assert side_by_side(spans("a\nb", "a b"), 43, MARKS) == [
        "a[-\u21b5-]               | a{+ +}b",
        "b                    |",
    ]


def test_white_space_is_folded_but_paragraphs_stay() -> None:
    assert reflow("  a\t b\nc \u00a0 d\n \n\n e\n") == "a b c d\ne"


def test_keys_decide_what_is_the_same() -> None:
    left, right = "The CAT", "the cat"
    keys = ([t.lower() for t in tokens(left)], [t.lower() for t in tokens(right)])
    assert spans(left, right, keys) == [Span(SHARED, "The CAT", "the cat")]
    assert [part.kind for part in spans(left, right)] == [DIFFERENT, SHARED, DIFFERENT]


@pytest.mark.parametrize(
    ("char", "width"), [("a", 1), ("é", 1), ("\u0301", 0), ("漢", 2), ("ｱ", 1), ("ア", 2), ("😀", 2), ("\u200b", 0)]
)
def test_char_width(char: str, width: int) -> None:
    assert char_width(char) == width


def test_control_characters_are_shown_not_sent() -> None:
    text = safe("a\x1b[31mb\x07\tc\x00\x9b\u202ed\r\ne\ud800f")
    assert text == "a␛[31mb␇    c␀<9B><202E>d\ne\ufffdf"


def columns(lines: list[str]) -> list[tuple[str, str]]:
    """Left and right part of each line, by columns of the terminal."""
    out = []
    for line in lines:
        left, bar, right = line.partition(" |")
        assert bar
        out.append((left, right))
    return out


def test_lines_are_never_wider_than_asked_for() -> None:
    text = "我喜欢吃苹果和香蕉，" * 20 + "and English words between " * 5 + "x" * 300
    other = text.replace("香蕉", "梨").replace("words", "other things")
    for width in (41, 60, 99):
        half = (width - 3) // 2
        for style in (MARKS, COLORS):
            lines = side_by_side(spans(text, other), width, style, full=True)
            for line in lines:
                plain = re.sub("\x1b\\[[0-9;]*m", "", line)
                assert text_width(plain) <= width
                left, _ = columns([plain])[0]
                assert text_width(left) == half


def test_both_sides_are_there_in_full() -> None:
    text = "我喜欢吃苹果。 " * 30 + "tail end"
    other = text.replace("苹果", "梨子", 7)
    lines = side_by_side(spans(text, other), 60, COLORS, full=True)
    plain = columns([re.sub("\x1b\\[[0-9;]*m", "", line) for line in lines])
    for index, whole in ((0, text), (1, other)):
        shown = "".join(line[index] for line in plain)
        assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", whole)


def test_marks_and_colours() -> None:
    parts = spans("a red fox", "a blue fox")
    assert side_by_side(parts, 43, MARKS) == ["a [-red-] fox        | a {+blue+} fox"]
    (line,) = side_by_side(parts, 43, COLORS)
    assert "\x1b[1;31mred\x1b[0m" in line
    assert "\x1b[1;32mblue\x1b[0m" in line


def test_long_shared_stretches_are_cut_unless_full() -> None:
    same = "word " * 2000
    parts = spans(same + "one" + same, same + "two" + same)
    short = "\n".join(side_by_side(parts, 80, MARKS))
    assert len(short.splitlines()) < 20
    assert short.count("shared characters") == 2
    assert "[-one" in short
    assert "{+two" in short
    assert len(side_by_side(parts, 80, MARKS, full=True)) > 400
    assert len(side_by_side(parts, 80, MARKS, full=True, most=5)) == 6


# ---------------------------------------------------------------------------------------------------------------------
# Rows of a run.

SENTENCE = (
    "the quick brown fox jumps over the lazy dog by the river bank and then runs far away into the deep dark woods"
)
ROWS_A = [
    {"id": "a0", "text": SENTENCE + " at noon on monday while everybody else is asleep in the warm afternoon sun"},
    {"id": 7, "text": "Quite another text about bread, its price, and the people who bake it by night."},
    {"id": "id:odd", "text": "QUITE another  text about bread, its price, and the people who bake it by night."},
    {"text": "第一个例子说明文本去重的方法很有用，而且它可以在任何计算机上运行得很快，所以大家都喜欢它。"},
]
ROWS_B = [
    {"id": 12, "text": SENTENCE + " at noon on monday while everybody else is asleep in the warm afternoon rain"},
    {"id": "7", "text": "第一个例子说明文本去重的方法很有用，而且它可以在任何计算机上运行得很快，所以大家都爱它。"},
    {"id": "kept", "text": "Nothing like the others is said here; it has words of its own and stays where it is."},
    {"id": "a0", "text": "quite another text about bread, its price, and the people who bake it by night."},
]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show")
    for name, rows in (("a.jsonl", ROWS_A), ("b.jsonl", ROWS_B)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    dedup([str(folder / "a.jsonl"), str(folder / "b.jsonl")], str(folder / "out"), Recipe(), Run(progress=False))
    return folder


def test_a_near_copy_is_shown_with_its_numbers(result: Path) -> None:
    text = show(str(result / "out"), "b.jsonl:0", width=100)
    assert text.startswith("removed  b.jsonl row 0  id 12\nkept     a.jsonl row 0  id a0\n")
    # 36 words: 32 windows of five on either side, 31 of them shared.
    words = len(ROWS_A[0]["text"].split())
    shared, union = words - 4 - 1, words - 4 + 1
    assert f"why      near, similarity {shared / union:.4f} = {shared} of {union} token:5 shingles" in text
    assert "guarantee kept-witness" in text
    assert "[-rain-]" in text
    assert "{+sun+}" in text
    assert "changed" not in text


def test_an_exact_copy_has_nothing_marked(result: Path) -> None:
    text = show(str(result / "out"), "a.jsonl:2", width=100)
    assert "kept     a.jsonl row 1  id 7\n" in text
    assert "why      exact, similarity 1.0000, guarantee kept-witness" in text
    assert "[-" not in text
    assert "QUITE another" in text


def test_chinese_is_marked_by_character(result: Path) -> None:
    text = show(str(result / "out"), "b.jsonl:1", width=100)
    assert "[-爱-]" in text
    assert "{+喜欢+}" in text


def test_rows_are_named_by_number_place_or_id(result: Path) -> None:
    report = Report.load(str(result / "out"))
    folder = str(result / "out")

    def place(row: str) -> tuple[str, int, int, int]:
        removal, more = find(folder, row, report)
        return removal["file"], removal["row"], removal.number, more

    assert place("0") == ("a.jsonl", 2, 0, 0)
    assert place("3") == ("b.jsonl", 3, 3, 0)
    assert place("b.jsonl:1") == ("b.jsonl", 1, 2, 0)
    assert place(f"{result}/b.jsonl:1") == ("b.jsonl", 1, 2, 0)
    assert place("12") == ("b.jsonl", 0, 1, 0)  # the log has four lines, so this can only be an id
    assert place("id:7") == ("b.jsonl", 1, 2, 0)
    assert place("a0") == ("b.jsonl", 3, 3, 0)
    assert place("id:id:odd") == ("a.jsonl", 2, 0, 0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("b.jsonl:2", r"b\.jsonl row 2: not in the log, so this row stayed"),
        ("99", "neither a line of the log"),
        ("kept", "neither"),
        ("c.jsonl:1", "neither"),
    ],
)
def test_a_row_that_is_not_in_the_log(result: Path, row: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        show(str(result / "out"), row)
    assert "\n" not in str(caught.value)


def test_a_changed_or_moved_file_is_said(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(result / "out")
    path = result / "b.jsonl"
    before = path.read_bytes()
    info = path.stat()
    try:
        path.write_bytes(before.replace(b"river bank", b"ocean side"))  # same size
        assert "an input was changed since the run" in show(out, "b.jsonl:0")
        path.write_bytes(before.replace(b"bread", b"bread!"))
        assert "changed since the run" in show(out, "b.jsonl:3")
        path.write_bytes(before.replace(b"quite", b"QUIET"))
        assert "not equal any more" in show(out, "b.jsonl:3")
        path.write_bytes(b"{" * len(before))
        assert "no usable text" in show(out, "b.jsonl:0")
        os.rename(path, result / "moved")
        with pytest.raises(MissingInputError) as error:
            show(out, "b.jsonl:0")
        gone = f"{path}: No such file or directory, and the texts are read from the input of the run"
        assert str(error.value) == f"{gone}; put the file back where it was"
        assert error.value.exit_code == 2
        known = error.value.text.splitlines()  # what the log knows is still told
        assert known[:2] == ["removed  b.jsonl row 0  id 12", "kept     a.jsonl row 0  id a0"]
        assert known[2].startswith("why      near, similarity ")
        assert len(known) == 3
        assert cli.main(["show", out, "b.jsonl:0"]) == 2
        printed = capsys.readouterr()
        assert printed.out == error.value.text
        assert printed.err == f"gpu-dedup: {error.value}\n"
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        (result / "moved").unlink(missing_ok=True)
    assert "changed" not in show(out, "b.jsonl:0")


def test_a_row_without_a_witness_is_shown_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "- - -"}\n{"text": "a b c"}\n')
    recipe = Recipe(on_no_text="drop")
    dedup([str(tmp_path / "a.jsonl")], str(tmp_path / "out"), recipe, Run(progress=False))
    text = show(str(tmp_path / "out"), "0", width=60)
    assert text == f"removed  a.jsonl row 0\nwhy      no-text\n{'-' * 60}\n- - -\n"


def test_a_bad_row_says_that_it_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": 3}\n{"text": "a b c"}\n')
    dedup([str(tmp_path / "a.jsonl")], str(tmp_path / "out"), Recipe(on_bad_row="skip"), Run(progress=False))
    assert "no usable text" in show(str(tmp_path / "out"), "0", width=60)


def test_ids_that_come_twice(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "x", "text": "one and the same"}\n' * 3)
    dedup([str(tmp_path / "a.jsonl")], str(tmp_path / "out"), Recipe(), Run(progress=False))
    assert show(str(tmp_path / "out"), "x").endswith("1 more removed row has this id; name one by FILE:ROW\n")


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.jsonl")
    with open(tmp_path / name, "w") as file:
        file.write('{"text": "one and the same"}\n' * 2)
    out = os.fsdecode(os.fsencode(tmp_path) + b"/o\xff")
    dedup([str(tmp_path / name)], out, Recipe(), Run(progress=False))
    wanted = "removed  \\udcff.jsonl row 1\nkept     \\udcff.jsonl row 0\nwhy      exact"
    for row in ("0", f"{name}:1", r"\udcff.jsonl:1", f"{tmp_path}/{name}:1"):
        text = show(out, row)
        assert text.startswith(wanted)
        assert "one and the same" in text
        text.encode()
    os.remove(tmp_path / name)
    with pytest.raises(MissingInputError, match=r"^'/.*\\udcff\.jsonl': No such file") as error:
        show(out, "0")
    str(error.value).encode()


def test_a_linked_row_is_named_with_its_row(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(60)]
    chain = [" ".join(words[:50]), " ".join(words[3:53]), " ".join(words[6:56])]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in chain))
    recipe = Recipe(cluster="connected", threshold_ppm=850_000, bands=64, rows=2)
    dedup([str(tmp_path / "a.jsonl")], str(tmp_path / "out"), recipe, Run(progress=False))
    assert "linked   by a.jsonl row 1, similarity" in show(str(tmp_path / "out"), "a.jsonl:2")


def test_parquet_rows_are_read_again(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [row["text"] for row in (ROWS_A[0], ROWS_B[2], ROWS_B[0])]
    pq.write_table(pa.table({"n": [1, 2, 3], "text": texts}), tmp_path / "a.parquet", row_group_size=2)
    dedup([str(tmp_path / "a.parquet")], str(tmp_path / "out"), Recipe(id_field="n"), Run(progress=False))
    text = show(str(tmp_path / "out"), "0", width=100)
    assert text.startswith("removed  a.parquet row 2  id 3\nkept     a.parquet row 0  id 1\n")
    assert "[-rain-]" in text
