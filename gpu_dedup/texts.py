"""Texts in memory: duplicates among them, their sketches, the similarity of two; and what a recipe will find and cost.

    result = dedup_texts(frame["text"], Recipe(threshold_ppm=850_000))
    frame[result.keep]                            # pandas, NumPy: a mask
    dataset.select(result.kept_indices)           # Hugging Face datasets

A column goes down the same road as files, so the answer is the one that `dedup` gives for these texts in a JSONL file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_dedup import columns
from gpu_dedup.backend import choose_backend, host_backend, warm
from gpu_dedup.batch import I64, MISSING, ROW_TEXT, U32, Bool, Tape
from gpu_dedup.errors import InputError, RecipeError, RunError
from gpu_dedup.recipe import Recipe
from gpu_dedup.report import Report
from gpu_dedup.run import Run

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import pyarrow as pa

    from gpu_dedup import hamming
    from gpu_dedup.bands import Forecast

EMPTY = 0xFFFFFFFF  # every slot of the sketch of a text without shingles


@dataclass(frozen=True, eq=False)
class Pairs:
    """Matches behind the groups: one for each row that goes (or is flagged), with the row it goes for.

    left, right    int64[p] row and partner: its witness, or, under cluster=connected, the neighbour that linked it
    similarity     float64[p] shared / union; 1.0 for exact copies; NaN where nothing was measured (verify=none)
    shared, union  int64[p] whole numbers behind it; -1 for exact copies and where nothing was measured
    """

    left: I64
    right: I64
    similarity: Any
    shared: I64
    union: I64

    def __len__(self) -> int:
        return len(self.left)


@dataclass(frozen=True, eq=False)
class Result:
    """What became of n texts. Rows are numbered from 0, as in the column.

    keep      bool[n] the row stays (all rows that have a text, under action=flag)
    clusters  int64[n] the row that stands for this one: its witness, or itself where it stays for itself. Rows of one
              group have one number, the row that stays (under action=flag: that would stay). Under keep=none, where no
              row stays for another, the lowest row of the group
    pairs     see `Pairs`
    recipe    settled: bands, rows and the sieve's cut are there
    report    counts, forecast, warnings, times; `print(result.report.summary())`
    """

    keep: Bool
    clusters: I64
    pairs: Pairs
    recipe: Recipe
    report: Report = field(repr=False)
    _rows: I64 = field(repr=False)  # of the log
    _log: Any = field(repr=False)
    _ids: Any = field(repr=False)

    def __len__(self) -> int:
        return len(self.keep)

    @property
    def kept_indices(self) -> I64:
        """int64: rows that stay, ascending; for `take`, `iloc` and `datasets.Dataset.select`."""
        return np.flatnonzero(self.keep)

    @property
    def removals(self) -> pa.Table:
        """One row for each text that goes or is flagged: the columns of removed.parquet, without those of files."""
        return self._log

    def to_arrow(self) -> pa.Table:
        """One row for each text: row, id (where ids were given), keep, cluster, reason, similarity, shared, union.

        reason is empty where the row stays for itself; the last three are about the row and the one that stands for it
        (`cluster`), null where there is none or nothing was counted.
        """
        import pyarrow as pa

        n = len(self)
        at = self._rows
        out: dict[str, Any] = {"row": columns.integers(np.arange(n, dtype=np.int64))}
        if self._ids is not None:
            out["id"] = _as_arrow(self._ids)
        out |= {"keep": columns.flags(self.keep), "cluster": columns.integers(self.clusters)}
        place = np.full(n, -1, np.int64)
        place[at] = np.arange(len(at))
        take = columns.integers(place, place < 0)
        for name in ("reason", "similarity", "shared", "union"):
            out[name] = self._log[name].combine_chunks().take(take)
        return pa.table(out)

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` as a data frame; its rows are in the order of the column, its index is 0 to n - 1."""
        return self.to_arrow().to_pandas()


def _as_arrow(values: Any) -> Any:
    """Ids as an Arrow array; of mixed kinds as text."""
    import pyarrow as pa

    from gpu_dedup.report import id_text

    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array([id_text(value)[0] for value in values], pa.string())


def _recipe(recipe: Any) -> Recipe:
    """The recipe, or the default one. Raises RecipeError for what is none."""
    if not isinstance(recipe, (Recipe, type(None))):  # a threshold in its place, most likely
        raise RecipeError(f"recipe is {recipe!r}, a {type(recipe).__name__}; give Recipe(threshold_ppm=800_000)")
    return recipe or Recipe()


def dedup_texts(
    texts: Any, recipe: Recipe | None = None, run: Run | None = None, *, ids: Any = None, keep_values: Any = None,
    keys: Any = None,
) -> Result:  # fmt: skip
    """Find duplicates in a column of texts.

    texts        a list or tuple, NumPy array (object, str, bytes), pyarrow Array or ChunkedArray (string, large_string,
                 string_view, binary, dictionary), pandas or polars Series, column of a Hugging Face dataset, or what
                 else speaks Arrow's C interface. Bytes are UTF-8. None, NaN and NA are bad rows, as null is in a file:
                 recipe.on_bad_row says what happens to them
    recipe       as for files, but for the names of fields: its text field is this column
    run          machine and memory. progress None shows nothing here, True a bar; overwrite, dry_run,
                 keep_work and fresh are about files and refused
    ids          a column of as many ids, for `Result.removals` alone
    keep_values  a column of as many values, where recipe.keep is max:FIELD or min:FIELD
    keys         a column of as many keys, where recipe.key_field names one

    The answer is that of `dedup` over a JSONL file with one record for each text, on every backend. Texts are read in
    batches, those of candidate pairs twice; nothing is copied that is in Arrow's layout already. The column must not
    change meanwhile.
    Raises InputError for what is no column of text and for bad rows under on_bad_row=error, RecipeError and RunError
    for settings that mean nothing here, and whatever else `dedup` raises.
    """
    from gpu_dedup.pipeline import dedup_column
    from gpu_dedup.pipeline.emit import log_columns
    from gpu_dedup.progress import Progress
    from gpu_dedup.read.memory import column_of, column_source

    recipe, run = _recipe(recipe), run or Run()
    _check(recipe, run)
    keeper = recipe.keep_field
    if keep_values is not None and keeper is None:
        raise RecipeError(f"keep_values mean nothing with keep {recipe.keep}; use keep max:FIELD or min:FIELD, or drop")
    if keeper is not None and keep_values is None:
        if keeper != recipe.id_field or ids is None:
            raise RecipeError(f"keep {recipe.keep} compares values of {keeper!r}; give them as keep_values")
        keep_values = ids
    others = {} if keeper is None else {keeper: keep_values}
    if keys is not None and not recipe.keyed:
        raise RecipeError("keys mean nothing without key_field (and with methods of one pass); name one, or drop keys")
    if recipe.keyed and recipe.key_field is not None:
        if keys is None and recipe.key_field not in (keeper, recipe.id_field if ids is not None else None):
            raise RecipeError(f"key-field {recipe.key_field!r} names what rows are copies by; give its values as keys")
        if keys is not None or recipe.key_field != keeper:
            if recipe.key_field == keeper:
                raise RecipeError(f"keys and keep_values are both {keeper!r}; give one of them")
            others[recipe.key_field] = ids if keys is None else keys
    source = column_source(texts, recipe.texts_from[0], others)
    names = None if ids is None else column_of(ids, "ids")
    if names is not None and len(names) != len(source.texts):
        raise InputError(f"{len(names)} ids for {len(source.texts)} texts; give as many")

    def look_up(rows: I64) -> list[Any]:
        if names is None:
            return [MISSING] * len(rows)
        out: list[Any] = []
        for start in range(0, len(names), 1 << 16):
            inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + (1 << 16))]
            if len(inside):
                values = names.values(start, min(len(names), start + (1 << 16)))
                out += [values[row - start] for row in inside.tolist()]
        return out

    done = dedup_column(source, recipe, run, look_up, Progress(bool(run.progress)))
    outcome, n = done.outcome, len(source.texts)
    logged = np.flatnonzero(outcome.reason)
    log = log_columns(done.recipe, done.survey, outcome, done.kept, done.ids, logged)
    keep = np.zeros(n, bool)
    keep[: len(done.kept)] = done.kept
    return Result(
        keep, _clusters(done.recipe, outcome, n), _pairs(outcome, log, logged), done.recipe, done.report,
        logged, _table(log), ids,
    )  # fmt: skip


def _check(recipe: Recipe, run: Run) -> None:
    if len(recipe.texts_from) > 1:
        raise RecipeError(
            f"text-field {','.join(recipe.texts_from)} names several fields, and a column is one text; "
            "join them before, and drop text_field"
        )
    if recipe.pretokenized is not None:
        raise RecipeError(
            f"pretokenized {recipe.pretokenized!r} names a field of records, and a column is one text for each row; "
            "write the lists to a file, or drop it"
        )
    for name in ("overwrite", "dry_run", "keep_work", "fresh"):
        if getattr(run, name):
            raise RunError(f"{name} is about files, and texts in memory have none; drop it")


def _clusters(recipe: Recipe, outcome: Any, n: int) -> I64:
    if recipe.keep == "none":
        lowest = host_backend("numpy" if n < 1000 else "numba").components(n, outcome.rows, outcome.witness)
        return np.asarray(lowest, np.int64)
    out = np.arange(n, dtype=np.int64)
    out[outcome.rows] = outcome.witness
    return out


def _pairs(outcome: Any, log: dict[str, Any], logged: I64) -> Pairs:
    about = outcome.about(logged)
    there = about.witness >= 0
    near = there & (about.linked >= 0)
    similarity = np.where(near, log["linked_similarity"], log["similarity"])
    right = np.where(near, about.linked, about.witness)
    shared = np.where(near, about.linked_shared, about.shared)
    union = np.where(near, about.linked_union, about.union)
    return Pairs(logged[there], right[there], similarity[there], shared[there], union[there])


def _table(log: dict[str, Any]) -> Any:
    """The log's columns as a table: "none" is null, and those that name files are left out."""
    import pyarrow as pa

    from gpu_dedup.report import log_schema

    arrays = []
    fields = [entry for entry in log_schema() if not entry.name.endswith("file")]
    for entry in fields:
        values = log[entry.name]
        if isinstance(values, np.ndarray) and values.dtype.kind == "i":
            values = columns.integers(values, values < 0)
        arrays.append(columns.column(values).cast(entry.type))
    return pa.table(arrays, schema=pa.schema(fields))


def sketch(texts: Any, recipe: Recipe | None = None, run: Run | None = None) -> U32:
    """Signatures of texts, MinHash or fast sketches, as the search makes them.

    texts    as for `dedup_texts`
    recipe   normaliser, shingle, stop shingles, sketch, seed, bands and rows (or what they are solved from)
    returns  uint32[n, k], k = bands x rows; a text without shingles, or a bad row where recipe.on_bad_row is not
             error, has 0xFFFFFFFF throughout and is like no other

    The share of equal slots of two rows estimates their Jaccard similarity; two texts meet where all slots of one band
    (`rows` neighbours) are equal. Raises RecipeError for a method without MinHash.
    """
    from gpu_dedup.pipeline import settle
    from gpu_dedup.pipeline.pool import Pool
    from gpu_dedup.pipeline.survey import Sketcher
    from gpu_dedup.progress import Progress
    from gpu_dedup.read import open_source
    from gpu_dedup.read.memory import column_source

    recipe, run = _recipe(recipe), run or Run()
    _check(recipe, run)
    if not recipe.banded:
        raise RecipeError(f"method {recipe.method} makes no MinHash sketch; use method minhash")
    recipe = settle(recipe)
    source = column_source(texts, recipe.texts_from[0], {})
    backend, _ = choose_backend(run, source.size)
    warm(backend, Progress(bool(run.progress)).note, fast=recipe.sketch == "fast")
    sketcher = Sketcher.of(recipe, backend)

    def work(chunk: Any) -> U32:
        rows = chunk.parse(backend, recipe.texts_from)
        if rows.errors and recipe.on_bad_row == "error":
            row, reason = rows.errors[0]
            raise InputError(reason, "mend it, or use on_bad_row skip", place=source.where(row))
        out = np.full((len(rows), recipe.slots), EMPTY, np.uint32)
        select = np.flatnonzero(rows.status == ROW_TEXT)
        out[select] = sketcher.make(sketcher.normalise(rows.tape), select).signatures
        return out

    with Pool(run.thread_count) as pool, open_source(source, run.batch_bytes, 0, recipe.texts_from) as reader:
        parts = list(pool.ordered(work, reader))
    return np.concatenate(parts) if parts else np.zeros((0, recipe.slots), np.uint32)


@dataclass(frozen=True)
class Similarity:
    """Likeness of two texts: `shared` of `union`, whole numbers; value = shared / union, 0.0 where there is nothing."""

    shared: int
    union: int

    @property
    def value(self) -> float:
        return self.shared / self.union if self.union else 0.0

    def __float__(self) -> float:
        return self.value


def similarity(one: str | bytes, other: str | bytes, recipe: Recipe | None = None) -> Similarity:
    """True similarity of two texts under a recipe's normaliser and shingles: what verification compares.

    Jaccard of the shingle sets without stop shingles; under verify=edit the code points that stay, of the longer text;
    under method=exact 1 of 1 for equal texts, else 0 of 1.
    Raises InputError for bytes that are not UTF-8, RecipeError where a text is longer than edit_max_chars.
    """
    from gpu_dedup.pipeline.survey import Sketcher
    from gpu_dedup.read.memory import wtf8

    recipe = _recipe(recipe)
    for position, text in enumerate((one, other)):
        if not isinstance(text, (str, bytes)):
            raise InputError(f"text {position + 1} of 2 is {text!r}, a {type(text).__name__}; give a string")
    tape = Tape.of([wtf8(text) if isinstance(text, str) else text for text in (one, other)])
    backend = host_backend("numpy")
    for position, text in enumerate((one, other)):
        if not isinstance(text, str) and not backend.valid_utf8(tape)[position]:
            raise InputError(f"text {position + 1} of 2 is not valid UTF-8; decode it, or mend it")
    if tape.nbytes > 1 << 16:
        backend = host_backend("numba")
        warm(backend, lambda text: None)
    probe = recipe if recipe.method == "exact" or recipe.bands else recipe.with_(bands=1, rows=1)
    sketcher = Sketcher.of(probe, backend)
    normal = sketcher.normalise(tape)
    left, right = np.array([0], np.int64), np.array([1], np.int64)
    if recipe.method == "exact":
        return Similarity(int(normal[0] == normal[1]), 1)
    if recipe.verify == "edit":
        points, offsets = backend.decode(normal)
        longest = int(np.diff(offsets).max())
        if longest > recipe.edit_max_chars:
            raise RecipeError(
                f"a text of {longest:,} code points never matches under edit_max_chars {recipe.edit_max_chars:,}; "
                "raise it"
            )
        same, whole = backend.edit(points, offsets, left, right, 1)
        return Similarity(max(0, int(same[0])), int(whole[0]))
    sets, offsets = sketcher.shingle_sets(normal, np.arange(2, dtype=np.int64))
    shared, union = backend.jaccard(sets, offsets, left, right)
    return Similarity(int(shared[0]), int(union[0]))


@dataclass(frozen=True)
class Explanation:
    """What a recipe will find and cost; `print` gives the text of `gpu-dedup explain`.

    recipe    settled: bands, rows and the sieve's cut are there
    forecast  chance to find a pair, by its true similarity: a list of `bands.Forecast` (similarity, bands: the chance
              to meet, sieve_loss, found), for method=simhash of `hamming.Forecast` (similarity, bits: that differ on
              average, found), for method=cascade of `hamming.LevelForecast`; empty for method=exact
    warnings  what is odd about the recipe, a line each
    """

    recipe: Recipe
    forecast: list[Forecast] | list[hamming.Forecast] | list[hamming.LevelForecast]
    warnings: list[str]
    text: str

    def __str__(self) -> str:
        return self.text


def explain(
    recipe: Recipe | None = None, run: Run | None = None, *, documents: int | None = None, mean_bytes: int = 3000
) -> Explanation:
    """Say what a recipe finds, and what memory, disk and time it takes, without running it.

    documents, mean_bytes  size of the corpus for the cost; without documents a million is an example
    Raises RecipeError where no bands reach the wanted recall.
    """
    from gpu_dedup import bands, outlook
    from gpu_dedup.pipeline import forecast as forecast_of
    from gpu_dedup.pipeline import settle

    settled = settle(_recipe(recipe))
    corpus = None if documents is None else outlook.Corpus.of(documents, mean_bytes)
    text = outlook.explain(settled, run or Run(), corpus)
    forecast = list(forecast_of(settled)) if settled.sketched else []
    return Explanation(settled, forecast, bands.warnings(settled.bands_view) if settled.banded else [], text)
