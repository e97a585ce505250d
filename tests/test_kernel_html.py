"""HTML to text: hand-written answers, html.unescape and a state machine as oracles, then numba = numpy."""

from __future__ import annotations

import html
import subprocess
import sys
import time
from html.entities import html5
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import html_cpu, html_ref
from gpu_dedup.kernels.html_tables import names

REPO = Path(__file__).resolve().parent.parent


def run(kernel, texts: list[str]) -> list[str]:
    tape = Tape.of(texts)
    blob, offsets = kernel.plain(tape.blob, tape.offsets)
    assert (blob.dtype, offsets.dtype) == (np.uint8, np.int64)
    return Tape(blob, offsets).to_list()


@pytest.fixture(params=[html_ref, html_cpu], ids=["numpy", "numba"])
def kernel(request: pytest.FixtureRequest):
    return request.param


GOLDEN = [
    ("", ""),
    ("no markup; none", "no markup; none"),
    ("<p>One</p><br/>two", " One  two"),
    ("a<b>c</b>d", "a c d"),
    ('<a href="x>y" title=\'"\'>z</a>', " z "),
    ("<a href = \n 'x>y'>z", " z"),
    ("<a b=c'd>e'>f", " e'>f"),  # a quote inside a value opens none
    ("<it's fine> really", "  really"),
    ("</>", " "),
    ("x<>y", "x<>y"),
    ("1 < 2 and 3<4, a <- b, <_x>, <é>", "1 < 2 and 3<4, a <- b, <_x>, <é>"),
    ("a <b without an end", "a <b without an end"),
    ('a <b c="> d <i>e', 'a <b c="> d  e'),  # its quote has no end, so it is no tag; the next one is
    ("<!DOCTYPE html><?xml a='>'?>x", "  x"),
    ("a<!-- it's > not -- here -->b", "a b"),
    ("a<!-->b<!--->c<!---->d", "a b c d"),
    ("a<!-- b<i>c", "a<!-- b c"),
    ("<!-x>y", " y"),
    ("a<script>if (a < b) '</p>'; </scripty></SCRIPT >b", "a b"),
    ("a<STYLE type='x>'>p{}</style\n>b", "a b"),
    ("a<script>b <i>c", "a b  c"),  # never closed: the tag alone
    ("a<script>b</script", "a b</script"),
    ("a<scripts>b</script>c", "a b c"),
    ("a<script/>b</script>c", "a c"),
    ("<style><script></style>x</script>y", " x y"),
    ("AT&amp;T &lt;b&gt; &#60;i&#x3E;", "AT&T <b> <i>"),
    ("&amp;lt; &amp;amp;", "&lt; &amp;"),  # once
    ("&notit; &notin; &copy2024 &ampamp;", "¬it; ∉ ©2024 &amp;"),
    ("&am<b>p;", "&am p;"),
    ("&amp<b>;", "& ;"),
    ("&nbsp;|&nGt;|&NotEqualTilde;|&zwj;", "\xa0|≫⃒|≂̸|\u200d"),
    ("&unknown; &; & &x &# &#; &#x; &#xg; &A; &l;", "&unknown; &; & &x &# &#; &#x; &#xg; &A; &l;"),
    ("&#0;&#x80;&#150&#129;", "\ufffd€–\x81"),
    ("&#xD800;&#1114112;&#99999999999999999999;", "\ufffd\ufffd\ufffd"),
    ("a&#1;b&#xFDD0;c&#x1FFFE;d&#11;e&#13;f", "abcde\rf"),
    ("&#0000000000000000000000000000065;", "A"),
    ("&#X1f600;é中<b>😀</b>", "😀é中 😀 "),
    ("\ud800<b>\udfff", "\ud800 \udfff"),
    ("<", "<"),
    ("&", "&"),
    ("<a", "<a"),
    ("<!--", "<!--"),
]


@pytest.mark.parametrize(("text", "answer"), GOLDEN)
def test_answers_by_hand(kernel, text: str, answer: str) -> None:
    assert run(kernel, [text]) == [answer]
    assert run(kernel, ["before", text, "x" * 200 + text + "y" * 100]) == [
        "before",
        answer,
        "x" * 200 + run(kernel, [text + "y" * 100])[0],
    ]


def test_the_table_is_that_of_python() -> None:
    assert names() == {name.encode(): value.encode() for name, value in html5.items()}
    script = [sys.executable, str(REPO / "kernels" / "html_build.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_reference(kernel) -> None:
    texts = [f"&{name}" for name in html5] + [f"&{name}x;" for name in html5] + [f"&{name[:-1]} " for name in html5]
    codes = [*range(0x300), *range(0xD7F0, 0xE010), *range(0xFDC0, 0xFE00), *range(0xFFF0, 0x10010), 0x1FFFE, 0x10FFFF]
    texts += [f"&#{code}{end}" for code in codes for end in (";", "", "z")] + [f"&#x{code:X};" for code in codes]
    for text, got in zip(texts, run(kernel, texts), strict=True):
        assert got == html.unescape(text), text


PIECES = [
    "<", ">", "&", ";", "<a", "</", "<!", "<?", "<!--", "-->", "-", "=", '"', "'", " ", "\n", "/", "a", "B", "é", "中",
    "<script>", "</script>", "<style ", "</STYLE", "<b>", "&amp", "&lt;", "&notin", "&#", "&#x", "65", "80;", "nGt;",
    "x" * 60, "\u2003",
]  # fmt: skip
SOUP = st.lists(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), max_size=4)


@given(SOUP)
@settings(max_examples=600)
def test_soup_against_the_oracle(texts: list[str]) -> None:
    want = [oracle.plain(text) for text in texts]
    for kernel in (html_ref, html_cpu):
        assert run(kernel, texts) == want


def test_much_soup(pyrng) -> None:
    texts = []
    for _ in range(1500):
        pick = pyrng.sample(PIECES, pyrng.choice([4, 8, len(PIECES)]))
        texts.append("".join(pyrng.choices(pick, k=pyrng.choice([3, 10, 40, 120]))))
    want = [oracle.plain(text) for text in texts]
    assert run(html_cpu, texts) == want
    assert run(html_ref, texts) == want


@given(SOUP, st.integers(0, 80), st.binary(max_size=9))
def test_a_result_depends_on_its_document_alone(texts: list[str], skip: int, after: bytes) -> None:
    tape = Tape.of(["<" * skip, *texts, after.decode("latin-1")])
    for kernel in (html_ref, html_cpu):
        blob, ends = kernel.plain(tape.blob, tape.offsets[1:-1])
        assert Tape(blob, ends).to_list() == [run(kernel, [text])[0] for text in texts]


def test_text_without_markup_is_not_copied(kernel) -> None:
    tape = Tape.of(["plain", "text > all; through " * 20, ""])
    blob, offsets = kernel.plain(tape.blob, tape.offsets)
    assert blob is tape.blob
    assert offsets is tape.offsets


@pytest.mark.parametrize(
    "piece", ["<a ", "<a b='", '<a b="x', "<!--", "<script>", "<style>x", "<a =", "&amp", "&#1", "<!-"]
)
def test_linear_in_the_size(piece: str) -> None:
    """A million openings that nothing closes; quadratic work would take hours."""
    text = piece * (2_000_000 // len(piece))
    run(html_cpu, [text[:1000]])
    begun = time.process_time()
    got = run(html_cpu, [text])[0]
    assert time.process_time() - begun < 2
    small = piece * 30
    assert run(html_cpu, [small]) == [oracle.plain(small)]
    assert got[:20] == run(html_cpu, [small])[0][:20]


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes(pieces: list[bytes]) -> None:
    tape = Tape.of(pieces)
    one, two = (Tape(*kernel.plain(tape.blob, tape.offsets)) for kernel in (html_ref, html_cpu))
    assert [one[i] for i in range(len(one))] == [two[i] for i in range(len(two))]


def test_the_largest_growth(kernel) -> None:
    texts = ["&nGt;" * 5000, "", "&nLt;" * 3]
    assert run(kernel, texts) == [html.unescape(text) for text in texts]


def test_one_type_for_every_array() -> None:
    data = b"a<b>&amp;" * 30
    offsets = np.array([0, len(data)], np.int64)
    for blob in (np.frombuffer(data, np.uint8), np.frombuffer(bytearray(data), np.uint8)):
        for give in (offsets, np.frombuffer(offsets.tobytes(), np.int64)):
            html_cpu.plain(blob, give)
    assert len(html_cpu._run.signatures) == 1
