"""Keeper order and exact classes: hand-written orders, fractions as the oracle of numbers, dictionaries of classes."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_dedup.batch import MISSING
from gpu_dedup.errors import RecipeError
from gpu_dedup.keep import KeeperColumn, KeeperError, classes, order

NAN = float("nan")


def ranked(keep: str, *values: Any) -> list[int]:
    out = order(keep, len(values), values=list(values))
    assert out.dtype == np.int64
    return out.tolist()


def test_as_given() -> None:
    for keep in ("first", "none"):
        assert order(keep, 4).tolist() == [0, 1, 2, 3]
        assert order(keep, 0).tolist() == []


def test_by_length() -> None:
    chars = np.array([3, 5, 0, 5, 3], np.int64)
    assert order("longest", 5, chars).tolist() == [1, 3, 0, 4, 2]
    assert order("shortest", 5, chars).tolist() == [2, 0, 4, 1, 3]
    assert order("longest", 0, chars[:0]).tolist() == []
    for keep in ("longest", "shortest"):
        with pytest.raises(ValueError, match="code points of 4"):
            order(keep, 4, chars)
        with pytest.raises(ValueError, match="code points of 5"):
            order(keep, 5)


def test_by_whole_numbers() -> None:
    assert ranked("max:score", 5, 9, 5, -3, 9) == [1, 4, 0, 2, 3]
    assert ranked("min:score", 5, 9, 5, -3, 9) == [3, 0, 2, 1, 4]
    assert ranked("max:score", -(2**63), 2**63 - 1, 0) == [1, 2, 0]  # negation would overflow
    assert ranked("min:score", -(2**63), 2**63 - 1, 0) == [0, 2, 1]
    assert ranked("max:score", 2**53, 2**53 + 1, 2**53 - 1) == [1, 0, 2]
    assert ranked("max:score") == []


def test_by_numbers_of_both_kinds_exactly() -> None:
    assert ranked("max:score", 1, 2.5, 3, 2.5, 1.0) == [2, 1, 3, 0, 4]
    # As float64 the first three are one number; 2**53 + 1 has no float.
    assert ranked("max:score", float(2**53), 2**53 + 1, 2**53) == [1, 0, 2]
    assert ranked("min:score", 2**53 + 1, float(2**53), 2**53) == [1, 2, 0]
    assert ranked("max:score", 10**400, math.inf, -math.inf, 1e308, 2**63) == [1, 0, 3, 4, 2]
    assert ranked("max:score", 2**64, 2**64 + 1) == [1, 0]
    assert ranked("max:score", 0.0, -0.0, 0) == [0, 1, 2]  # equal: the earlier row
    assert ranked("min:score", 0.1, Decimal("0.1"), 1) == [1, 0, 2]  # the float is a little above


def test_null_missing_and_nan_come_last_either_way() -> None:
    for keep, numbers in (("max:x", [3, 5, 1]), ("min:x", [1, 5, 3])):
        assert ranked(keep, None, 2, NAN, 7, MISSING, 2.5) == [*numbers, 0, 2, 4]
        assert ranked(keep, None, 2, MISSING, 7, None, 3) == [*numbers, 0, 2, 4]
        assert ranked(keep, NAN, 2.0, NAN, 7.0, NAN, 3.0) == [*numbers, 0, 2, 4]
        assert ranked(keep, None, "b", MISSING, "d", None, "c") == [*numbers, 0, 2, 4]
        assert ranked(keep, Decimal("NaN"), 2, Decimal("sNaN"), 2**70, None, 3) == [*numbers, 0, 2, 4]
    assert ranked("max:x", None, MISSING, NAN) == [0, 1, 2]
    assert ranked("max:x", None, None) == [0, 1]


def test_text_by_code_point() -> None:
    # U+FF5E is below U+1F600, though UTF-16 has it above; upper case comes before lower; "10" before "9".
    assert ranked("min:x", "\U0001f600", "\uff5e", "z", "Z", "9", "10", "") == [6, 5, 4, 3, 2, 1, 0]
    assert ranked("max:x", "a", "ab", "\ud800", "\ue000", "a") == [3, 2, 1, 0, 4]
    assert ranked("min:date", "2024-05-01", "2023-12-31", "2024-01-01") == [1, 2, 0]


def test_times_that_parquet_has() -> None:
    utc = datetime.timezone.utc
    day = datetime.date(2024, 1, 1)
    assert ranked("min:x", datetime.date(2024, 1, 2), None, day) == [2, 0, 1]
    assert ranked("max:x", datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, 1)) == [1, 0]
    assert ranked("max:x", datetime.datetime(2024, 1, 1, tzinfo=utc), datetime.datetime(2024, 1, 2, tzinfo=utc)) == [
        1,
        0,
    ]
    with pytest.raises(KeeperError, match="timestamp with zone"):
        ranked("max:x", datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=utc))
    with pytest.raises(KeeperError, match="date"):
        ranked("max:x", datetime.datetime(2024, 1, 1), day)


@pytest.mark.parametrize(
    ("values", "rows", "words"),
    [
        ([None, 3, "x"], (1, 2), ["text 'x'", "number 3", "row 1", "row 2"]),
        (["x", NAN, None, 2.5], (0, 3), ["number 2.5", "text 'x'"]),
        (["10", 10], (0, 1), ["number 10", "text '10'"]),
        ([1, True], (1,), ["boolean True", "row 1"]),
        ([False], (0,), ["boolean False"]),
        ([None, [1]], (1,), ["list [1]"]),
        ([{"a": 1}], (0,), ["object {'a': 1}"]),
        ([1, 1j], (1,), ["type complex"]),
        (["{0}", 5, 6], (0, 1), ["text '{0}'"]),
        (["long " * 50, 5], (0, 1), ["'long long", "..."]),
    ],
)
def test_values_without_a_common_order_are_refused(values: list[Any], rows: tuple[int, ...], words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        order("max:{q}", len(values), values=values)
    error = caught.value
    assert isinstance(error, KeeperError)
    assert error.exit_code == 2
    assert error.rows == rows
    assert "max:{q}" in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 250
    for word in words:
        assert word in str(error)
    named = error.named(lambda row: f"a{{}}.jsonl:{row + 1}")
    for row in rows:
        assert f"a{{}}.jsonl:{row + 1}" in str(named)
        assert f"row {row}" not in str(named)
    copy = pickle.loads(pickle.dumps(named))
    assert (str(copy), copy.rows) == (str(named), named.rows)


def test_the_first_value_of_another_kind_is_named_over_batches() -> None:
    column = KeeperColumn("min:score")
    column.append([None, NAN])
    column.append([])
    column.append([1.5, 2])
    column.append(list(range(5)))
    with pytest.raises(KeeperError) as caught:
        column.append([3, MISSING, "high"])
    assert caught.value.rows == (2, 11)
    assert str(caught.value.named(lambda row: f"f:{row}")) == (
        "f:11: keep min:score finds the text 'high', but the number 1.5 at f:2; "
        "make the field one kind throughout, or keep by another"
    )


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(RecipeError, match="longst"):
        order("longst", 1)
    with pytest.raises(RecipeError, match="names no field"):
        order("max:", 1, values=[1])
    with pytest.raises(ValueError, match="values of 2 rows"):
        order("max:x", 2, values=[1])
    with pytest.raises(ValueError, match="values of 2 rows"):
        order("max:x", 2)


numbers = st.one_of(
    st.none(),
    st.just(MISSING),
    st.integers(-3, 3),
    st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30]),
    st.floats(allow_infinity=False),
    st.sampled_from([2.0**53, -(2.0**53), 2.0**63, 1e30, 0.5]),
)
texts = st.one_of(st.none(), st.just(MISSING), st.text(st.characters(codec=None), max_size=3))


def by_python(values: list[Any], largest: bool) -> list[int]:
    """Sorted by exact key, negated for the largest, so that ties need no rule but stability."""

    def key(row: int) -> Any:
        value = values[row]
        if value is None or value is MISSING or value != value:
            return (1, 0)
        if isinstance(value, str):
            points = [ord(c) for c in value]
            return (0, [-p for p in points] + [1]) if largest else (0, points)
        return (0, -Fraction(value) if largest else Fraction(value))

    return sorted(range(len(values)), key=key)


@pytest.mark.parametrize("kind", ["small", "whole", "real", "any", "text"])
@given(data=st.data())
def test_order_against_fractions(kind: str, data: st.DataObject) -> None:
    """In batches of any size, since each batch chooses its own storage."""
    element = {
        "small": st.one_of(st.none(), st.integers(-3, 3), st.floats(-2, 2)),
        "whole": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "real": st.one_of(st.just(MISSING), st.floats(allow_infinity=False)),
        "any": numbers,
        "text": texts,
    }[kind]
    batches = data.draw(st.lists(st.lists(element, max_size=5), max_size=5))
    values = [value for batch in batches for value in batch]
    for largest in (True, False):
        column = KeeperColumn("max:x" if largest else "min:x")
        for batch in batches:
            column.append(batch)
        assert len(column) == len(values)
        assert order(column.keep, len(values), values=column).tolist() == by_python(values, largest)
        assert column.order(largest).tolist() == by_python(values, largest)  # asking twice changes nothing
        some = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=8)) if values else []
        chosen = column.select(np.array(some, np.int64))
        assert len(chosen) == len(some)
        assert chosen.order(largest).tolist() == by_python([values[row] for row in some], largest)


def test_numbers_are_held_in_nine_bytes_a_row() -> None:
    for batch in ([1, 2, None] * 100, [1.5, 2, MISSING] * 100):
        column = KeeperColumn("max:x")
        for _ in range(10):
            column.append(batch)
        held = sum(part.nbytes for chunk in column._chunks for part in chunk)
        assert held == 9 * len(column)


def heads_by_dict(digest: np.ndarray, length: np.ndarray, ranking: list[int]) -> list[int]:
    head: dict[tuple[int, int, int], int] = {}
    out = [-1] * len(digest)
    for row in ranking:
        key = (int(digest[row, 0]), int(digest[row, 1]), int(length[row]))
        out[row] = head.setdefault(key, row)
    return out


def test_classes_by_hand() -> None:
    digest = np.array([[1, 1], [2, 2], [1, 1], [1, 1], [2, 2]], np.uint64)
    length = np.array([10, 20, 10, 10, 20], np.int64)
    assert classes(digest, length, np.arange(5)).tolist() == [0, 1, 0, 0, 1]
    assert classes(digest, length, np.array([4, 3, 2, 1, 0])).tolist() == [3, 4, 3, 3, 4]
    # Rows left out belong to no class and head none.
    assert classes(digest, length, np.array([3, 2, 1])).tolist() == [-1, 1, 3, 3, -1]
    assert classes(digest, length, np.array([], np.int64)).tolist() == [-1] * 5
    assert classes(digest[:0], length[:0], np.array([], np.int64)).tolist() == []
    assert classes(digest[:1], length[:1], np.array([0])).tolist() == [0]


@pytest.mark.parametrize("column", ["second word", "length"])
def test_one_equal_word_is_not_a_class(column: str) -> None:
    digest = np.full((6, 2), 2**64 - 1, np.uint64)
    length = np.full(6, 7, np.int64)
    odd = digest[:, 1] if column == "second word" else length
    odd[[1, 3]] = 5
    assert classes(digest, length, np.arange(6)).tolist() == [0, 1, 0, 1, 0, 0]
    assert classes(digest, length, np.arange(6)[::-1].copy()).tolist() == [5, 3, 5, 3, 5, 5]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 1)), max_size=40),
    st.randoms(use_true_random=False),
)
def test_classes_against_a_dictionary(rows: list[tuple[int, int, int]], random: Any) -> None:
    digest = np.array([row[:2] for row in rows], np.uint64).reshape(len(rows), 2) * np.uint64(2**63 + 5)
    length = np.array([row[2] for row in rows], np.int64)
    ranking = random.sample(range(len(rows)), random.randint(0, len(rows)))
    assert classes(digest, length, np.array(ranking, np.int64)).tolist() == heads_by_dict(digest, length, ranking)


def test_many_classes_against_a_dictionary(rng: np.random.Generator) -> None:
    n = 20_000
    digest = rng.integers(0, 2**64, (n, 2), dtype=np.uint64)
    length = rng.integers(0, 1000, n)
    copies = rng.integers(0, n, (2, n // 3))
    digest[copies[0]], length[copies[0]] = digest[copies[1]], length[copies[1]]
    ranking = rng.permutation(n)
    assert classes(digest, length, ranking).tolist() == heads_by_dict(digest, length, ranking.tolist())
