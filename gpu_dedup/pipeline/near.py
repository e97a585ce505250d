"""From sketches to decisions: heads in keeper order, band keys, collisions, sieve, verification, clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.backend import HostBackend, host_backend
from gpu_dedup.batch import I64, U32, U64
from gpu_dedup.cluster import Decision, decide
from gpu_dedup.collide import Candidates, collide
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.reread import TextItems, normal_texts, reread, sketch_rows
from gpu_dedup.pipeline.survey import Sketcher, Survey
from gpu_dedup.progress import Progress
from gpu_dedup.spool import RaggedTable, Table
from gpu_dedup.verify import Verifier

AGREEMENT_BLOCK = 1 << 16


@dataclass(frozen=True)
class Heads:
    """Heads that go into LSH, in keeper order: index = rank.

    rows    int64[m] global rows
    sketch  int64[m] their rows in the sketch tables
    """

    rows: I64
    sketch: I64

    def __len__(self) -> int:
        return len(self.rows)


class RankedSignatures:
    """The signature table seen through the ranks of heads."""

    def __init__(self, table: Table, sketch: I64) -> None:
        self._table = table
        self._sketch = sketch
        straight = len(table) == len(sketch) and bool(np.array_equal(sketch, np.arange(len(sketch))))
        self.array: U32 | None = table.array if straight else None

    def take(self, ranks: I64) -> U32:
        out: U32 = self._table.take(self._sketch[ranks])
        return out


def sketch_the_rest(survey: Survey, sketcher: Sketcher, pool: Pool, batch_bytes: int, heads: I64, carrier: I64) -> I64:
    """Row in the sketch tables for every class; classes that nobody sketched are read once more and sketched.

    heads    int64[c] global rows of the class heads
    carrier  int64[c] a sketch of the class, or -1
    returns  carrier, filled; the tables are finished then
    """
    assert survey.signatures is not None
    missing = np.flatnonzero(carrier < 0)
    order = missing[np.argsort(heads[missing], kind="stable")]
    filled: I64 = carrier.copy()
    made = len(survey.signatures)
    more_units, more_kept = [survey.units], [survey.kept]
    for rows, signatures, keys, units, kept in sketch_rows(survey, sketcher, pool, batch_bytes, heads[order]):
        filled[order[np.searchsorted(heads[order], rows)]] = made + np.arange(len(rows))
        made += len(rows)
        survey.signatures.append(sketcher.own_slots(signatures))
        for band, table in enumerate(survey.keys):
            table.append(np.ascontiguousarray(keys[:, band]))
        more_units.append(units)
        more_kept.append(kept)
    survey.units, survey.kept = np.concatenate(more_units), np.concatenate(more_kept)
    for table in [survey.signatures, *survey.keys]:
        table.finish()
    return filled


def find_and_decide(
    survey: Survey,
    sketcher: Sketcher,
    pool: Pool,
    batch_bytes: int,
    memory: int,
    heads: Heads,
    ragged: Callable[[Any], RaggedTable],
    progress: Progress,
) -> tuple[Decision, Candidates]:
    """Candidate pairs of all bands, then the decision which heads go."""
    recipe, backend = sketcher.recipe, sketcher.backend
    assert survey.signatures is not None

    def band_keys(band: int) -> U64:
        table = survey.keys[band]
        column: U64 = table.take(heads.sketch)
        return column

    signatures = RankedSignatures(survey.signatures, heads.sketch)
    with progress.stage("collide", recipe.bands, unit="bands") as advance:
        candidates = collide(band_keys, signatures, len(heads), recipe, backend, pool.ordered, advance)

    needed = np.unique(np.concatenate([candidates.hi, candidates.lo]))
    items: TextItems | None = None
    sizes = np.zeros(len(heads), np.int64)
    if recipe.verify == "exact":
        sizes = survey.kept[heads.sketch] * 8
    elif recipe.verify == "edit":
        sizes = survey.length[heads.rows] * 4
    if recipe.verify in ("exact", "edit") and len(needed):
        table = ragged(np.uint64 if recipe.verify == "exact" else np.uint32)
        rows = heads.rows[needed]
        with progress.stage("read candidates again", int(survey.length[rows].sum())) as advance:
            items = TextItems.read(survey, sketcher, pool, batch_bytes, table, needed, rows, len(heads), advance)

    def agreements(left: I64, right: I64) -> I64:
        """Equal slots of pairs that are no candidates, in blocks that stay small."""
        out = np.empty(len(left), np.int64)
        for start in range(0, len(left), AGREEMENT_BLOCK):
            part = slice(start, start + AGREEMENT_BLOCK)
            ranks, place = np.unique(np.concatenate([left[part], right[part]]), return_inverse=True)
            one, other = np.split(place.astype(np.int64), 2)
            out[part] = backend.agreements(signatures.take(ranks), one, other)
        return out

    # What is in memory anyway is compared where it lies. A GPU takes it in parts that fit there.
    whole = items.whole() if items is not None and isinstance(backend, HostBackend) else None
    verifier = Verifier(recipe, backend, items, sizes, memory, pool.ordered, agreements, whole)
    with progress.stage("verify", len(candidates), unit="pairs") as advance:
        decision = decide(candidates, len(heads), recipe, backend, verifier, advance)
    return decision, candidates


def common_shingles(
    survey: Survey, sketcher: Sketcher, pool: Pool, batch_bytes: int, rows: I64, most: int = 3
) -> list[str]:
    """The shingles that most of these rows share, as text: what a heavy bucket is made of."""
    spec = sketcher.recipe.spec
    spans_of = host_backend("numpy").kernels["shingle"].shingle_spans

    def work(look: Any) -> Counter[bytes]:
        normal = normal_texts(survey, sketcher, look)
        found: Counter[bytes] = Counter()
        for document in look.select:
            text = normal[int(document)]
            spans = spans_of(normal.blob, normal.offsets, int(document), spec.unit_code, spec.n)
            found.update({text[a:b] for a, b in spans[:20_000]})
        return found

    total: Counter[bytes] = Counter()
    for found in reread(survey, sketcher, pool, batch_bytes, np.unique(rows), work):
        total.update(found)
    ranked = sorted(total.items(), key=lambda entry: (-entry[1], entry[0]))
    return [text.decode("utf-8", "replace") for text, _ in ranked[:most]]
