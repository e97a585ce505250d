"""JSON lines taken apart: hand-written answers, then `json.loads` as the judge of whatever a machine can think of."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup import backend as seam
from gpu_dedup import batch
from gpu_dedup.kernels import jsonl_cpu, jsonl_ref

LINE_SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"
KERNELS = pytest.mark.parametrize("kernel", [jsonl_ref, jsonl_cpu], ids=["numpy", "numba"])


def padded(data: bytes, fill: int = 0) -> np.ndarray:
    out = np.full(len(data) + 64, fill, np.uint8)
    out[: len(data)] = np.frombuffer(data, np.uint8)
    return out


def extract(
    kernel: Any,
    data: bytes,
    fields: tuple[str, ...] = ("text",),
    extra: tuple[str, ...] = (),
    want: Any = None,
    fill: int = 0,
) -> tuple[list[int], list[int], list[bytes], list[list[bytes | None]]]:
    starts, status, blob, offsets, spans = kernel.extract(padded(data, fill), len(data), fields, extra, want)
    assert (starts.dtype, status.dtype, blob.dtype, offsets.dtype, spans.dtype) == (
        np.int64, np.uint8, np.uint8, np.int64, np.int64,
    )  # fmt: skip
    n = len(status)
    assert len(starts) == len(offsets) == n + 1
    assert spans.shape == (n, len(extra), 2)
    assert offsets[0] == 0
    assert np.all(np.diff(offsets) >= 0)
    assert offsets[-1] <= len(blob) <= len(data) + 64
    texts = [blob[a:b].tobytes() for a, b in pairwise(offsets)]
    raws = [[None if a < 0 else data[a:b] for a, b in row] for row in spans.tolist()]
    return starts.tolist(), status.tolist(), texts, raws


def text_of(line: bytes, **options: Any) -> bytes | None:
    """What the compiled road gives for one line: its text, or None where it leaves the line to json.loads."""
    _, status, texts, _ = extract(jsonl_cpu, line, **options)
    assert len(status) == 1
    assert status[0] in (jsonl_ref.TEXT, jsonl_ref.ODD)
    assert status[0] == jsonl_ref.TEXT or texts[0] == b""
    return texts[0] if status[0] == jsonl_ref.TEXT else None


def path_value(record: dict[str, Any], name: str) -> tuple[bool, Any]:
    if name in record:
        return True, record[name]
    value: Any = record
    if "." not in name:
        return False, None
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


def judged(line: bytes, fields: tuple[str, ...]) -> tuple[dict[str, Any] | None, bytes | None]:
    """(record, text) by json.loads; (None, None) where the line is no record with such a text."""
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(record, dict):
        return None, None
    values = [path_value(record, name)[1] for name in fields]
    if any(not isinstance(value, str | None) for value in values) or all(value is None for value in values):
        return None, None
    return record, "\n".join(v for v in values if v is not None).encode("utf-8", "surrogatepass")


def check(line: bytes, fields: tuple[str, ...] = ("text",), extra: tuple[str, ...] = ("id",), fill: int = 0) -> bool:
    """The compiled road may leave a line alone; where it does not, json.loads must say the same. True if it judged."""
    assert b"\n" not in line
    _, status, texts, raws = extract(jsonl_cpu, line, fields, extra, None, fill)
    assert len(status) == (1 if line else 0)
    if not line or status[0] != jsonl_ref.TEXT:
        assert not line or status[0] == (jsonl_ref.BLANK if not line.strip(b" \t\r") else jsonl_ref.ODD)
        return False
    record, text = judged(line, fields)
    assert record is not None, f"accepted {line!r}, which json.loads refuses"
    assert texts[0] == text, line
    for name, raw in zip(extra, raws[0], strict=True):
        there, value = path_value(record, name)
        assert (raw is not None) == there, (name, line)
        if raw is not None:
            assert repr(json.loads(raw.decode("utf-8"))) == repr(value), (name, line)
    return True


def test_codes_are_those_of_the_package() -> None:
    assert (jsonl_ref.TEXT, jsonl_ref.BLANK, jsonl_ref.SKIPPED, jsonl_ref.ODD) == (
        batch.ROW_TEXT, batch.ROW_BLANK, batch.ROW_SKIPPED, seam.LINE_ODD,
    )  # fmt: skip


# Lines


@KERNELS
@pytest.mark.parametrize(
    ("data", "starts"),
    [
        (b"", [0]),
        (b"\n", [0, 1]),
        (b"\n\n", [0, 1, 2]),
        (b"a", [0, 1]),
        (b"a\n", [0, 2]),
        (b"a\nb", [0, 2, 3]),
        (b"a\r\n\rb\n", [0, 3, 6]),
        (b"x" * 63 + b"\n" + b"y" * 64 + b"\n", [0, 64, 129]),
        (b"x" * 64 + b"\n", [0, 65]),
        ("a\u2028b\u2029c\x85d\n".encode(), [0, 13]),
    ],
)
def test_lines_end_at_lf_only(kernel: Any, data: bytes, starts: list[int]) -> None:
    for fill in (0, 10):  # what stands behind the lines is nobody's line
        assert kernel.scan_lines(padded(data, fill), len(data)).tolist() == starts
        assert extract(kernel, data, fill=fill)[0] == starts


def test_line_starts_agree_at_every_length() -> None:
    rng = np.random.default_rng(5)
    for size in range(200):
        data = rng.choice(np.frombuffer(b"\n\nab", np.uint8), size).tobytes()
        assert np.array_equal(jsonl_ref.scan_lines(padded(data), size), jsonl_cpu.scan_lines(padded(data, 10), size))


@KERNELS
def test_blank_lines_and_want(kernel: Any) -> None:
    data = b' \t\r\n\n{"text": "a"}\r\n\x0b\n\xc2\xa0\n \r'
    _, status, _, _ = extract(kernel, data)
    first = jsonl_ref.TEXT if kernel is jsonl_cpu else jsonl_ref.ODD
    # A vertical tab or a no-break space is no JSON white space: such a line is malformed, not blank.
    assert status == [jsonl_ref.BLANK, jsonl_ref.BLANK, first, jsonl_ref.ODD, jsonl_ref.ODD, jsonl_ref.BLANK]
    want = np.array([0, 1, 1, 0, 0, 0], bool)
    _, status, texts, _ = extract(kernel, data, want=want)
    skip = jsonl_ref.SKIPPED
    assert status == [skip, jsonl_ref.BLANK, first, skip, skip, skip]
    assert texts == [b"", b"", b"a" if kernel is jsonl_cpu else b"", b"", b"", b""]


@KERNELS
def test_arguments_that_would_leave_the_arrays_are_refused(kernel: Any) -> None:
    with pytest.raises(ValueError, match="spare"):
        kernel.extract(np.zeros(70, np.uint8), 7, ("text",), (), None)
    with pytest.raises(ValueError, match="spare"):
        kernel.scan_lines(np.zeros(10, np.uint8), 10)
    with pytest.raises(ValueError, match="none twice"):
        kernel.extract(np.zeros(64, np.uint8), 0, ("text", "text"), (), None)
    with pytest.raises(ValueError, match="at least one"):
        kernel.extract(np.zeros(64, np.uint8), 0, (), (), None)


def test_flags_for_another_number_of_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="3 flags for 1 lines"):
        jsonl_cpu.extract(padded(b"{}\n"), 3, ("text",), (), np.ones(3, bool))


def test_read_only_data_is_taken() -> None:
    data = np.frombuffer(b'{"text": "abc"}\n' + bytes(64), np.uint8)
    _, status, blob, offsets, _ = jsonl_cpu.extract(data, 16, ("text",), (), None)
    assert status.tolist() == [0]
    assert blob[: offsets[1]].tobytes() == b"abc"


# Texts, by hand


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text":""}', b""),
        (b'{"text":"a"}', b"a"),
        (b' \t\r{ "text" \t:\r "a" } \r', b"a"),
        (b'{"id":1,"text":"a","z":[]}', b"a"),
        (b'{"text":"first","text":"last"}', b"last"),
        (b'{"text":5,"text":"last"}', b"last"),
        (b'{"text":["x"],"text":"last","n":"behind"}', b"last"),
        (b'{"n":{"text":"inner"},"text":"outer"}', b"outer"),
        (b'{"text":"outer","n":{"text":"inner"}}', b"outer"),
        (b'{"text2":"no","tex":"no","text":"yes","ext":"no"}', b"yes"),
        (rb'{"text":"\"\\\/\b\f\n\r\t"}', b'"\\/\b\f\n\r\t'),
        (rb'{"text":"\u0041\u00e9\u20AC\ud83d\ude00"}', "Aé€😀".encode()),
        (rb'{"text":"\ud83d\uDE00"}', "😀".encode()),
        (rb'{"text":"\ud800\udc00\udbff\udfff"}', "\U00010000\U0010ffff".encode()),
        (rb'{"text":"\udbff\ue000\ud7ff\udc00"}', b"\xed\xaf\xbf\xee\x80\x80\xed\x9f\xbf\xed\xb0\x80"),
        (rb'{"text":"\u0000"}', b"\0"),
        (rb'{"text":"\ud83d"}', b"\xed\xa0\xbd"),
        (rb'{"text":"\ude00\ud83d"}', b"\xed\xb8\x80\xed\xa0\xbd"),
        (rb'{"text":"\ud83d\ud83d\ude00"}', b"\xed\xa0\xbd\xf0\x9f\x98\x80"),
        (rb'{"text":"\ud83dx\ude00"}', b"\xed\xa0\xbdx\xed\xb8\x80"),
        (rb'{"text":"\ud83d\\ude00"}', b"\xed\xa0\xbd\\ude00"),
        (rb'{"text":"\ud83d\u0041"}', b"\xed\xa0\xbdA"),
        (b'{"text":"\x7f"}', b"\x7f"),
        ('{"text":"ä中😀\ufffd\uffff"}'.encode(), "ä中😀\ufffd\uffff".encode()),
        (('{"text":"' + LINE_SEPARATORS[:3] + '"}').encode(), LINE_SEPARATORS[:3].encode()),
        (b'{"text":"a","x":[1,-1,0,-0,1.5,1e9,1E+9,1e-9,0.0e0,true,false,null,NaN,Infinity,-Infinity]}', b"a"),
        (rb'{"text":"a","x":{"k\u0041\n":{"k":[{},[],[[]],{"a":[]}]}}}', b"a"),
    ],
)  # fmt: skip
def test_texts(line: bytes, text: bytes) -> None:
    assert judged(line, ("text",))[1] == text
    assert text_of(line) == text
    assert text_of(line + b"\n") == text


@pytest.mark.parametrize(
    "line",
    [
        b"{}", b"[]", b'"text"', b"null", b"1", b"{", b"}", b'{"text"', b'{"text":', b'{"text":"', b'{"text":"a',
        b'{"text":"a"',
        b'{"text":"a",}', b'{,"text":"a"}', b'{"text":"a"}}', b'{"text":"a"}x', b'{"text":"a"} {', b'{"text" "a"}',
        b'{"text":"a" "b":1}', b"{'text':'a'}", b'{text:"a"}', b'{"text":"a",1:2}', b'\xef\xbb\xbf{"text":"a"}',
        b'{"text":null}', b'{"text":1}', b'{"text":true}', b'{"text":["a"]}', b'{"text":{"a":"b"}}', b'{"txt":"a"}',
        b'{"text":"a","text":null}', b'{"text":"a","text":7}', b'{"Text":"a"}', b'{"text ":"a"}',
        rb'{"text":"\x"}', rb'{"text":"\u12"}', rb'{"text":"\u12g4"}', rb'{"text":"\u+123"}', rb'{"text":"\U0041"}',
        rb'{"text":"\ud83d\u12"}', rb'{"text":"\ud83d\uZZZZ"}', rb'{"text":"\"}', b'{"text":"\\', b'{"text":"\\u',
        b'{"text":"\\"', b'{"text":"a\tb"}', b'{"text":"a\0b"}', b'{"text":"a\rb"}', b'{"text":"a","x":"\x1f"}',
        b'{"text":"a","x\x01":1}', b'{"text":"a"}\0', b'{"text":"a"}\x0c', '{"text":"a"}\u00a0'.encode(),
        *(b'{"text":"a","x":' + bad + b"}" for bad in (
            b"", b"01", b"-", b"+1", b".5", b"1.", b"1.e5", b"1e", b"1e+", b"1E-", b"--1", b"0x10", b"1_0", b"00",
            b"-01",
            b"tru", b"truee", b"True", b"nul", b"nulll", b"falsy", b"nan", b"NaNs", b"inf", b"Infinit", b"-Inf",
            b"-NaN",
            b"+Infinity", b"[1,]", b"[,1]", b"[1 2]", b"[1", b"1]", b"[1}", b'{"a"}', b'{"a":}', b'{"a":1,}',
            b'{"a":1]',
            b"{1:2}", b'{"a":1 "b":2}', b'["a" "b"]', b"[[]", b"'a'", b"\xff", "１".encode(), b"[1;2]", b'{"a";1}',
        )),
    ],
)  # fmt: skip
def test_what_is_no_text_is_left_to_json_loads(line: bytes) -> None:
    assert judged(line, ("text",))[1] is None
    for fill in b'\0\n"}]1e.\\':  # nothing behind the line may make it whole
        assert text_of(line, fill=fill) is None


@pytest.mark.parametrize(
    "bad",
    [
        b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2\x41", b"\xc2\xc2\x80", b"\xe0\x80\x80",
        b"\xe0\x9f\xbf",
        b"\xe4\xb8", b"\xe4\x41\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf",
        b"\xf0\x9f\x98",
        b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff", b"\xc3\xa4\x80",
        b"\xe4\xb8\xad\xad",
    ],
)  # fmt: skip
def test_invalid_utf8_anywhere_at_any_place(bad: bytes) -> None:
    for before in (*range(0, 9), *range(52, 72), 120, 126, 127, 128):
        for whole in (b"a", "中".encode()):
            filler = (whole * before)[:before] if len(whole) == 1 else whole * (before // 3) + b"b" * (before % 3)
            assert text_of(b'{"text":"' + filler + bad + b'"}') is None
            assert text_of(b'{"text":"a","x":"' + filler + bad + b'"}') is None
            assert text_of(b'{"text":"a","' + filler + bad + b'":1}') is None


def test_valid_utf8_at_every_place() -> None:
    edges = "\u0080\u07ff\u0800\u0fff\u1000\ucfff\ud7ff\ue000\uffff\U00010000\U0003ffff\U00040000\U0010ffff"
    for before in (*range(0, 9), *range(50, 70), 120, 127):
        for character in edges:
            line = ('{"text":"' + "a" * before + character * 3 + '"}').encode()
            assert text_of(line) == ("a" * before + character * 3).encode()


def test_every_length_around_the_blocks() -> None:
    for length in range(0, 200):
        for unit in ("x", "中", "\\n", "\\u4e2d", "😀"):
            for lead in (0, 1, 7):
                line = (" " * lead + '{"id":[' + str(length) + '],"text":"' + unit * length + '"}').encode()
                assert check(line, fill=34)


def test_every_escaped_code_point_of_the_first_plane() -> None:
    for start in range(0, 0x10000, 0x800):
        # A full stop keeps surrogates from meeting.
        line = ('{"text":"' + "".join(f"\\u{c:04{'xX'[c & 1]}}." for c in range(start, start + 0x800)) + '"}').encode()
        assert check(line)


def test_nesting_to_the_limit_and_beyond() -> None:
    most = jsonl_ref.MAX_DEPTH
    for opening, closing in ((b"[", b"]"), (b'{"k":', b"}")):
        inner = b"1" if opening != b"[" else b""
        for depth, accepted in ((most - 1, True), (most, False), (most * 100, False)):
            line = b'{"text":"a","x":' + opening * depth + inner + closing * depth + b"}"
            assert (text_of(line) == b"a") is accepted
            assert text_of(line[:-1]) is None
    flat = b'{"text":"a","x":[' + b"[],{}," * 5000 + b"0]}"
    assert text_of(flat) == b"a"


# Names


def test_several_fields_join_in_the_order_asked() -> None:
    line = b'{"b":"two\\n","x":1,"a":"one","c":null,"e":""}'
    for fields, text in (
        (("a", "b"), b"one\ntwo\n"),
        (("b", "a"), b"two\n\none"),
        (("c", "a"), b"one"),
        (("a", "c", "b"), b"one\ntwo\n"),
        (("a", "nowhere"), b"one"),
        (("a", "e"), b"one\n"),
        (("e", "a"), b"\none"),
        (("e", "c"), b""),
        (("a", "x"), None),
        (("c", "nowhere"), None),
    ):
        assert judged(line, fields)[1] == text
        assert text_of(line, fields=fields) == text


def test_long_fields_in_the_other_order_do_not_overwrite_each_other() -> None:
    for a in (0, 1, 63, 64, 65, 200):
        for b in (0, 1, 63, 64, 65, 200):
            line = ('{"a":"' + "a" * a + '\\n","b":"' + "b" * b + '"}').encode()
            assert text_of(line * 1, fields=("b", "a")) == b"b" * b + b"\n" + b"a" * a + b"\n"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"m.t":"top","m":{"t":"path"}}', b"top"),
        (b'{"m":{"t":"path"},"m.t":"top"}', b"top"),
        (b'{"m":{"t":"path"}}', b"path"),
        (b'{"m":{"t":"path","t":"last"}}', b"last"),
        (b'{"m":{"t":"old"},"m":{"t":"new"}}', b"new"),
        (b'{"m":{"t":"old"},"m":{"s":"new"}}', None),
        (b'{"m":{"t":"old"},"m":1}', None),
        (b'{"m":{"t":{"t":"deeper"}}}', None),
        (b'{"m":[{"t":"in a list"}]}', None),
        (b'{"m":[0,{"t":"no"}],"t":"no","n":{"t":"no"}}', None),
        (b'{"x":{"m":{"t":"elsewhere"}}}', None),
        (b'{"m":{"m":{"t":"no"},"t":"yes","x":{"t":"no"}}}', b"yes"),
        (b'{"m":{"x":[[{"t":1}]],"t":"yes"},"t":3}', b"yes"),
        (b'{"m.t":null,"m":{"t":"path"}}', None),
    ],
)  # fmt: skip
def test_dotted_names(line: bytes, text: bytes | None) -> None:
    assert judged(line, ("m.t",))[1] == text
    assert text_of(line, fields=("m.t",)) == text
    assert check(line, ("m.t",), ("m.t", "m", "t", "m.x", "x.m.t")) is (text is not None)


@pytest.mark.parametrize(
    "name",
    ["a", "12345678", "123456789", "1234567890123456", "x" * 63, "x" * 64, "x" * 200, "é", "中文字段", "a b", ""],
)
def test_names_of_any_length(name: str) -> None:
    others = {name[:-1] + "_", name + "x", name[:-1], "x" + name[1:]} - {name}
    record: dict[str, Any] = dict.fromkeys(sorted(others), "no")
    record[name] = "yes"
    for ascii_only in (False, True):
        line = json.dumps(record, ensure_ascii=ascii_only).encode()
        got = text_of(line, fields=(name,))
        assert got == b"yes" or (ascii_only and not name.isascii() and got is None)
        got = text_of(json.dumps(dict.fromkeys(sorted(others), "no")).encode(), fields=(name,))
        assert got is None


def test_a_key_written_with_an_escape_is_never_overlooked() -> None:
    assert text_of(rb'{"text":"a","t\u0065xt":"b"}') is None
    assert text_of(rb'{"text":"a","\u0074ext":null}') is None
    assert text_of(rb'{"m":{"t":"a","\u0074":"b"}}', fields=("m.t",)) is None


def test_spans_hold_raw_values() -> None:
    data = (
        b'{"id": "a\\u0041" ,"text":"x","n":-1.50e3}\n{"text":"y"}\n\n{"id":1,"text":5}\n'
        b'{"id":[1, {"id":2}],"text":"z","id":{"id":3}}\n'
    )
    _, status, texts, raws = extract(jsonl_cpu, data, extra=("id", "n", "text"))
    assert status == [0, 0, 1, 4, 0]
    assert texts == [b"x", b"y", b"", b"", b"z"]
    assert raws == [
        [b'"a\\u0041"', b"-1.50e3", b'"x"'], [None, None, b'"y"'], [None] * 3, [None] * 3, [b'{"id":3}', None, b'"z"'],
    ]  # fmt: skip


# json.loads as the judge

KEYS = st.sampled_from(["id", "text", "m", "t", "x"]) | st.text(max_size=9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(st.characters(), max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
TOP_KEYS = st.sampled_from(["text", "id", "title", "m", "m.t", "x" * 9]) | st.text(max_size=4)
RECORDS = st.lists(st.tuples(TOP_KEYS, JSON | st.text(max_size=90)), max_size=6)
NAMES = st.sampled_from([("text",), ("title", "text"), ("m.t",), ("text", "m.t", "id"), ("x" * 9,)])


def written(pairs: list[tuple[str, Any]], ascii_only: bool, blank: str) -> bytes:
    """A JSON object with repeated keys, surrogates and odd spacing where asked for."""
    parts = [
        json.dumps(key, ensure_ascii=ascii_only) + blank + ":" + blank + json.dumps(value, ensure_ascii=ascii_only)
        for key, value in pairs
    ]
    return ("{" + blank + ("," + blank).join(parts) + "}" + blank).encode("utf-8", "surrogatepass")


@settings(max_examples=600, deadline=None, derandomize=True)
@given(RECORDS, st.booleans(), st.sampled_from(["", " ", "\t\r "]), NAMES, st.sampled_from([0, 34, 125]))
def test_any_record(
    pairs: list[tuple[str, Any]], ascii_only: bool, blank: str, fields: tuple[str, ...], fill: int
) -> None:
    check(written(pairs, ascii_only, blank), fields, ("id", "m.t", "m"), fill)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(st.characters(), max_size=200), st.integers(0, 9), st.booleans(), st.floats(), st.booleans())
def test_ordinary_records_take_the_fast_road(text: str, number: int, flag: bool, real: float, ascii_only: bool) -> None:
    text = text.encode("utf-8", "replace").decode()  # raw surrogates are no UTF-8
    record = {"id": number, "meta": {"f": flag, "r": [real, None]}, "text": text, "url": "http://x/" + text}
    assert check(json.dumps(record, ensure_ascii=ascii_only).encode())


def mutations(line: bytes, rng: np.random.Generator, count: int) -> list[bytes]:
    alphabet = b'{}[]:,"\\ \t\r0123456789.eE+-truefalsnNIfity/bu\x00\x1f\x7f\x80\xbf\xc2\xe0\xed\xf0\xf4\xff'
    out = []
    for _ in range(count):
        at = int(rng.integers(len(line)))
        other = bytes([alphabet[int(rng.integers(len(alphabet)))]])
        kind = int(rng.integers(6))
        if kind == 0:
            changed = line[:at] + bytes([line[at] ^ (1 << int(rng.integers(8)))]) + line[at + 1 :]
        elif kind == 1:
            changed = line[:at] + other + line[at:]
        elif kind == 2:
            changed = line[:at] + line[at + 1 :]
        elif kind == 3:
            changed = line[:at]
        elif kind == 4:
            changed = line[:at] + other + line[at + 1 :]
        else:
            end = at + int(rng.integers(1, 12))
            to = int(rng.integers(len(line)))
            changed = line[:to] + line[at:end] + line[to:]
        out.append(changed.replace(b"\n", b" "))
    return out


def test_no_damaged_line_is_taken_for_another() -> None:
    rng = np.random.default_rng(20_240_607)
    seeds = [
        b'{"id":12,"text":"plain words, and more of them so that the text goes on past a block of sixty-four bytes"}',
        rb'{"text":"esc \"\\\/\b\f\n\r\t \u0041\ud83d\ude00 \ud800","id":"x","n":[1,-2.5e+10,true,null,{"a":{}}]}',
        '{"id":null,"m":{"t":"中文字符，标点。","x":[[],{"é":"ü"}]},"text":"中文与 English 混排 😀","z":-0}'.encode(),
        b'{"a":{"b":{"c":[{"d":"e"},{"f":[false,Infinity,-Infinity,NaN]}]}},"text":"t","text":"u","id":{"id":1}}',
        b'{ "id" : 1e5 , "text" : "" , "m.t" : "dotted" , "m" : { "t" : "path" } }\r',
    ]
    judged_lines = 0
    for seed in seeds:
        assert check(seed)
        lines = mutations(seed, rng, 4000)
        lines += mutations(lines[0], rng, 200) if lines[0] else []
        for line in lines:
            judged_lines += check(line, ("text",), ("id",), 34)
            if len(line) % 7 == 0:
                check(line, ("m.t", "text"), ("m", "m.t"))
    assert judged_lines > 1000  # or this test would look at nothing


def test_lines_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(8)
    pool = [
        b'{"text":"' + b"a" * 70 + b'","id":1}', b'{"text":"\xff"}', b"", b"  ", b'{"text":"\xe4\xb8', b"\xad\"}",
        b'{"text":"b"}\r',
        b'{"text":"' + "中".encode() * 30 + b'"}', b'{"text":5}', b"[", rb'{"text":"\ud83d', rb'\ude00"}',
        b'{"text":"x","id":"y"}',
        rb'{"id":"\n","text":"\n\n"}', b'{"text":"c","text":7}',
    ]  # fmt: skip
    alone = {line: extract(jsonl_cpu, line + b"\n", extra=("id",)) for line in pool}
    for _ in range(60):
        lines = [pool[i] for i in rng.integers(0, len(pool), int(rng.integers(1, 30)))]
        data = b"\n".join(lines) + (b"\n" if rng.integers(2) or not lines[-1] else b"")
        want = rng.integers(0, 4, len(lines)) > 0
        for mask in (None, want):
            starts, status, texts, raws = extract(jsonl_cpu, data, extra=("id",), want=mask)
            assert starts[-1] == len(data)
            for i, line in enumerate(lines):
                if mask is not None and not mask[i]:
                    assert (status[i], texts[i], raws[i]) == (jsonl_ref.SKIPPED, b"", [None])
                else:
                    one = alone[line]
                    assert (status[i], texts[i], raws[i]) == (one[1][0], one[2][0], one[3][0])
