"""From sketches to decisions: heads in keeper order, what meets (in bands, or by near fingerprints), verification,
clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.backend import HostBackend, host_backend
from gpu_dedup.batch import I64, U32, U64
from gpu_dedup.cluster import Crowd, Decision, decide, decide_crowd
from gpu_dedup.collide import Candidates, collide
from gpu_dedup.hamming import DEAR_DISTANCE, Near, cost_text, join, plan
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.reread import TextItems, normal_texts, reread, sketch_rows
from gpu_dedup.pipeline.survey import Sketcher, Survey
from gpu_dedup.progress import Progress
from gpu_dedup.read.items import shown_text
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
    assert survey.sketches is not None
    missing = np.flatnonzero(carrier < 0)
    order = missing[np.argsort(heads[missing], kind="stable")]
    filled: I64 = carrier.copy()
    more_units, more_kept = [survey.units], [survey.kept]
    for rows, sketched in sketch_rows(survey, sketcher, pool, batch_bytes, heads[order]):
        filled[order[np.searchsorted(heads[order], rows)]] = survey.sketches.rows + np.arange(len(rows))
        survey.sketches.append(sketched)
        more_units.append(sketched.units)
        more_kept.append(sketched.kept)
    survey.units, survey.kept = np.concatenate(more_units), np.concatenate(more_kept)
    survey.sketches.finish()
    return filled


@dataclass(frozen=True)
class Road:
    """What the search for near copies needs of a run. memory: bytes that verification may hold."""

    survey: Survey
    sketcher: Sketcher
    pool: Pool
    batch_bytes: int
    memory: int
    search_memory: int
    ragged: Callable[[Any], RaggedTable]
    progress: Progress

    def verifier(self, heads: Heads, needed: I64, agreements: Callable[[I64, I64], I64] | None = None) -> Verifier:
        """A verifier over heads; `needed` (ascending) are those that it may be asked about, whose texts are read."""
        recipe, survey = self.sketcher.recipe, self.survey
        items: TextItems | None = None
        sizes = np.zeros(len(heads), np.int64)
        if recipe.verify == "exact":
            sizes = survey.kept[heads.sketch] * 8
        elif recipe.verify == "edit":
            sizes = survey.length[heads.rows] * 4
        if recipe.verify in ("exact", "edit") and len(needed):
            table = self.ragged(np.uint64 if recipe.verify == "exact" else np.uint32)
            rows = heads.rows[needed]
            with self.progress.stage("read candidates again", int(survey.length[rows].sum())) as advance:
                items = TextItems.read(
                    survey, self.sketcher, self.pool, self.batch_bytes, table, needed, rows, len(heads), advance
                )
        # What is in memory anyway is compared where it lies. A GPU takes it in parts that fit there.
        backend = self.sketcher.backend
        whole = items.whole() if items is not None and isinstance(backend, HostBackend) else None
        return Verifier(recipe, backend, items, sizes, self.memory, self.pool.ordered, agreements, whole)


def find_and_decide(road: Road, heads: Heads) -> tuple[Decision, Candidates | Near]:
    """Candidate pairs by the recipe's method, then the decision which heads go."""
    return by_prints(road, heads) if road.sketcher.recipe.printed else by_bands(road, heads)


def by_bands(road: Road, heads: Heads) -> tuple[Decision, Candidates]:
    """MinHash: candidates are pairs that meet in a band and pass the sieve."""
    recipe, backend, tables = road.sketcher.recipe, road.sketcher.backend, road.survey.sketches
    assert tables is not None
    assert tables.signatures is not None

    def band_keys(band: int) -> U64:
        column: U64 = tables.keys[band].take(heads.sketch)
        return column

    signatures = RankedSignatures(tables.signatures, heads.sketch)
    with road.progress.stage("collide", recipe.bands, unit="bands") as advance:
        candidates = collide(band_keys, signatures, len(heads), recipe, backend, road.pool.ordered, advance)

    def agreements(left: I64, right: I64) -> I64:
        """Equal slots of pairs that are no candidates, in blocks that stay small."""
        out = np.empty(len(left), np.int64)
        for start in range(0, len(left), AGREEMENT_BLOCK):
            part = slice(start, start + AGREEMENT_BLOCK)
            ranks, place = np.unique(np.concatenate([left[part], right[part]]), return_inverse=True)
            one, other = np.split(place.astype(np.int64), 2)
            out[part] = backend.agreements(signatures.take(ranks), one, other)
        return out

    verifier = road.verifier(heads, np.unique(np.concatenate([candidates.hi, candidates.lo])), agreements)
    with road.progress.stage("verify", len(candidates), unit="pairs") as advance:
        decision = decide(candidates, len(heads), recipe, backend, verifier, advance)
    return decision, candidates


def by_prints(road: Road, heads: Heads) -> tuple[Decision, Near]:
    """SimHash: candidates are all pairs whose fingerprints differ in at most `distance` bits."""
    recipe, backend = road.sketcher.recipe, road.sketcher.backend
    prints = fingerprints(road.survey, heads)
    near = near_prints(road, prints)
    crowd = Crowd(near, len(heads))
    verifier = road.verifier(heads, crowd.heads)
    with road.progress.stage("verify", len(crowd.heads), unit="texts") as advance:
        decision = decide_crowd(crowd, len(heads), recipe, backend, verifier, advance)
    gone = np.flatnonzero(decision.witness >= 0)
    decision.distance[gone] = backend.hamming_distances(prints, gone, decision.witness[gone])
    return decision, near


def fingerprints(survey: Survey, heads: Heads) -> U64:
    """uint64[m]: SimHash of every head."""
    assert survey.sketches is not None
    assert survey.sketches.prints is not None
    prints: U64 = survey.sketches.prints.take(heads.sketch)
    return prints


def near_prints(road: Road, prints: U64) -> Near:
    """The Hamming join of the heads, its cost said first where it is high."""
    recipe = road.sketcher.recipe
    chosen = plan(len(prints), recipe.distance)
    if recipe.distance >= DEAR_DISTANCE:
        road.progress.note(cost_text(chosen))
    with road.progress.stage("near fingerprints", None):
        return join(prints, recipe.distance, road.sketcher.backend, road.pool.ordered, memory=road.search_memory)


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
    texts = [text.decode("utf-8", "replace") for text, _ in ranked[:most]]
    return texts if sketcher.recipe.pretokenized is None else [shown_text(text) for text in texts]
