"""Removes near-duplicate text from training corpora, with a reason for every row that goes.

>>> from gpu_dedup import Recipe, Run, dedup
>>> report = dedup(["crawl/*.jsonl.gz"], "clean", Recipe(threshold_ppm=800_000), Run())  # doctest: +SKIP
>>> print(report.summary())  # doctest: +SKIP

Texts in memory:

>>> from gpu_dedup import dedup_texts
>>> dedup_texts(["one text", "another", "one text"]).keep.tolist()
[True, True, False]

Names are loaded when they are asked for: importing this package loads neither Numba, CuPy, NumPy nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "BloomFilter", "Explanation", "Pairs", "Recipe", "Report", "Result", "Run", "Similarity", "__version__", "dedup",
    "dedup_texts", "explain", "similarity", "sketch",
]  # fmt: skip

if TYPE_CHECKING:
    from gpu_dedup.bloom import BloomFilter
    from gpu_dedup.pipeline import dedup
    from gpu_dedup.recipe import Recipe
    from gpu_dedup.report import Report
    from gpu_dedup.run import Run
    from gpu_dedup.texts import Explanation, Pairs, Result, Similarity, dedup_texts, explain, similarity, sketch

_HOMES = {
    "BloomFilter": "gpu_dedup.bloom",
    "Recipe": "gpu_dedup.recipe",
    "Report": "gpu_dedup.report",
    "Run": "gpu_dedup.run",
    "dedup": "gpu_dedup.pipeline",
    **dict.fromkeys(
        ("Explanation", "Pairs", "Result", "Similarity", "dedup_texts", "explain", "similarity", "sketch"),
        "gpu_dedup.texts",
    ),
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
