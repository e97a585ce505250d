"""From sketches to decisions: heads in keeper order, what meets (in bands, or by near fingerprints), verification,
clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_dedup.backend import HostBackend, host_backend
from gpu_dedup.batch import I64, U32, U64, Bool, pack_pairs, unpack_pairs
from gpu_dedup.cluster import (
    NO_PAIRS,
    Crowd,
    FarMatches,
    Gone,
    Pairs,
    decide,
    decide_crowd,
    decide_levels,
)
from gpu_dedup.collide import Candidates, CollideStats, collide
from gpu_dedup.errors import RunError
from gpu_dedup.hamming import DEAR_DISTANCE, Near, cost_text, join, plan
from gpu_dedup.pipeline.exact import Classes
from gpu_dedup.pipeline.footprint import matches_bytes
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.reread import TextItems, normal_texts, reread, sketch_rows
from gpu_dedup.pipeline.survey import BLOCK, Sketcher, Survey
from gpu_dedup.progress import Progress
from gpu_dedup.read.items import shown_text
from gpu_dedup.recipe import PPM, Recipe
from gpu_dedup.report import Level
from gpu_dedup.spool import Numbers, RaggedTable, Table, partition
from gpu_dedup.verify import Verifier

MOST_FAR = 1 << 28  # pairs of fingerprints that level 2 of a cascade looks at, beside those of bands
AGREEMENT_BLOCK = 1 << 16


class Heads:
    """Heads that go into LSH, in keeper order: index = rank.

    rows    global rows
    sketch  their rows in the sketch tables
    """

    def __init__(self, table: Callable[[Any, int | None], Table]) -> None:
        self.rows, self.sketch = Numbers(table), Numbers(table)

    def __len__(self) -> int:
        return len(self.rows)

    def append(self, rows: I64, sketch: I64) -> None:
        self.rows.append(rows)
        self.sketch.append(sketch)

    def finish(self) -> None:
        self.rows.finish()
        self.sketch.finish()


class RankedSignatures:
    """The signature table seen through the ranks of heads."""

    def __init__(self, table: Table, sketch: Numbers) -> None:
        self._table = table
        self._sketch = sketch
        straight = len(table) == len(sketch) and sketch.plain
        self.array: U32 | None = table.array if straight else None

    def take(self, ranks: I64) -> U32:
        out: U32 = self._table.take(self._sketch.take(ranks))
        return out


BARE, SHORT, FEW = 1, 2, 4  # what the sketch of a class says: no shingle, less than one shingle of n units, too few


@dataclass(frozen=True)
class Ranked:
    """What comes of the sketches of all classes.

    heads         those that go into LSH
    without_text  int64, ascending: rows of classes without a shingle
    short         rows whose text has fewer units than a shingle
    """

    heads: Heads
    without_text: I64
    short: int


def rank_heads(
    survey: Survey, sketcher: Sketcher, pool: Pool, batch_bytes: int, found: Classes,
    table: Callable[[Any, int | None], Table],
) -> Ranked:  # fmt: skip
    """Give every class a sketch, reading once more those that nobody sketched, and rank those that have one."""
    sketches, recipe = survey.sketches, sketcher.recipe
    assert sketches is not None
    assert survey.sketch is not None
    missing, carrier = _carriers(survey, found)
    sketch_the_rest(survey, sketcher, pool, batch_bytes, missing, carrier)
    heads = Heads(table)
    says = np.zeros(len(found.heads), np.uint8)  # of heads
    for rows in found.in_order():
        sketch: I64 = survey.sketch.take(rows)
        lacking = np.flatnonzero(sketch < 0)
        if len(lacking):
            sketch[lacking] = carrier[np.searchsorted(missing, rows[lacking])]
        units, kept = sketches.units.take(sketch), sketches.kept.take(sketch)
        says[rows[kept == 0]] |= BARE
        says[rows[(units > 0) & (units < recipe.spec.n)]] |= SHORT
        enough = (kept > 0) & (kept >= recipe.min_shingles)
        heads.append(rows[enough], sketch[enough])
    heads.finish()
    of_copies = says[found.head]
    bare = np.concatenate([np.flatnonzero(says & BARE), found.copies[of_copies & BARE != 0]])
    short = int(np.count_nonzero(says & SHORT)) + int(np.count_nonzero(of_copies & SHORT))
    return Ranked(heads, np.sort(bare), short)


def _carriers(survey: Survey, found: Classes) -> tuple[I64, I64]:
    """Heads (global rows, ascending) that were not sketched themselves, and a sketch of a copy of each, or -1."""
    assert survey.sketch is not None
    parts = [np.zeros(0, np.int64)]
    for start, sketch in survey.sketch.blocks():
        parts.append(np.flatnonzero(found.heads[start : start + len(sketch)] & (sketch < 0)) + start)
    missing = np.concatenate(parts)
    carrier = np.full(len(missing), -1, np.int64)
    for start in range(0, len(found.copies) if len(missing) else 0, BLOCK):
        sketch = survey.sketch.take(found.copies[start : start + BLOCK])
        here = np.flatnonzero(sketch >= 0)
        head = found.head[start : start + BLOCK][here]
        at = np.minimum(np.searchsorted(missing, head), len(missing) - 1)
        there = missing[at] == head
        carrier[at[there]] = sketch[here[there]]
    return missing, carrier


def sketch_the_rest(survey: Survey, sketcher: Sketcher, pool: Pool, batch_bytes: int, heads: I64, carrier: I64) -> None:
    """Read once more and sketch classes that nobody sketched. The sketch tables are finished then.

    heads    int64[c] global rows of class heads, ascending
    carrier  int64[c] a sketch of the class, or -1; filled
    """
    assert survey.sketches is not None
    missing = np.flatnonzero(carrier < 0)
    for rows, sketched in sketch_rows(survey, sketcher, pool, batch_bytes, heads[missing]):
        carrier[missing[np.searchsorted(heads[missing], rows)]] = survey.sketches.rows + np.arange(len(rows))
        survey.sketches.append(sketched)
    survey.sketches.finish()


@dataclass(frozen=True)
class Road:
    """What the search for near copies needs of a run.

    memory   bytes that verification may hold
    threads  that may search near fingerprints at once
    collide  from a number of heads: the threads that may look for buckets at once, and in how many parts
    holds    is told what takes so many bytes, in words, see `Footprint.holds`; tables may move to disk for it
    """

    survey: Survey
    sketcher: Sketcher
    pool: Pool
    batch_bytes: int
    memory: int
    search_memory: int
    threads: int
    collide: Callable[[int], tuple[int, int]]
    table: Callable[[Any, int | None], Table]
    ragged: Callable[[Any], RaggedTable]
    holds: Callable[[str, int, str], None]
    progress: Progress

    def some(self, work: Callable[[int], Any], tables: Iterable[int]) -> Iterable[Any]:
        """work(table) for each, in order, by as many threads as may search at once."""
        return self.pool.ordered(work, tables, self.threads)

    def verifier(
        self, heads: Heads, needed: I64, agreements: Callable[[I64, I64], I64] | None = None, by_rank: bool = False
    ) -> Verifier:
        """A verifier over the heads of the ranks `needed` (ascending), whose texts are read.

        by_rank  heads are known to it by their ranks, else by their places in `needed`
        """
        return self._verifiers(heads, needed, (self.sketcher.recipe,), agreements, by_rank)[0]

    def both_verifiers(self, heads: Heads, needed: I64) -> tuple[Verifier, Verifier]:
        """By Jaccard and by Levenshtein similarity, of a recipe with levels; texts are read once for both. Texts that
        are too long for the latter have no code points there."""
        view = self.sketcher.recipe.bands_view
        one, other = self._verifiers(heads, needed, (view, view.with_(verify="edit")), None, False)
        return one, other

    def _verifiers(
        self, heads: Heads, needed: I64, recipes: tuple[Recipe, ...], agreements: Callable[[I64, I64], I64] | None,
        by_rank: bool,
    ) -> list[Verifier]:  # fmt: skip
        """A verifier for each recipe, of one reading of the texts."""
        survey = self.survey
        count = len(heads) if by_rank else len(needed)
        names = needed if by_rank else np.arange(count, dtype=np.int64)
        sizes = [np.zeros(count, np.int64) for _ in recipes]
        kinds = [recipe.verify for recipe in recipes if recipe.verify in ("exact", "edit") and len(needed)]
        items: dict[str, TextItems] = {}
        if kinds:
            rows = heads.rows.take(needed)
            for recipe, size in zip(recipes, sizes, strict=True):
                for start in range(0, len(needed), BLOCK):
                    here = slice(start, start + BLOCK)
                    if recipe.verify == "exact":
                        assert survey.sketches is not None
                        size[names[here]] = survey.sketches.kept.take(heads.sketch.take(needed[here])) * 8
                    else:
                        size[names[here]] = survey.length.take(rows[here]) * 4
            tables = {kind: self.ragged(np.uint64 if kind == "exact" else np.uint32) for kind in kinds}
            most = 4 * recipes[0].edit_max_chars if len(kinds) > 1 else None
            with self.progress.stage("read candidates again", survey.bytes_of(rows)) as advance:
                items = TextItems.read(
                    survey, self.sketcher, self.pool, self.batch_bytes, tables, names, rows, count, advance, most
                )
        out = []
        backend = self.sketcher.backend
        for recipe, size in zip(recipes, sizes, strict=True):
            own = items.get(recipe.verify)
            # What is in memory anyway is compared where it lies. A GPU takes it in parts that fit there.
            whole = own.whole() if own is not None and isinstance(backend, HostBackend) else None
            out.append(Verifier(recipe, backend, own, size, self.memory, self.pool.ordered, agreements, whole))
        return out


def find_and_decide(road: Road, heads: Heads) -> tuple[Gone, Candidates | Near | Layers]:
    """Candidate pairs by the recipe's method, then the decision which heads go."""
    if road.sketcher.recipe.leveled:
        return by_levels(road, heads)
    return by_prints(road, heads) if road.sketcher.recipe.printed else by_bands(road, heads)


def meet_in_bands(road: Road, heads: Heads) -> Candidates:
    """Pairs that meet in a band and pass the sieve."""
    recipe, backend, tables = road.sketcher.recipe.bands_view, road.sketcher.backend, road.survey.sketches
    assert tables is not None
    assert tables.signatures is not None

    threads, parts = road.collide(len(heads))

    def band_keys(band: int) -> U64:
        column: U64 = tables.keys[band].take(heads.sketch.array)
        return column

    def some(work: Callable[[int], Any], bands: Iterable[int]) -> Iterable[Any]:
        return road.pool.ordered(work, bands, threads)

    def records(band: int) -> Iterator[tuple[U64, U64]]:
        for start, sketch in heads.sketch.blocks():
            keys = tables.keys[band].take(sketch)
            yield keys, np.stack([np.arange(start, start + len(keys), dtype=np.uint64), keys], axis=1)

    def key_parts(band: int) -> Iterator[tuple[I64, U64]]:
        for part in partition(records(band), parts, 2, road.table):
            every = part.slice(0, len(part))
            ranks, keys = every[:, 0].astype(np.int64), np.ascontiguousarray(every[:, 1])
            del every
            part.close()
            yield ranks, keys

    signatures = RankedSignatures(tables.signatures, heads.sketch)
    with road.progress.stage("collide", recipe.bands, unit="bands") as advance:
        candidates = collide(
            band_keys, signatures, len(heads), recipe, backend, some, advance, None if parts == 1 else key_parts
        )
    return candidates


def members_of(m: int, *sides: I64) -> I64:
    """int64, ascending: those of m heads that are named."""
    named = np.zeros(m, np.bool_)
    for side in sides:
        named[side] = True
    return np.flatnonzero(named)


def by_bands(road: Road, heads: Heads) -> tuple[Gone, Candidates]:
    """MinHash: candidates are pairs that meet in a band and pass the sieve.

    What is decided knows heads by their places among those that are in a candidate at all, so that the others take no
    memory.
    """
    recipe, backend = road.sketcher.recipe, road.sketcher.backend
    found = meet_in_bands(road, heads)
    stats, needed = found.stats, members_of(len(heads), found.hi, found.lo)
    words = f"{len(needed):,} texts in {len(found):,} pairs that met"
    road.holds("matches", matches_bytes(recipe, len(needed), len(found)), words)
    candidates = Candidates(np.searchsorted(needed, found.hi), np.searchsorted(needed, found.lo), found.agree, stats)
    del found

    tables = road.survey.sketches
    assert tables is not None
    assert tables.signatures is not None
    signatures = RankedSignatures(tables.signatures, heads.sketch)

    def agreements(left: I64, right: I64) -> I64:
        """Equal slots of pairs that are no candidates, in blocks that stay small."""
        out = np.empty(len(left), np.int64)
        for start in range(0, len(left), AGREEMENT_BLOCK):
            part = slice(start, start + AGREEMENT_BLOCK)
            places, place = np.unique(np.concatenate([left[part], right[part]]), return_inverse=True)
            one, other = np.split(place.astype(np.int64), 2)
            out[part] = backend.agreements(signatures.take(needed[places]), one, other)
        return out

    verifier = road.verifier(heads, needed, agreements)
    with road.progress.stage("verify", len(candidates), unit="pairs") as advance:
        decision = decide(candidates, len(needed), recipe, backend, verifier, advance)
    gone = Gone.of(decision, recipe, needed)
    road.holds("matches", 0, "")
    return gone, Candidates.counted(len(candidates), stats)


def by_prints(road: Road, heads: Heads) -> tuple[Gone, Near]:
    """SimHash: candidates are all pairs whose fingerprints differ in at most `distance` bits."""
    recipe, backend = road.sketcher.recipe, road.sketcher.backend
    prints = fingerprints(road.survey, heads)
    near = near_prints(road, prints, recipe.distance)
    crowd = Crowd(near, len(heads))
    verifier = road.verifier(heads, crowd.heads, by_rank=True)
    with road.progress.stage("verify", len(crowd.heads), unit="texts") as advance:
        decision = decide_crowd(crowd, len(heads), recipe, backend, verifier, advance)
    gone = np.flatnonzero(decision.witness >= 0)
    decision.distance[gone] = backend.hamming_distances(prints, gone, decision.witness[gone])
    return Gone.of(decision, recipe), near


def fingerprints(survey: Survey, heads: Heads) -> U64:
    """uint64[m]: SimHash of every head."""
    assert survey.sketches is not None
    assert survey.sketches.prints is not None
    prints: U64 = survey.sketches.prints.take(heads.sketch.array)
    return prints


@dataclass(frozen=True)
class Layers:
    """What the levels of a cascade found.

    near   documents at level 1's distance; its stats are those of the whole search
    bands  pairs that met in bands
    levels for the report
    """

    near: Near
    bands: Candidates
    levels: list[Level]


def bands_of(found: Candidates | Near | Layers) -> Candidates:
    """What met in bands; nothing where there are none."""
    if isinstance(found, Layers):
        return found.bands
    none = np.zeros(0, np.int64)
    return found if isinstance(found, Candidates) else Candidates(none, none, none, CollideStats())


def by_levels(road: Road, heads: Heads) -> tuple[Gone, Layers]:
    """Cascade. Level 1: fingerprints at `distance` bits or less. Level 2: pairs that meet in bands (or at
    search-distance), up to far-distance bits, with Jaccard and Levenshtein similarity enough.

    Level 2 verifies lazily, see `decide_levels`; of a pair that is asked about Jaccard comes first.
    """
    recipe, backend, m = road.sketcher.recipe, road.sketcher.backend, len(heads)
    prints = fingerprints(road.survey, heads)
    reach = recipe.reach
    found = near_prints(road, prints, reach)
    apart = backend.hamming_distances(prints, found.hi, found.lo)
    near = found.nearer(apart, recipe.distance)
    crowd = Crowd(near, m)
    bands = meet_in_bands(road, heads) if recipe.banded else bands_of(near)
    farther = found.count - near.count
    if farther > MOST_FAR:
        raise RunError(
            f"{farther:,} pairs of texts are {recipe.distance + 1} to {reach} bits apart, over the {MOST_FAR:,} that "
            "level 2 looks at; lower --search-distance, and let bands find them"
        )
    hi, lo = found.farther(apart, recipe.distance)
    packed = np.unique(np.concatenate([pack_pairs(bands.hi, bands.lo), pack_pairs(hi, lo)]))
    hi, lo = unpack_pairs(packed)
    candidates = len(hi)
    bits = backend.hamming_distances(prints, hi, lo)
    in_reach = (bits > recipe.distance) & (bits <= recipe.far_distance)
    hi, lo = hi[in_reach], lo[in_reach]
    within = len(hi)

    judge = _Judge(road, heads, hi, lo)
    with road.progress.stage("level 2", within, unit="pairs") as advance:
        decision = decide_levels(
            crowd, m, Pairs(hi, lo), lambda chosen: judge(chosen, advance), recipe, backend, judge.counts
        )
        advance(within - judge.counts["verified"])
    gone = np.flatnonzero(decision.witness >= 0)
    decision.distance[gone] = backend.hamming_distances(prints, gone, decision.witness[gone])
    assert decision.level is not None
    caught = np.bincount(decision.level[gone], minlength=3)
    action = {False: "remove", True: "flag"}
    levels = [
        Level(1, action[recipe.near_flags], found.stats.compared, near.count, near.count, near.count, int(caught[1])),
        Level(2, action[recipe.far_flags], candidates, within, judge.alike, judge.matched, int(caught[2])),
    ]
    return Gone.of(decision, recipe), Layers(near, Candidates.counted(len(bands), bands.stats), levels)


class _Judge:
    """Level 2 of a cascade: which of its pairs match.

    counts  verified: pairs that were asked about; over_cap: of these, with Jaccard enough and a text too long
    alike   of these, pairs with Jaccard enough; matched: and with Levenshtein similarity enough
    """

    def __init__(self, road: Road, heads: Heads, hi: I64, lo: I64) -> None:
        self._recipe, self._hi, self._lo = road.sketcher.recipe, hi, lo
        self._heads, self._length = heads, road.survey.length
        needed = members_of(len(heads), hi, lo)
        self._one, self._other = np.searchsorted(needed, hi), np.searchsorted(needed, lo)  # as the verifiers know them
        self._jaccard, self._edit = road.both_verifiers(heads, needed)
        self.counts = {"verified": 0, "over_cap": 0}
        self.alike = self.matched = 0

    def _long(self, ranks: I64) -> Bool:
        """bool[q]: more bytes than a text can have that is short enough, at four a code point."""
        length = self._length.take(self._heads.rows.take(ranks))
        return np.asarray(length > 4 * self._recipe.edit_max_chars, np.bool_)

    def __call__(self, chosen: I64, advance: Callable[[int], None]) -> FarMatches:
        recipe, q = self._recipe, len(chosen)
        one, other = self._one[chosen], self._other[chosen]
        shared, union = self._jaccard.measure(NO_PAIRS, one, other)
        alike = np.flatnonzero((union > 0) & (shared * PPM >= recipe.far_jaccard_ppm * union))
        over = self._long(self._hi[chosen[alike]]) | self._long(self._lo[chosen[alike]])
        asked = alike[~over]
        same, longest = self._edit.measure(NO_PAIRS, one[asked], other[asked], recipe.far_edit_ppm)
        long = longest > recipe.edit_max_chars
        good = (longest > 0) & ~long & (same * PPM >= recipe.far_edit_ppm * longest)
        matched, both = np.zeros(q, np.bool_), np.full((2, q), -1, np.int64)
        matched[asked[good]] = True
        both[:, asked[good]] = same[good], longest[good]
        self.counts["verified"] += q
        self.counts["over_cap"] += int(np.count_nonzero(over)) + int(np.count_nonzero(long))
        self.alike += len(alike)
        self.matched += int(np.count_nonzero(good))
        advance(q)
        return FarMatches(matched, shared, union, both[0], both[1])


def near_prints(road: Road, prints: U64, distance: int) -> Near:
    """The Hamming join of the heads, its cost said first where it is high."""
    chosen = plan(len(prints), distance)
    if distance >= DEAR_DISTANCE:
        road.progress.note(cost_text(chosen))
    with road.progress.stage("near fingerprints", None):
        return join(prints, distance, road.sketcher.backend, road.some, memory=road.search_memory)


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
