"""Weights of SimHash's terms under `weights=tfidf`: a table that was given, or one pass over the heads that counts.

The table is of the heads, one text for each exact class: a licence that stands there five thousand times is one
document, here as in the search. Its checksum settles the recipe.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gpu_dedup.batch import I64, U32
from gpu_dedup.errors import RecipeError, RunError
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.reread import Look, normal_texts, reread
from gpu_dedup.pipeline.survey import Sketcher, Survey
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run
from gpu_dedup.weights import DocumentFrequencies, is_table, terms_key


def given_table(recipe: Recipe, run: Run) -> tuple[Recipe, DocumentFrequencies | None]:
    """The table of --df-table and the recipe with its checksum; None where there is none, and counting is to come.

    Raises RecipeError, RunError, InputError.
    """
    if not recipe.weighted:
        for name, value in (("df-table", run.df_table), ("save-df-table", run.save_df_table)):
            if value is not None:
                raise RunError(f"{name} is for method simhash with weights tfidf; drop it, or choose these")
        return recipe, None
    if run.save_df_table is not None and os.path.isdir(run.save_df_table):
        raise RunError(f"save-df-table {run.save_df_table!r} is a folder; name a file for the table, new or in it")
    if run.save_df_table is not None and os.path.lexists(run.save_df_table) and not is_table(run.save_df_table):
        raise RunError(
            f"save-df-table {run.save_df_table!r}: a file that is no table stands there, and none but a table is ever "
            "replaced; name another"
        )
    if run.df_table is None:
        return recipe, None
    table = DocumentFrequencies.load(run.df_table, terms_key(recipe))
    return checked(recipe, table, run.df_table), table


def checked(recipe: Recipe, table: DocumentFrequencies, place: str) -> Recipe:
    """The recipe with the checksum of its table. Raises RecipeError where it asks for another one."""
    found = table.checksum()
    if recipe.df_checksum not in (None, found):
        raise RecipeError(
            f"{place}: the table has the checksum {found}, and the recipe asks for {recipe.df_checksum}; give the file "
            "of that table with --df-table, or drop --df-checksum"
        )
    return recipe.with_(df_checksum=found)


def count_terms(
    survey: Survey, sketcher: Sketcher, pool: Pool, batch_bytes: int, heads: I64, advance: Callable[[int], None]
) -> DocumentFrequencies:
    """Read the heads once more and count their terms.

    heads    int64[c] global rows, ascending
    advance  is told the bytes of normalised text
    """
    spec = sketcher.recipe.spec
    table = DocumentFrequencies(terms_key(sketcher.recipe))

    def work(look: Look) -> tuple[U32, int, int]:
        normal = normal_texts(survey, sketcher, look)
        cells, documents = sketcher.backend.cells(normal, look.select, spec.unit_code, spec.n, sketcher.stop)
        return cells, documents, survey.bytes_of(look.wanted)

    for cells, documents, nbytes in reread(survey, sketcher, pool, batch_bytes, heads, work, in_order=False):
        table.add(sketcher.backend, cells, documents)
        advance(nbytes)
    return table
