"""What a recipe will find and what it will cost, worked out before a run; and the similarity of two texts.

Everything here is arithmetic on the recipe, and the text shows the arithmetic. Only the rates of
pipeline/estimate.py are measurements; they say on which machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_dedup import bands, hamming
from gpu_dedup.batch import Tape
from gpu_dedup.bloom import rate_text, shape_of
from gpu_dedup.errors import InputError, RecipeError
from gpu_dedup.pipeline import estimate
from gpu_dedup.pipeline.estimate import Corpus as Corpus  # for whoever asks `explain`
from gpu_dedup.progress import bytes_text, seconds_text
from gpu_dedup.recipe import PPB, PPM, STREAMED, Recipe, ShingleSpec
from gpu_dedup.report import describe, few, share_text
from gpu_dedup.run import Run

# Fields that a comparison of two texts depends on.
COMPARED = (
    "method", "distance", "normalize", "strip", "max_chars", "shingle", "threshold_ppm", "recall_ppm", "num_perm",
    "bands", "rows",
)  # fmt: skip
SHINGLES = (
    "token:1", "token:2", "token:3", "token:5", "char:4", "char:5", "char:8", "char:12", "char:24", "code:5",
)  # fmt: skip
TEXT_LIMIT = 64 << 20  # bytes of a file that --compare reads
EDIT_LIMIT = 20_000  # code points up to which Levenshtein similarity is worked out here


EXAMPLE = Corpus.of(1_000_000, 3000)


def name_text_field(inputs: Sequence[str], recipe: Recipe) -> tuple[Recipe, str]:
    """The recipe with its text field as a run over these inputs takes it, and words about it if that is a guess."""
    from gpu_dedup.pipeline import name_text_field
    from gpu_dedup.read import discover

    return name_text_field(recipe, discover(list(inputs), None, None, recipe.format, recipe.lines))


def look_at(inputs: Sequence[str], recipe: Recipe, run: Run) -> Corpus:
    """Guess the documents and bytes of text of files from the beginnings of some of them."""
    from gpu_dedup.read import discover

    return estimate.look_at(discover(list(inputs), None, None, recipe.format, recipe.lines), recipe, run)


def proposed_capacity(corpus: Corpus) -> int:
    """A capacity for the rows of a corpus, which were guessed: half as many again, in two figures rounded up."""
    rows = max(1, corpus.documents * 3 // 2)
    unit = int(10 ** max(0, len(str(rows)) - 2))
    return -(-rows // unit) * unit


def explain(recipe: Recipe, run: Run, corpus: Corpus | None) -> str:
    """The text of `gpu-dedup explain`."""
    from gpu_dedup.pipeline import settle

    return "\n".join(_explain(settle(recipe), run, corpus)) + "\n"


def _explain(recipe: Recipe, run: Run, corpus: Corpus | None) -> Iterator[str]:
    values = recipe.as_dict()
    yield f"{describe(values)}"
    changed = [f"{name.replace('_', '-')} {_value(name, values[name])}" for name in values if _given(recipe, name)]
    if changed:
        yield "with " + ", ".join(changed)
    if recipe.weighted and recipe.df_checksum is None:
        yield "recipe: its fingerprint holds the checksum of its document frequencies, which are still to be counted"
    else:
        yield f"recipe {recipe.fingerprint()}"
    yield ""
    if recipe.leveled:
        yield from _levels(recipe, corpus or EXAMPLE)
        yield ""
    elif recipe.banded:
        yield from _curve(recipe)
        yield ""
    elif recipe.printed:
        yield from _distances(recipe, corpus or EXAMPLE)
        yield ""
    elif recipe.method == "exact":
        yield "Rows whose normalised texts are equal form a class, by a digest of 128 bits and the length; one stays."
        yield ""
    if recipe.method in STREAMED:
        yield from _filter(recipe)
        yield ""
    yield from _cost(recipe, run, corpus)
    refused = estimate.refusal(recipe, run, corpus) if corpus is not None else ""
    if refused:
        yield f"warning: {refused}"
    if recipe.method in STREAMED:
        shape, tables = shape_of(recipe)
        if shape.nbytes * tables > run.memory_bytes:
            yield (
                f"warning: the filter takes {bytes_text(shape.nbytes * tables)}, over --memory "
                f"{bytes_text(run.memory_bytes)}, and the run will stop; raise --memory, lower --capacity, or raise "
                "--fp-rate"
            )
    for warning in bands.warnings(recipe.bands_view) if recipe.banded else []:
        yield f"warning: {warning}"


def _given(recipe: Recipe, name: str) -> bool:
    """True for fields that differ from the default and are not in the first line."""
    first_line = (
        "method",
        "shingle",
        "threshold_ppm",
        "bands",
        "rows",
        "distance",
        "weights",
        "top_terms",
        "sketch",
        "keep",
        "capacity",
    )
    if name in (*first_line, "fp_rate_ppb", "sieve_cut"):
        return False
    return bool(getattr(recipe, name) != getattr(Recipe(method=recipe.method), name))


def _value(name: str, value: Any) -> str:
    if name.endswith("_ppm"):
        return share_text(value)
    if isinstance(value, list):
        return f"({len(value)} texts)" if name in ("stop_shingles", "strip") else ",".join(value) or "none"
    return str(value)


def _curve(recipe: Recipe) -> Iterator[str]:
    """The S-curve as numbers and bars."""
    cut = bands.cut_of(recipe)
    b, r, slots = recipe.bands, recipe.rows, recipe.slots
    then = ", then the sieve" if recipe.method == "minhash" else ""
    yield f"Chance that a pair of texts is found, by its true similarity s: 1 - (1 - s^{r})^{b}{then}."
    yield ""
    yield "     s   meets  sieve loses   found"
    threshold = recipe.threshold_ppm / PPM
    shown = False
    for line in bands.forecast(recipe):
        if not shown and line.similarity > threshold + 1e-9:
            shown = True
            if abs(line.similarity - 0.05 - threshold) > 1e-9:
                yield f"  {threshold:<6g}{'-- threshold ':-<70}"
        mark = "  <- threshold" if abs(line.similarity - threshold) < 1e-9 else ""
        bar = "#" * round(40 * line.found)
        text = f"  {line.similarity:.2f}  {_percent(line.bands):>6}  {_percent(line.sieve_loss):>11}"
        yield f"{text}  {_percent(line.found):>6}  {bar}{mark}".rstrip()
    yield ""
    if cut:
        lost = bands.sieve_loss(threshold, slots, cut)
        yield f"Sieve: a pair that meets is verified if {cut} of its {slots} slots agree; {_percent(lost)} of pairs at"
        yield f"the threshold {share_text(recipe.threshold_ppm)} have fewer."
    elif recipe.method == "lshbloom":
        yield "Not verified: the later of two rows that meet goes, however unlike; the log calls it probabilistic."
        return
    else:
        yield "Sieve: none; every pair that meets goes on."
    yield {
        "exact": "Verified by the true Jaccard similarity of the shingle sets: no false positives.",
        "edit": "Verified by the Levenshtein similarity of the normalised texts. The curve is for Jaccard similarity.",
        "signature": "Verified by equal slots alone: some removals are wrong, the log calls them probabilistic.",
        "none": "Not verified: every pair that meets is a match, however unlike; the log calls them probabilistic.",
    }[recipe.verify]


def _filter(recipe: Recipe) -> Iterator[str]:
    """The filter: what it takes, and what its blocks cost."""
    shape, tables = shape_of(recipe)
    assert recipe.capacity is not None
    each = recipe.fp_rate_ppb // tables
    per_key = shape.blocks * 512 / recipe.capacity
    flat = math.log(PPB / each) / math.log(2) ** 2
    rate = rate_text(recipe.fp_rate_ppb / PPB)
    if recipe.method == "bloom":
        what = recipe.key_field or "+".join(recipe.texts_from)
        yield f"A row goes if a Bloom filter has seen its {what} before, or by chance says so; its witness is unknown."
    else:
        yield f"A row goes if the Bloom filter of any of {tables} bands has seen its key; every row leaves its keys."
    yield f"  capacity  {recipe.capacity:>16,}   different rows; more of them end the run (--on-full)"
    yield f"  rate      {rate:>16}   of new rows taken for seen at capacity" + (
        f": {rate_text(each / PPB)} in each band" if tables > 1 else ""
    )
    yield f"  hashes k  {shape.hashes:>16,}   bits a key, all in one block of 512"
    bits = f"{shape.blocks * 512:,} bits" + (f" in each of {tables} bands" if tables > 1 else "")
    yield f"  blocks m  {shape.blocks:>16,}   {bits}; {per_key:.1f} a key, without blocks {flat:.1f}"
    yield f"  memory    {bytes_text(shape.nbytes * tables):>16}   {shape.nbytes * tables:,} bytes"
    wrong = shape.wrong(0, recipe.capacity) * tables
    yield f"  wrong     {few(wrong):>16}   new rows expected to go by chance while it fills to capacity"


def _levels(recipe: Recipe, corpus: Corpus) -> Iterator[str]:
    """What each level of a cascade finds."""
    d, far, view, reach = recipe.distance, recipe.far_distance, recipe.bands_view, recipe.reach
    b, r, cut = recipe.bands, recipe.rows, bands.cut_of(view) if recipe.banded else 0
    jaccard, edit = share_text(recipe.far_jaccard_ppm), share_text(recipe.far_edit_ppm)
    verb = {False: "goes", True: "is flagged"}
    key = recipe.key_field
    yield f"Level 0: rows of equal {key if key else 'text'}, behind a Bloom filter of some 10 bits a row; one stays."
    yield f"Level 1: a text {verb[recipe.near_flags]} that is {d} bits or less from one before it; not verified."
    if far == d:
        yield "Level 2: none, as far-distance is distance."
    else:
        goes = verb[recipe.far_flags]
        yield f"Level 2: a text {goes} that is {d + 1} to {far} bits from one before, Jaccard {jaccard}"
        yield f"and edit similarity {edit}. Its pairs come from " + (
            f"fingerprints to {reach} bits: no bands are needed."
            if not recipe.banded
            else f"{b} bands x {r} rows" + (f", and from fingerprints to {reach} bits." if reach > d else ".")
        )
    yield "Chance by the true Jaccard similarity s, before the edit similarity of level 2:"
    yield ""
    yield f"     s    level 1  {f'{d + 1} to {far} bits':>11}  in bands  level 2      found"
    curve = [(line.similarity, 0.0) for line in hamming.forecast(d)]
    if recipe.banded:
        curve = [(line.similarity, line.found) for line in bands.forecast(view)]
    for line in hamming.level_forecast(curve, d, reach, far, recipe.far_jaccard_ppm / PPM):
        bar = "#" * round(40 * line.found)
        row = f"  {line.similarity:.2f}  {_percent(line.near):>9}  {_percent(line.between):>11}"
        row += f"  {_percent(line.bands):>8}  {_percent(line.far):>7}"
        yield f"{row}  {_percent(line.found):>9}  {bar}".rstrip()
    yield ""
    yield "Bits by the formula of `explain --method simhash`: texts of equal length with many shingles; bands and bits"
    yield "of a pair taken as independent."
    if cut:
        yield f"Sieve: a pair that meets is looked at if {cut} of its {recipe.slots} slots agree."
    chosen = hamming.plan(corpus.documents, reach)
    if chosen.tables:
        yield f"Search: {hamming.cost_text(chosen)}."


def _distances(recipe: Recipe, corpus: Corpus) -> Iterator[str]:
    """The curve of a distance, and the tables that find every pair within it."""
    d = recipe.distance
    yield f"Chance that the fingerprints of two texts differ in at most {d} of 64 bits, by their true similarity s."
    yield "Each bit differs with chance p = arccos(2 s / (1 + s)) / pi; the number of them is binomial (64, p)."
    yield ""
    yield f"     s  bits that differ  {d} or less"
    for line in hamming.forecast(d):
        bar = "#" * round(40 * line.found)
        yield f"  {line.similarity:.2f}  {line.bits:>16.1f}  {_percent(line.found):>9}  {bar}".rstrip()
    yield ""
    yield "This holds for texts of equal length with many shingles. Where one is longer, fewer differ at the same s:"
    half = hamming.chance_within(0.5, d, 0.5)
    yield f"of a text and a half of it (s = 0.5), {64 * hamming.bit_chance(0.5, 0.5):.1f} of 64, and {_percent(half)}"
    yield f"of such pairs are within {d}. Few shingles make it vary more."
    yield "Measured beside this formula: benchmarks/bench_hamming.py."
    yield ""
    chosen = hamming.plan(corpus.documents, d)
    if chosen.tables:
        yield f"Search: all pairs within {d} bits, with no cap."
        yield f"Cost: {hamming.cost_text(chosen)}."
    else:
        yield f"Search: all pairs within {d} bits; texts of equal fingerprints are grouped."
    yield {
        "exact": "Verified by the true Jaccard similarity of the shingle sets: no false positives.",
        "edit": "Verified by the Levenshtein similarity of the normalised texts. The curve is for Jaccard similarity.",
        "none": "Not verified: the distance alone decides; some removals are wrong, the log calls them probabilistic.",
    }[recipe.verify]
    if recipe.weighted:
        yield "Weights: a shingle's count times its rarity among the different texts, 16.16 fixed point."
        yield "That costs a pass: these texts are read again to count, and again for their fingerprints; neither with"
        yield "--df-table. The curve is for weights that are all alike."
    if recipe.verify == "exact":
        s = recipe.threshold_ppm / PPM
        yield (
            f"Of pairs at the threshold {share_text(recipe.threshold_ppm)} it finds "
            f"{_percent(hamming.chance_within(s, d))}; for most of them use --method minhash."
        )


def _percent(share: float) -> str:
    percent = 100 * share
    if percent == 0 or percent >= 99.95:
        return f"{percent:.0f} %" if percent in (0, 100) else ">99.9 %"
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.2g} %" if percent >= 1e-4 else "~0 %"


def _cost(recipe: Recipe, run: Run, corpus: Corpus | None) -> Iterator[str]:
    given = corpus is not None
    corpus = corpus or EXAMPLE
    mean = corpus.text_bytes / corpus.documents
    what = "Cost" if given else "Cost, for example"
    yield f"{what}: {corpus.documents:,} documents of {mean:,.0f} bytes, {bytes_text(corpus.text_bytes)} of text."
    if corpus.guess:
        yield f"  ({corpus.guess})"
    yield ""
    memory = estimate.memory_of(recipe, run, corpus)
    for line in memory.lines:
        yield f"  {line.name:<10}{bytes_text(line.bytes):>9}   {line.formula}"
    what = "and ids of rows that go" if recipe.method in STREAMED else "at the worst moment, and what matches take"
    yield f"  {'memory':<10}{bytes_text(memory.bytes):>9}   {what}"
    yield ""
    disk = estimate.disk_lines(recipe, run, corpus, memory.spilled)
    for line in disk:
        yield f"  {line.name:<10}{bytes_text(line.bytes):>9}   {line.formula}"
    where = "all but the output in the work folder" if len(disk) > 1 else "no work folder"
    if recipe.near and recipe.verify in ("exact", "edit"):
        where += "; more for shingles of texts that meet, where they do not fit in memory"
    yield f"  {'disk':<10}{bytes_text(sum(line.bytes for line in disk)):>9}   {where}"
    yield ""
    times = estimate.time_lines(recipe, run, corpus)
    for name, formula, seconds in times:
        yield f"  {name:<10}{seconds_text(seconds):>9}   {formula}"
    rates = estimate.rates_of(run)
    total = sum(seconds for _, _, seconds in times)
    threads = f"{run.thread_count} {'thread' if run.thread_count == 1 else 'threads'}"
    yield f"  {'time':<10}{seconds_text(total):>9}   with {threads}, where the disks keep up"
    if recipe.near and recipe.verify in ("exact", "edit"):
        most = corpus.text_bytes / rates.again / run.thread_count
        rate = bytes_text(rates.again)
        yield f"  {'verify':<10}{seconds_text(most):>9}   more if every text meets another, at {rate}/s"
    yield ""
    yield f"Rates: {rates.machine}."
    yield "They differ by machine, language and units."


# ---------------------------------------------------------------------------------------------------------------------
# Two texts.


def read_text(path: str) -> str:
    """The text of a file, as `--compare` takes it. Raises InputError for what is no text."""
    try:
        if os.path.getsize(path) > TEXT_LIMIT:
            raise InputError(f"{path}: over {TEXT_LIMIT >> 20} MiB; --compare is for single texts")
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; --compare takes two text files, --texts two texts") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; convert it to UTF-8") from None


@dataclass(frozen=True)
class Compared:
    """Similarity of two texts by one kind of shingle: shared / union, whole numbers."""

    shingle: str
    left: int
    right: int
    shared: int
    distance: int = 64  # bits in which the SimHashes differ

    @property
    def union(self) -> int:
        return self.left + self.right - self.shared

    @property
    def similarity(self) -> float:
        return self.shared / self.union if self.union else 0.0

    def matches(self, threshold_ppm: int) -> bool:
        return self.union > 0 and self.shared * PPM >= threshold_ppm * self.union


def similarity(one: str, other: str, recipe: Recipe, shingles: Sequence[str]) -> list[Compared]:
    """Jaccard similarity of two texts by several shingles, under the recipe's normaliser."""
    import numpy as np

    from gpu_dedup.backend import host_backend
    from gpu_dedup.normalise import Normaliser

    backend = host_backend("numpy")
    tape = Normaliser.of(recipe, backend)(Tape.of([one, other]), backend)
    select = np.arange(2, dtype=np.int64)
    out = []
    for name in shingles:
        spec = ShingleSpec.parse(name)
        hashes, offsets = backend.shingle_sets(tape, select, spec.unit_code, spec.n, np.zeros(0, np.uint64))
        left, right = hashes[offsets[0] : offsets[1]], hashes[offsets[1] : offsets[2]]
        shared = len(np.intersect1d(left, right, assume_unique=True))
        prints = backend.simhash(hashes, offsets)
        apart = int(backend.hamming_distances(prints, select[:1], select[1:])[0]) if len(left) and len(right) else 64
        out.append(Compared(name, len(left), len(right), shared, apart))
    return out


def edit_similarity(one: str, other: str, recipe: Recipe) -> tuple[int, int] | None:
    """(equal, longest) code points of the normalised texts under Levenshtein; None for long texts."""
    import numpy as np

    from gpu_dedup.backend import host_backend
    from gpu_dedup.normalise import Normaliser

    if max(len(one), len(other)) > EDIT_LIMIT:
        return None
    backend = host_backend("numpy")
    points, offsets = backend.decode(Normaliser.of(recipe, backend)(Tape.of([one, other]), backend))
    kernel = backend.kernels["edit"]
    same, longest = kernel.edit(points, offsets, np.array([0], np.int64), np.array([1], np.int64), 1)
    return (max(0, int(same[0])), int(longest[0])) if int(longest[0]) else None


def compare(one: str, other: str, recipe: Recipe, shingle_given: bool) -> str:
    """The text of `gpu-dedup explain --compare`: similarity of two texts by several shingles."""
    from gpu_dedup.pipeline import settle

    if not recipe.near or recipe.leveled:
        raise RecipeError(f"method {recipe.method} has no one similarity to compare texts by; drop --method")
    recipe = settle(recipe)
    shape = f"distance {recipe.distance}" if recipe.printed else f"{recipe.bands} bands x {recipe.rows} rows"
    last = "distance" if recipe.printed else "   found"
    names = list(SHINGLES)
    if recipe.shingle not in names:
        names.append(recipe.shingle)
    threshold = share_text(recipe.threshold_ppm)
    lines = [
        f"normalize {','.join(recipe.steps) or 'none'}; threshold {threshold}; {shape}",
        "",
        f"  shingle    first  second  shared   union  similarity  {last}",
    ]
    for result in similarity(one, other, recipe, names):
        alike = result.matches(recipe.threshold_ppm) or (recipe.printed and recipe.verify == "none")
        if recipe.printed:
            found = str(result.distance) if result.left and result.right else "-"
            alike = alike and result.distance <= recipe.distance
        else:
            assert recipe.bands is not None
            assert recipe.rows is not None
            found = _percent(bands.chance(result.similarity, recipe.bands, recipe.rows))
        mark = "a copy" if alike else ""
        if result.shingle == recipe.shingle:
            mark += (" " if mark else "") + ("<- yours" if shingle_given else "<- default")
        line = (
            f"  {result.shingle:<9}{result.left:>7,}{result.right:>8,}{result.shared:>8,}{result.union:>8,}"
            f"{result.similarity:>12.4f}{found:>10}  {mark}"
        )
        lines.append(line.rstrip())
    edit = edit_similarity(one, other, recipe)
    if edit is not None:
        same, longest = edit
        mark = "a copy under --verify edit" if same * PPM >= recipe.threshold_ppm * longest else ""
        lines.append(f"  {'edit':<9}{'':>15}{same:>8,}{longest:>8,}{same / longest:>12.4f}{'':>10}  {mark}".rstrip())
    lines += [
        "",
        (
            "distance: bits of 64 in which the fingerprints differ."
            if recipe.printed
            else "found: the chance that banding brings such a pair together."
        )
        + " first, second: different shingles of each text.",
    ]
    if edit is not None:
        lines.append("edit: code points that stay, of the longer text.")
    return "\n".join(lines) + "\n"
