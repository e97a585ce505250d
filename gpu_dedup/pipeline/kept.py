"""Work of an earlier start: whether it is done already, where it is kept, and for how long."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from gpu_dedup.checkpoint import Checkpoint, folder_of
from gpu_dedup.errors import InputError, shown
from gpu_dedup.pipeline.stream import finish_saving
from gpu_dedup.progress import Progress
from gpu_dedup.read import Source, StandardInput
from gpu_dedup.recipe import STREAMED, Recipe
from gpu_dedup.report import Report
from gpu_dedup.run import Run
from gpu_dedup.write import OutputFolder


def already_done(target: str, sources: list[Source], recipe: Recipe, run: Run) -> Report | None:
    """The report of an earlier run that made just this: same recipe, same files by path, size and time."""
    if not os.path.isdir(target):  # a file or a device: it is refused later, and not read now
        return None
    try:
        report = Report.load(target)
    except InputError:
        return None
    if recipe.weighted and recipe.df_checksum is None:
        # The table follows from the input, and a saved one is there already.
        if run.save_df_table is not None and not os.path.lexists(run.save_df_table):
            return None
        known = report.recipe.get("df_checksum")
        if not isinstance(known, str):
            return None
        recipe = recipe.with_(df_checksum=known)
    made_of = [(entry.path, entry.size) for entry in report.inputs]
    same = (
        report.fingerprint == recipe.fingerprint()
        and made_of == [(source.path, source.size) for source in sources]
        and report.machine.input_times == [source.mtime_ns for source in sources]
        and (run.audit is None or report.audit is not None)
        and report.machine.write == run.write
        and (report.machine.keep_removed or not run.keep_removed)
        # Without a file, rows of earlier runs would have had no say in it; with one, all rows have to be in it.
        and (run.bloom is not None or report.filter is None or not report.filter.before)
        and all(
            entry.problem is not None
            or run.write == "mask"
            or (entry.format == "txt" and not entry.kept)
            or os.path.lexists(os.path.join(target, source.rel))
            for entry, source in zip(report.inputs, sources, strict=True)
        )
    )
    if same and run.bloom is not None:
        # A filter does not list files without rows: they leave nothing in it.
        listed = [entry.content_hash for entry in report.inputs if entry.problem is None and entry.rows]
        same = finish_saving(run.bloom, listed)
    return report if same else None


def work_folder(run: Run, sources: list[Source], folder: OutputFolder | None) -> str:
    """Where work is kept for a next start; '' where it cannot be."""
    if run.work_dir is not None:
        return folder_of(run.work_dir, [source.path for source in sources])
    return folder.kept_folder() if folder is not None else ""


@contextlib.contextmanager
def kept_work(
    recipe: Recipe, run: Run, sources: list[Source], folder: OutputFolder | None, progress: Progress
) -> Iterator[Checkpoint | None]:
    """The folder with what an earlier start has left and the next may find; None where that is not worth it.

    Goes when the run is done. It stays after an error, Ctrl-C or worse: then the same command goes on from there.
    """
    paths = [source.path for source in sources]
    where = work_folder(run, sources, folder)
    small = sum(source.size for source in sources) < run.checkpoint and not run.keep_work
    if recipe.method in STREAMED:  # a pass that keeps nothing of a row has nothing to go on from
        where = ""
    if any(isinstance(source, StandardInput) for source in sources):  # gone by the next start
        where = ""
    if not where or not run.checkpoint or recipe.limit is not None or (small and not os.path.isdir(where)):
        yield None
        return
    kept = Checkpoint(where, run.checkpoint, paths, run.batch_bytes, run.fresh)
    if folder is not None:
        folder.goes_on = True
    done = False
    try:
        yield kept
        done = True
    finally:
        stays = run.keep_work if done else kept.worth_keeping
        if folder is not None:
            folder.goes_on = stays
        if stays and not done:
            progress.note(
                f"{kept.nbytes / 1e9:.2f} GB of finished work stay in {shown(where)}: the same command goes on from "
                "there, --fresh begins anew"
            )
        kept.close(keep=stays)
