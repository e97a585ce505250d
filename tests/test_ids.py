"""Ids of rows of the log: the same from memory and from disk, in whatever order they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_dedup.batch import MISSING
from gpu_dedup.pipeline.emit import Ids
from gpu_dedup.spool import Budget, Table

VALUES: dict[int, tuple[Any, str | None, str]] = {
    3: ("a", "a", "string"), 4: (17, "17", "int"), 9: (None, None, "null"), 10: (MISSING, None, "missing"),
    11: ("", "", "string"), 12: ("é漢🙂", "é漢🙂", "string"), 40: ([1], "[1]", "list"), 41: (True, "true", "bool"),
}  # fmt: skip


@pytest.mark.parametrize("budget", [0, 40, 1 << 30])
@pytest.mark.parametrize("order", [[[3, 4], [], [9, 10, 11, 12], [40, 41]], [[40, 41], [3, 4, 9], [12, 11], [10]]])
def test_ids_by_hand(tmp_path: Path, budget: int, order: list[list[int]]) -> None:
    shared = Budget(budget)
    ids = Ids(np.array(sorted(VALUES)), None, lambda dtype, width: Table(dtype, width, lambda: str(tmp_path), shared))
    assert not ids.some
    for rows in order:
        ids.add(np.array(rows, np.int64), [VALUES[row][0] for row in rows])
    assert ids.some
    for rows in ([3, 4, 9, 10, 11, 12, 40, 41], [41, -1, 3, 5, 3, 100, 12], [], [-1, 7]):
        texts, kinds = ids.look_up(np.array(rows, np.int64))
        assert texts.to_pylist() == [VALUES[row][1] if row in VALUES else None for row in rows]
        assert kinds.to_pylist() == [VALUES[row][2] if row in VALUES else None for row in rows]
    assert bool(list(tmp_path.iterdir())) == (budget < 1 << 30)


def test_no_ids_at_all() -> None:
    ids = Ids(np.array([1, 2]))
    texts, kinds = ids.look_up(np.array([1, -1, 2]))
    assert texts.to_pylist() == kinds.to_pylist() == [None] * 3
    ids = Ids(np.array([1, 2]))
    ids.add(np.array([1, 2]), [MISSING, None])
    assert not ids.some
