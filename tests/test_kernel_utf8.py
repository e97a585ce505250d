"""UTF-8 kernels: hand-written answers, Python's own codec as the oracle, then numba against numpy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup.batch import Tape
from gpu_dedup.kernels import utf8_cpu, utf8_ref


@pytest.fixture(params=[utf8_ref, utf8_cpu], ids=["numpy", "numba"])
def kernel(request: pytest.FixtureRequest):
    return request.param


VALID = [
    b"", b"a", b"\x00", b"\x7f", "é".encode(), "中".encode(), "😀".encode(), b"\xc2\x80", b"\xdf\xbf", b"\xe0\xa0\x80",
    b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf",
]  # fmt: skip
INVALID = [
    b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2a", b"\xe0\x9f\xbf", b"\xe0\xa0", b"\xe4\xb8",
    b"\xe4\xb8a", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80", b"\xff", b"\xfe", b"\xf8\x88\x80\x80\x80", b"\xe4\xb8\xad\xad",
]  # fmt: skip


def test_validity_by_hand(kernel) -> None:
    tape = Tape.of(VALID + INVALID)
    got = kernel.valid(tape.blob, tape.offsets)
    assert got.dtype == np.bool_
    assert got.tolist() == [True] * len(VALID) + [False] * len(INVALID)


@pytest.mark.parametrize("filler", [b"a", "é".encode(), "中".encode(), "😀".encode()], ids=["1", "2", "3", "4"])
def test_validity_at_every_place(kernel, filler: bytes) -> None:
    """An odd piece behind and before runs of each length, so that every road and block edge meets it."""
    texts = [filler * k + piece + filler * 30 for piece in VALID + INVALID for k in range(0, 70)]
    tape = Tape.of(texts)
    want = [piece in VALID for piece in VALID + INVALID for _ in range(0, 70)]
    assert kernel.valid(tape.blob, tape.offsets).tolist() == want


def test_a_cut_character_is_not_mended_by_the_next_document(kernel) -> None:
    data = "中".encode()
    blob = np.frombuffer(data * 40, np.uint8)
    offsets = np.array([0, 2, 3, 60, 118, 120], np.int64)
    assert kernel.valid(blob, offsets).tolist() == [False, False, True, False, False]


def test_counts_and_values_by_hand(kernel) -> None:
    tape = Tape.of(["", "a", "é中😀", "\ud800x\udfff", "\U0010ffff", "a" * 64 + "中"])
    assert kernel.code_points(tape.blob, tape.offsets).tolist() == [0, 1, 3, 3, 1, 65]
    values, ends = kernel.decode(tape.blob, tape.offsets)
    assert values.dtype == np.uint32
    assert ends.dtype == np.int64
    assert ends.tolist() == [0, 0, 1, 4, 7, 8, 73]
    assert values.tolist() == [97, 0xE9, 0x4E2D, 0x1F600, 0xD800, 0x78, 0xDFFF, 0x10FFFF] + [97] * 64 + [0x4E2D]


def test_no_documents(kernel) -> None:
    blob, offsets = np.zeros(0, np.uint8), np.zeros(1, np.int64)
    assert kernel.valid(blob, offsets).tolist() == []
    assert kernel.code_points(blob, offsets).tolist() == []
    values, ends = kernel.decode(blob, offsets)
    assert values.tolist() == []
    assert ends.tolist() == [0]


TEXTS = st.lists(
    st.one_of(
        st.text(st.characters(codec=None), max_size=90),  # surrogates, too
        st.text(st.sampled_from("ab é中文漢字😀"), max_size=300),
        st.text(st.sampled_from("中文"), max_size=100),
    ),
    max_size=6,
)


@given(TEXTS, st.integers(0, 70))
def test_python_is_the_oracle(texts: list[str], skip: int) -> None:
    tape = Tape.of(["x" * skip, *texts])
    blob, offsets = tape.blob, tape.offsets[1:]  # offsets[0] above 0; the blob ends with the last text
    for kernel in (utf8_ref, utf8_cpu):
        values, ends = kernel.decode(blob, offsets)
        assert ends.tolist() == np.cumsum([0] + [len(text) for text in texts]).tolist()
        assert values.tolist() == [ord(char) for text in texts for char in text]
        assert kernel.code_points(blob, offsets).tolist() == [len(text) for text in texts]
        want = [not any(0xD800 <= ord(char) < 0xE000 for char in text) for text in texts]
        assert kernel.valid(blob, offsets).tolist() == want


def _strict(data: bytes) -> bool:
    try:
        data.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(st.binary(max_size=12), max_size=5), st.text(st.sampled_from("a中é😀"), max_size=80))
def test_any_bytes(pieces: list[bytes], text: str) -> None:
    """Bytes that are not UTF-8 are told from those that are, and give as many values as they are said to."""
    tape = Tape.of([text.encode() + piece for piece in pieces])
    for kernel in (utf8_ref, utf8_cpu):
        assert kernel.valid(tape.blob, tape.offsets).tolist() == [_strict(text.encode() + piece) for piece in pieces]
        counts = kernel.code_points(tape.blob, tape.offsets)
        assert counts.tolist() == [len(text) + sum(byte & 0xC0 != 0x80 for byte in piece) for piece in pieces]
        values, ends = kernel.decode(tape.blob, tape.offsets)
        assert np.diff(ends).tolist() == counts.tolist()
        assert len(values) == ends[-1]


def test_every_code_point(kernel) -> None:
    """All of them, surrogates too, in one document of each length of encoding."""
    bounds = [0, 0x80, 0x800, 0x10000, 0x110000]
    tape = Tape.of("".join(map(chr, range(low, high))) for low, high in pairwise(bounds))
    values, ends = kernel.decode(tape.blob, tape.offsets)
    assert np.array_equal(values, np.arange(0x110000, dtype=np.uint32))
    assert ends.tolist() == bounds
    assert kernel.valid(tape.blob, tape.offsets).tolist() == [True, True, False, True]


def test_one_type_for_every_array() -> None:
    """Read-only and writable inputs share one compiled kernel."""
    data = "a中é".encode() * 50
    offsets = np.array([0, len(data)], np.int64)
    for blob in (np.frombuffer(data, np.uint8), np.frombuffer(bytearray(data), np.uint8)):
        for give in (offsets, np.frombuffer(offsets.tobytes(), np.int64)):
            utf8_cpu.valid(blob, give)
            utf8_cpu.decode(blob, give)
    for kernel in (utf8_cpu._valid, utf8_cpu._code_points, utf8_cpu._decode):
        assert len(kernel.signatures) == 1
