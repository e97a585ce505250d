"""Records and fields of delimited text: by hand, against Python's csv module, and alike on both backends."""

from __future__ import annotations

import csv
import io
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_dedup.kernels import csv_cpu, csv_ref
from gpu_dedup.kernels.csv_ref import AT_CR, DOUBLED, ENDED, IN_QUOTES, MIXED, OPEN, PLAIN, QUOTED, UNENDED

KERNELS = pytest.mark.parametrize("kernel", [csv_ref, csv_cpu], ids=["ref", "cpu"])


def padded(text: bytes) -> Any:
    # What stands behind the records must not matter.
    return np.frombuffer(text + b'",\r\n' * 16, np.uint8).copy()


def parse(kernel: Any, text: bytes, delimiter: str = ",", width: int = 12) -> tuple[list[list[bytes]], list[int], int]:
    """Fields of each record, the records' starts, and how the last one ends."""
    data = padded(text)
    starts, state = kernel.scan(data, len(text), ord(delimiter))
    counts, spans, kinds = kernel.split(data, starts, ord(delimiter), np.arange(width, dtype=np.int64), None)
    out = []
    for i, count in enumerate(counts.tolist()):
        have = int((spans[i, :, 0] >= 0).sum())
        assert count in (have, -1) or count > width
        fields = []
        for k in range(have):
            blob, offsets = kernel.texts(
                data, spans[i : i + 1, k : k + 1].copy(), kinds[i : i + 1, k : k + 1].copy(), np.ones(1, np.bool_)
            )
            assert len(blob) == offsets[-1] + 64
            fields.append(blob[: offsets[-1]].tobytes())
        out.append(fields)
    return out, starts.tolist(), state


@KERNELS
@pytest.mark.parametrize(
    ("text", "records", "starts", "state"),
    [
        (b"", [], [0], ENDED),
        (b"a,b\n", [[b"a", b"b"]], [0, 4], ENDED),
        (b"a,b", [[b"a", b"b"]], [0, 3], UNENDED),
        (b"a\r\nb\rc\n", [[b"a"], [b"b"], [b"c"]], [0, 3, 5, 7], ENDED),
        (b"a\r", [[b"a"]], [0, 2], AT_CR),
        (b"\n\r\n\r,", [[], [], [], [b"", b""]], [0, 1, 3, 4, 5], UNENDED),
        (b'"a,\n""b""\r",c\n', [[b'a,\n"b"\r', b"c"]], [0, 14], ENDED),
        (b'""\n"" \n', [[b""], [b" "]], [0, 3, 7], ENDED),
        (b'5" x,"y\n', [[b'5" x', b"y\n"]], [0, 8], IN_QUOTES),
        (b'"a"b"c,d\n', [[b'ab"c', b"d"]], [0, 9], ENDED),
        (b' "a,b"\n', [[b' "a', b'b"']], [0, 7], ENDED),
        (b'"', [[b""]], [0, 1], IN_QUOTES),
        (b'"""', [[b'"']], [0, 3], IN_QUOTES),
        (b'a,"b"\r', [[b"a", b"b"]], [0, 6], AT_CR),
        (b"x" * 200 + b"," + b'"' + b'""' * 70 + b'"\n', [[b"x" * 200, b'"' * 70]], [0, 344], ENDED),
    ],
)
def test_by_hand(kernel: Any, text: bytes, records: list[list[bytes]], starts: list[int], state: int) -> None:
    assert parse(kernel, text) == (records, starts, state)


@KERNELS
def test_kinds_counts_and_what_is_wanted(kernel: Any) -> None:
    text = b'a,"b","c""d","e"f\n\ng\n1,2,3,4,5\n"x,y\n'
    data = padded(text)
    starts, state = kernel.scan(data, len(text), 44)
    assert state == IN_QUOTES
    columns = np.array([3, 0, 2, 1], np.int64)
    counts, spans, kinds = kernel.split(data, starts, 44, columns, None)
    assert counts.tolist() == [4, 0, 1, 5, -1]
    assert kinds.tolist() == [[MIXED, PLAIN, DOUBLED, QUOTED], [0] * 4, [0] * 4, [0] * 4, [0, OPEN, 0, 0]]
    assert spans[0].tolist() == [[13, 17], [0, 1], [6, 12], [2, 5]]
    assert spans[2].tolist() == [[-1, -1], [19, 20], [-1, -1], [-1, -1]]
    want = np.array([True, False, True, False, True])
    some = kernel.split(data, starts, 44, columns, want)
    assert some[0].tolist() == [4, -2, 1, -2, -1]
    assert np.array_equal(some[1][want], spans[want])
    assert np.all(some[1][~want] == -1)
    good = np.array([True, False, False, True, False])
    blob, offsets = kernel.texts(data, spans, kinds, good)
    assert offsets.tolist() == [0, 10, 10, 10, 17, 17]
    assert blob[:17].tobytes() == b'ef\na\nc"d\nb4\n1\n3\n2'
    assert not blob[17:].any()
    none = kernel.split(data, starts, 44, columns[:0], None)
    assert none[0].tolist() == counts.tolist()
    assert none[1].shape == (5, 0, 2)


@KERNELS
def test_what_would_leave_the_arrays_is_refused(kernel: Any) -> None:
    data = padded(b"a,b\n")
    one = np.ones(1, np.bool_)
    for arguments in ((data[:66], 4, 44), (data, -1, 44), (data, 4, 10), (data, 4, 34), (data, 4, 200)):
        with pytest.raises(ValueError, match=r"cannot (hold|part)"):
            kernel.scan(*arguments)
    starts = np.array([0, 4], np.int64)
    columns = np.zeros(1, np.int64)
    for bad in (np.array([0, 1000]), np.array([4, 0]), np.array([-1, 4]), np.zeros(0)):
        with pytest.raises(ValueError, match=r"starts|cannot hold"):
            kernel.split(data, bad.astype(np.int64), 44, columns, None)
    with pytest.raises(ValueError, match="none twice"):
        kernel.split(data, starts, 44, np.zeros(2, np.int64), None)
    for span in ((-1, 3), (0, 1000), (3, 1)):
        with pytest.raises(ValueError, match="leaves the data"):
            kernel.texts(data, np.array([[span]], np.int64), np.zeros((1, 1), np.uint8), one)


PIECES = st.sampled_from(['"', '""', ",", "\t", "\n", "\r", "\r\n", " ", "a", "bc", "\u4e2d", "x" * 63, "y" * 130])


@given(st.lists(PIECES, max_size=25).map("".join), st.sampled_from(",\t"))
@example('"a""', ",")
@example('a\r"b\r\n"\r', ",")
@settings(max_examples=300, deadline=None)
def test_the_same_as_pythons_csv(text: str, delimiter: str) -> None:
    ours, starts, state = parse(csv_cpu, text.encode(), delimiter, 40)
    assert (ours, starts, state) == parse(csv_ref, text.encode(), delimiter, 40)
    limit = csv.field_size_limit(sys.maxsize)
    try:
        theirs = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    finally:
        csv.field_size_limit(limit)
    # Before Python 3.13 a doubled quote at the very end of an open field may be read otherwise: it is reported anyway.
    if state == IN_QUOTES:
        ours, theirs = ours[:-1], theirs[:-1]
    assert [[field.decode() for field in record] for record in ours] == theirs


@given(st.lists(PIECES, max_size=30).map("".join), st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_a_cut_after_a_record_changes_nothing(text: str, at: int) -> None:
    """Chunks end where a record has surely ended: scanned apart, they give the same records."""
    raw = text.encode()
    whole, _ = csv_cpu.scan(padded(raw), len(raw), 44)
    part, state = csv_cpu.scan(padded(raw[:at]), len(raw[:at]), 44)
    sure = part if state == ENDED else part[:-1]
    assert sure.tolist() == whole[: len(sure)].tolist()
    cut = int(sure[-1])
    rest, _ = csv_cpu.scan(padded(raw[cut:]), len(raw) - cut, 44)
    assert [*sure.tolist(), *(rest[1:] + cut).tolist()] == whole.tolist()


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_both_backends_alike(data: st.DataObject) -> None:
    raw = data.draw(st.lists(PIECES, max_size=40).map("".join)).encode()
    starts, _ = csv_ref.scan(padded(raw), len(raw), 44)
    n = len(starts) - 1
    columns = np.array(data.draw(st.lists(st.integers(0, 6), unique=True, max_size=4)), np.int64)
    want = data.draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n).map(lambda w: np.array(w, np.bool_)))
    one = csv_ref.split(padded(raw), starts, 44, columns, want)
    other = csv_cpu.split(padded(raw), starts, 44, columns, want)
    for left, right in zip(one, other, strict=True):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    good = np.all(one[1][:, :, 0] >= 0, axis=1)
    for left, right in zip(
        csv_ref.texts(padded(raw), one[1], one[2], good), csv_cpu.texts(padded(raw), one[1], one[2], good), strict=True
    ):
        assert np.array_equal(left, right)
