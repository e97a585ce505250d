"""Exact classes by parts and pieces are those of all rows at once, whatever may be sorted at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_dedup.batch import ROW_BAD, ROW_TEXT
from gpu_dedup.keep import KeeperColumn
from gpu_dedup.pipeline.exact import find_classes, texts_of
from gpu_dedup.pipeline.survey import Survey
from gpu_dedup.recipe import Recipe
from gpu_dedup.spool import Budget, Table

Key = tuple[int, int, int]


class Tables:
    """Makes tables that outgrow a budget, and knows which are still open."""

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder, self.budget, self.made = folder, Budget(budget), 0

    def __call__(self, dtype: Any, width: int | None) -> Table:
        self.made += 1
        return Table(dtype, width, lambda: str(self.folder), self.budget)

    def of(self, array: np.ndarray) -> Table:
        table = self(array.dtype, array.shape[1] if array.ndim > 1 else None)
        for start in range(0, len(array), 7):
            table.append(array[start : start + 7])
        table.finish()
        return table


def survey_of(tables: Tables, keys: list[Key], status: list[int], values: list[int]) -> Survey:
    digest = np.array([key[:2] for key in keys], np.uint64).reshape(len(keys), 2)
    column = KeeperColumn("max:x")
    column.append(values)
    none = np.zeros(0, np.int64)
    return Survey(
        files=[], status=np.array(status, np.uint8), digest=tables.of(digest),
        length=tables.of(np.array([key[2] for key in keys], np.int64)), chars=tables.of(np.array(values, np.int64)),
        values=column, sketch=tables.of(none), sketches=None, blank=0, text_bytes=0,
    )  # fmt: skip


def by_dictionary(keys: list[Key], part_in: list[bool], ranking: list[int]) -> tuple[list[bool], list[tuple[int, int]]]:
    """Heads, and (copy, head) by row: the first of each class in keeper order is its head."""
    first: dict[Key, int] = {}
    for row in ranking:
        first.setdefault(keys[row], row)
    rows = [row for row in range(len(keys)) if part_in[row]]
    copies = [(row, first[keys[row]]) for row in rows if first[keys[row]] != row]
    return [part_in[row] and first[keys[row]] == row for row in range(len(keys))], copies


def keeper_order(keep: str, rows: list[int], values: list[int]) -> list[int]:
    if keep in ("first", "none"):
        return rows
    return sorted(rows, key=lambda row: values[row] if keep == "shortest" else -values[row])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(1, 2), st.integers(0, 3), st.booleans()),
        max_size=60,
    ),
    st.sampled_from(["first", "none", "longest", "shortest", "max:x"]),
    st.sampled_from([1, 2, 3, 10, 1000]),
    st.sampled_from([0, 300, 1 << 30]),
)
def test_any_memory_gives_the_same_classes(
    tmp_path: Path, rows: list[tuple[int, int, int, int, bool]], keep: str, most: int, budget: int
) -> None:
    # First words all over the range, and some that differ in their last bits alone.
    words = [0, 1, 2**62, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
    keys = [(words[word], second, length) for word, second, length, _, _ in rows]
    values = [value for _, _, _, value, _ in rows]
    part_in = [there for *_, there in rows]
    tables = Tables(tmp_path, budget)
    survey = survey_of(tables, keys, [ROW_TEXT] * len(keys), values)
    found = find_classes(survey, Recipe(keep=keep), np.array(part_in, np.bool_), most, tables)
    ranking = keeper_order(keep, [row for row, there in enumerate(part_in) if there], values)
    heads, copies = by_dictionary(keys, part_in, ranking)
    assert found.heads.tolist() == heads
    assert list(zip(found.copies.tolist(), found.head.tolist(), strict=True)) == copies
    in_order = [row for some in found.in_order() for row in some.tolist()]
    assert in_order == [row for row in ranking if heads[row]]


def test_a_text_with_very_many_copies_is_taken_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted at a time are a piece and the heads before it, not all that share the first bits of a digest."""
    from gpu_dedup.pipeline import exact

    n, most, sizes = 5000, 100, []
    keys = [(2**63, 5, 7)] * n
    for row in range(0, n, 50):
        keys[row] = (row * 2**51 % 2**64, row, 7)
    real = exact.classes

    def counted(digest: Any, length: Any, order: Any) -> Any:
        sizes.append(len(digest))
        return real(digest, length, order)

    monkeypatch.setattr(exact, "classes", counted)
    tables = Tables(tmp_path, 0)
    survey = survey_of(tables, keys, [ROW_TEXT] * n, [0] * n)
    before = tables.made
    found = find_classes(survey, Recipe(), np.ones(n, np.bool_), most, tables)
    assert tables.made - before == 128  # 64 parts of 100 rows would do if all were of one size
    assert max(sizes) <= 2 * most
    heads, copies = by_dictionary(keys, [True] * n, list(range(n)))
    assert found.heads.tolist() == heads
    assert list(zip(found.copies.tolist(), found.head.tolist(), strict=True)) == copies
    assert len(list(tmp_path.iterdir())) == 3, "files of parts go with them, those of digest, length and chars stay"


def test_rows_with_a_text(tmp_path: Path) -> None:
    tables = Tables(tmp_path, 1 << 30)
    survey = survey_of(
        tables, [(0, 0, 3), (0, 0, 0), (0, 0, 0), (0, 0, 9)], [ROW_TEXT] * 2 + [ROW_BAD, ROW_TEXT], [0] * 4
    )
    some, empty = texts_of(survey)
    assert some.tolist() == [True, False, False, True]
    assert empty.tolist() == [1]
