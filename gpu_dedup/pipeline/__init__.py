"""The order of the stages; nothing else in this package knows it.

read -> normalise -> digest -> sketch                 survey   (first pass over the input)
key classes, where rows have keys -> their first rows  sieve   (level 0; the others are done with)
exact classes -> heads in keeper order                keep
document frequencies, where SimHash weighs by them    terms    (heads are read again, unless a table is given)
band keys -> sort & collide -> sieve -> verify        near     (chosen rows are read again)
  or fingerprints -> Hamming join -> verify
cluster -> outcome of every row                       outcome
methods of one pass: digest or bands -> Bloom filter  stream   (inside the first pass; the three steps above fall away)
audit, where asked for (sampled rows against all)     recount
write + log + report                                  emit     (second pass over the input)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_dedup import bands, bloom, hamming, page
from gpu_dedup.backend import Backend, HostBackend, choose_backend, count_gpus, host_backend, warm, warm_csv
from gpu_dedup.batch import I64, ROW_BAD, ROW_BLANK, ROW_TEXT, Bool
from gpu_dedup.checkpoint import Checkpoint, decision_key, first_pass_key, folder_of
from gpu_dedup.cluster import Gone
from gpu_dedup.collide import Candidates
from gpu_dedup.errors import InputError, RecipeError, RunError, shown
from gpu_dedup.hamming import Near
from gpu_dedup.keys import NO_KEY
from gpu_dedup.pipeline import estimate
from gpu_dedup.pipeline.emit import Emitted, Ids, Target, emit, wanted_ids
from gpu_dedup.pipeline.exact import SORT, Classes, find_classes, texts_of
from gpu_dedup.pipeline.figures import Groups, likeness
from gpu_dedup.pipeline.footprint import Footprint, ahead_of, batch_of, gone_bytes, readers_of, verify_of
from gpu_dedup.pipeline.near import Heads, Layers, Road, bands_of, common_shingles, find_and_decide, rank_heads
from gpu_dedup.pipeline.outcome import BLOOM, REASONS, STAYS, Outcome, assemble, join_keys, keep_mask
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.recount import audit_rows, check_audit
from gpu_dedup.pipeline.resume import Resume, Saver, load_decision, save_decision
from gpu_dedup.pipeline.sieve import Sieved, may_meet
from gpu_dedup.pipeline.stream import Stream, finish_saving, open_filter, stream_outcome
from gpu_dedup.pipeline.survey import Sketcher, Survey, Surveyor
from gpu_dedup.pipeline.terms import checked, count_terms, given_table
from gpu_dedup.pipeline.upload import RemoteFolder
from gpu_dedup.progress import Progress
from gpu_dedup.read import STANDARD, Source, StandardInput, discover, fields_here, first_fields, guess_text_field
from gpu_dedup.read.remote import is_remote
from gpu_dedup.recipe import PPM, STREAMED, Recipe
from gpu_dedup.report import (
    BAD_ROWS_LISTED,
    Audit,
    BadRow,
    Collisions,
    Group,
    HeavyBucket,
    InputFile,
    Level,
    Member,
    Report,
    Verification,
    share_text,
    short_texts_warning,
)
from gpu_dedup.run import Run
from gpu_dedup.spool import Budget, RaggedTable, Table
from gpu_dedup.weights import DocumentFrequencies
from gpu_dedup.write import OutputFolder, spool, standard_output

if TYPE_CHECKING:
    from gpu_dedup.read.memory import ColumnSource

# The size of an input that is tiny in bytes is guessed by these factors; bytes say nothing of how many rows will meet.
UNPACKED = {"gz": 8, "zst": 50, "parquet": 8, "arrow": 2}
FEW_ROWS = 400  # with more of them NumPy is not quick enough behind the first pass
SEARCH_MEMORY = 256 << 20  # the least that the search for near fingerprints may take
GUARD_FROM_ROWS = 1000  # --max-removed does not judge smaller inputs


def settle(recipe: Recipe) -> Recipe:
    """The recipe with its integers solved: bands, rows, the sieve's cut. Raises RecipeError where there are none."""
    if recipe.banded and recipe.bands is None:
        b, r = bands.solve(recipe.bands_view.threshold_ppm, recipe.recall_ppm, recipe.num_perm)
        recipe = recipe.with_(bands=b, rows=r)
    if recipe.method in STREAMED:
        bloom.shape_of(recipe)  # refuses what no filter can be
    if not recipe.banded or not recipe.near:
        return recipe
    if recipe.sieve_cut is None:
        recipe = recipe.with_(sieve_cut=bands.sieve_cut(recipe.bands_view.threshold_ppm, recipe.slots)[0])
    return recipe


def forecast(recipe: Recipe) -> Sequence[Any]:
    """The chance to find a pair by its similarity, of a settled recipe whose method looks for near copies."""
    if not recipe.banded:
        return hamming.forecast(recipe.distance)
    curve = bands.forecast(recipe.bands_view)
    if not recipe.leveled:
        return curve
    reach = recipe.distance if recipe.search_distance is None else recipe.search_distance
    points = [(line.similarity, line.found) for line in curve]
    return hamming.level_forecast(points, recipe.distance, reach, recipe.far_distance, recipe.far_jaccard_ppm / PPM)


def name_text_field(recipe: Recipe, sources: Sequence[Source]) -> tuple[Recipe, str]:
    """The recipe with its text field, and words about it if that is a guess other than `text`."""
    if recipe.text_field or recipe.pretokenized is not None or (recipe.key_field is not None and not recipe.keyed):
        return recipe, ""
    guess = guess_text_field(sources)
    if guess is None:
        return recipe, ""
    shown = ascii(guess.field)[1:-1]
    return recipe.with_(text_field=(guess.field,)), (
        f"no field text: took {shown}, {guess.why}; name another with --text-field"
    )


def _unpacked(source: Source) -> int:
    """A guess of the bytes of a file once decompressed."""
    return source.size * UNPACKED.get(source.compression or source.format, 1)


def dedup(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    output: str | os.PathLike[str] | None,
    recipe: Recipe | None = None,
    run: Run | None = None,
    progress: Progress | None = None,
    *,
    processes: int | None = None,
) -> Report:
    """Remove duplicates from files; write the surviving rows, a log of the removed ones and a report below `output`.

    inputs   files, folders and globs, in the order that counts for keep=first; a lone one need not be in a list
             (also URLs, by fsspec); `-` is standard input, JSON lines unless recipe.format says otherwise
    output   a new or empty folder (also a URL); None only with run.dry_run; `-` sends the rows to standard output, once
             all is decided, and log and report to run.report if it names a folder
    processes  first pass on a CPU in so many processes, each with its share of the files. For what spreads a run over
             machines and for tests: on one machine threads do the same for less. Several GPUs are run.gpus
    Raises UserError for what the user can mend: nothing is written then, and what was begun is taken away.
    """
    started = time.time()
    recipe = settle(recipe or Recipe())
    run = run or Run()
    run = replace(run, batch_bytes=batch_of(run))
    progress = progress or Progress(run.progress)
    if output is None and not run.dry_run:
        raise RunError("no output folder; name one with -o DIR, or pass --dry-run")
    if run.audit is not None:
        check_audit(recipe)
    _check_filter(recipe, run)
    target = None if output is None else os.fsdecode(output)
    if isinstance(inputs, (str, bytes, os.PathLike)):
        inputs = [inputs]
    names = [os.fsdecode(path) for path in inputs]
    passed_over: list[str] = []
    place = _check_output(target, recipe, run)  # folder that gets anything at all
    recipe, table = given_table(recipe, run)
    with contextlib.ExitStack() as stack:
        away = None
        if place is not None and is_remote(place):  # made here, and sent when it is complete
            away = RemoteFolder(place, run.overwrite)
            away.check()
            staging = _private_folder(run.work_dir)
            stack.callback(shutil.rmtree, staging, True)
            place = os.path.join(staging, "out")
        folder = None if place is None else OutputFolder(place, [], run.overwrite)
        spooled = None
        if STANDARD in names:
            if folder is not None:
                folder.check()
            spooled = _spool(stack, names, run, None if run.dry_run else folder, progress)
        sources = discover(
            names, None if target == STANDARD else target, passed_over, recipe.format, recipe.lines, spooled
        )
        _check_fields(recipe, sources)
        recipe, guessed = name_text_field(recipe, sources)
        if guessed:
            progress.note(guessed)
        rows_to = None
        if target == STANDARD:
            _check_stream(sources)
            rows_to = standard_output()
        guess = sum(_unpacked(source) for source in sources)
        again = folder is not None and rows_to is None and not run.overwrite and not run.again
        if folder is not None and again and (before := _already_done(folder.path, sources, recipe, run)):
            progress.note("already done: the output is of this input and this recipe; --overwrite makes it again")
            folder.tidy()  # after a run that was killed when it had nothing left to do but clean up
            if not run.keep_work:
                shutil.rmtree(_work_folder(run, sources, folder), ignore_errors=True)
            return before
        backend, why = choose_backend(run, guess)
        gpus = count_gpus(run, backend, len(sources), guess)
        if processes is not None and processes < 1:
            raise RunError(f"processes {processes} is less than 1")
        if processes is not None and gpus:
            raise RunError(
                f"processes {processes} are for a CPU, and this run is on a GPU; give gpus, or backend numba"
            )
        if folder is not None:
            folder.expect([] if rows_to is not None else [source.rel for source in sources])
            if run.dry_run:
                folder.check()
                folder = None
            elif not spooled or run.work_dir is not None:
                folder.goes_on = os.path.isdir(_work_folder(run, sources, folder)) and recipe.limit is None
                stack.enter_context(folder)
        kept = stack.enter_context(_kept_work(recipe, run, sources, folder, progress))
        host = backend if isinstance(backend, HostBackend) else None
        for line in estimate.brief(sources, recipe, run, host, guess, _places(run, folder, kept)):
            progress.note(line)
        job = _job(stack, recipe, run, backend, progress, folder)
        done = _search(job, why, sources, gpus, processes or 1, kept, table)
        recipe, survey, outcome = job.recipe, done.survey, done.found.outcome
        groups = Groups.of(recipe, outcome)
        emitted = emit(
            survey, done.sketcher, job.pool, run.batch_bytes, outcome,
            Target(folder, rows_to, run.write == "mask", run.keep_removed), progress, recipe.fingerprint(),
            Ids(wanted_ids(outcome, groups.rows), groups.excerpts, job.table), kept, verify_of(run),
        )  # fmt: skip
        report = _report(job, done, groups, emitted, started, target)
        report.warnings += [*([guessed] if guessed else []), *_left_out(passed_over)]
        report.warnings += _without_ids(recipe, survey, emitted)
        with done.stream.saving() if done.stream is not None else contextlib.nullcontext():
            if folder is not None:
                folder.write_text(page.PAGE, page.render(report))
                folder.commit(report)
            if folder is not None and away is not None:
                with progress.stage("send", None) as advance:
                    away.send(folder.path, advance)
    return report


def _places(run: Run, folder: OutputFolder | None, kept: Checkpoint | None) -> estimate.Place:
    """Where this run writes."""
    output = None if folder is None else folder.path
    work = kept.folder if kept is not None else run.work_dir or output or tempfile.gettempdir()
    return estimate.Place(work, kept is not None, 0 if kept is None else kept.nbytes, output)


def _check_output(target: str | None, recipe: Recipe, run: Run) -> str | None:
    """The folder that something is written to, or None; refuses what does not go together."""
    if target != STANDARD:
        if run.report is not None:
            raise RunError("report names a folder for what -o - leaves; here it is in the output folder: drop --report")
    elif run.dry_run:
        raise RunError("dry-run writes nothing, and -o - is standard output; drop one of the two options")
    elif run.write == "mask" or run.keep_removed:
        option = "--write mask" if run.write == "mask" else "--keep-removed"
        raise RunError(f"{option} needs a folder, and -o - is standard output; name a folder with -o DIR")
    if run.keep_removed and recipe.limit is not None:
        raise RunError("keep-removed is for getting all of the input back, and --limit leaves rows out; drop one")
    place = run.report if target == STANDARD else target
    for option, path in (("bloom", run.bloom), ("save-df-table", run.save_df_table)):
        if path is not None and place is not None and not is_remote(place):
            root = os.path.realpath(place)
            if os.path.commonpath([root, os.path.realpath(path)]) == root:
                raise RunError(f"{option} {shown(path)}: lies in the output folder; name a file outside of it")
    return place


def _check_stream(sources: Sequence[Source]) -> None:
    """Only lines can be put one after the other."""
    for source in sources:
        single = source.format in ("csv", "tsv") and len(sources) == 1
        if source.format not in ("jsonl", "lines") and not single:
            why = "files of CSV have a header each" if source.format in ("csv", "tsv") else f"this is {source.format}"
            raise RunError(f"{source.name}: -o - writes one stream of lines, and {why}; name a folder with -o DIR")


def _spool(
    stack: contextlib.ExitStack, names: Sequence[str], run: Run, folder: OutputFolder | None, progress: Progress
) -> str:
    """Standard input in a file of the work folder, because the input is read twice."""
    if list(names).count(STANDARD) > 1:
        raise InputError("-: standard input is given twice; name each input once")
    if run.work_dir is None and folder is not None:
        stack.enter_context(folder)
        where = folder.work_folder()
    else:
        where = _private_folder(run.work_dir)
        stack.callback(shutil.rmtree, where, True)
    path = os.path.join(where, "stdin")
    with progress.stage("standard input", None):
        spool(0, path, "another folder with --work-dir")
    return path


def _private_folder(work_dir: str | None) -> str:
    """A new folder below the work folder, or the system's temporary one."""
    try:
        if work_dir is not None:
            os.makedirs(work_dir, exist_ok=True)
        return tempfile.mkdtemp(prefix="gpu-dedup-", dir=work_dir)
    except OSError as error:
        raise RunError(
            f"{work_dir or tempfile.gettempdir()}: cannot be used as work folder ({error.strerror}); "
            "name another with --work-dir"
        ) from None


def _check_fields(recipe: Recipe, sources: Sequence[Source]) -> None:
    """Refuse what plain text cannot have, and --lines without plain text."""
    if recipe.lines and not any(source.format == "lines" for source in sources):
        raise RecipeError("lines is for plain text, and no input is plain text; drop it, or pass --format txt")
    if all(source.format in ("txt", "lines") for source in sources):
        for name, given, default in (
            ("text-field", ",".join(recipe.text_field), ",".join(Recipe.text_field)),
            ("pretokenized", recipe.pretokenized or "", ""),
            ("key-field", recipe.key_field or "", ""),
            ("id-field", recipe.id_field, Recipe.id_field),
            ("keep", recipe.keep if recipe.keep_field else "", ""),
        ):
            if given != default:
                raise RecipeError(f"{name} {given!r} names a field, and plain text has none; drop it")


@dataclass(frozen=True)
class Deduped:
    """What is known of every row of a column.

    recipe   settled
    kept     bool[n]: rows that stay
    ids      of the rows that go, that are flagged, and of their witnesses
    """

    recipe: Recipe
    report: Report
    survey: Survey
    outcome: Outcome
    kept: Bool
    ids: Ids


def dedup_column(
    source: ColumnSource, recipe: Recipe, run: Run, ids: Callable[[I64], list[Any]], progress: Progress | None = None
) -> Deduped:
    """Find duplicates among texts in memory, on the road of files up to where these are written.

    source  see `read.memory.column_source`
    ids     ids of the rows that are asked for (ascending)
    Raises as `dedup` does.
    """
    started = time.time()
    recipe = settle(recipe)
    progress = progress or Progress(run.progress)
    if run.audit is not None:
        check_audit(recipe)
    _check_filter(recipe, run)
    recipe, table = given_table(recipe, run)
    backend, why = choose_backend(run, source.size)
    with contextlib.ExitStack() as stack:
        job = _job(stack, recipe, run, backend, progress, None)
        done = _search(job, why, [source], count_gpus(run, backend, 1, source.size), 1, table=table)
        recipe, survey, outcome = job.recipe, done.survey, done.found.outcome
        groups = Groups.of(recipe, outcome)
        kept = keep_mask(recipe, survey.status, outcome)
        known = Ids(wanted_ids(outcome, groups.rows))
        known.add(known.wanted, ids(known.wanted))
        for facts in survey.files:  # until now its size was a guess
            facts.source = replace(facts.source, size=survey.text_bytes)
        report = _report(job, done, groups, Emitted([int(np.count_nonzero(kept))], kept, known), started, None)
        with done.stream.saving() if done.stream is not None else contextlib.nullcontext():
            pass
    return Deduped(recipe, report, survey, outcome, kept, known)


def _job(
    stack: contextlib.ExitStack, recipe: Recipe, run: Run, backend: Backend, progress: Progress,
    folder: OutputFolder | None,
) -> _Job:  # fmt: skip
    """What all stages share; it goes with the stack."""
    pool = Pool(run.thread_count, readers_of(run), ahead_of(run))
    job = _Job(recipe, run, backend, pool, progress, Budget(run.memory_bytes // 2), folder)
    stack.callback(job.clean)  # after the pool has let go of the tables
    stack.enter_context(job.pool)
    if run.work_dir is not None:
        job.work_folder()  # one that cannot be used is found now, not when memory ends
    return job


@dataclass
class _Searched:
    """The road up to the outcome of every row. gpus: that took part; why: the reason for the backend, in words."""

    sketcher: Sketcher
    survey: Survey
    found: _Found
    audit: Audit | None
    gpus: int
    why: str
    stream: Stream | None


def _search(
    job: _Job, why: str, sources: list[Source], gpus: int, processes: int, kept: Checkpoint | None = None,
    table: DocumentFrequencies | None = None,
) -> _Searched:  # fmt: skip
    """First pass, decisions, guard and audit. The backend of the job may be another one afterwards, and its recipe has
    the checksum of the document frequencies. table: of these, where they are known."""
    recipe, run, progress = job.recipe, job.run, job.progress
    near, edit, streamed = recipe.sketched, recipe.verify == "edit" or recipe.leveled, recipe.method in STREAMED
    filters = streamed or recipe.keyed or recipe.leveled
    fast, prints, html = recipe.sketch == "fast", recipe.printed, "html" in recipe.steps
    terms = recipe.weighted and table is None
    with progress.stage("start"):
        audited, trim = run.audit is not None, recipe.trims
        warm(job.backend, progress.note, near, edit, audited, html, fast, filters, prints, trim, terms)
        if any(source.format in ("csv", "tsv") for source in sources):
            warm_csv(job.backend, progress.note)
        stream = Stream(recipe, run, open_filter(recipe, run, job.backend)) if streamed else None
    # With all slots that any bands of this num_perm can ask for, the sketches are good for another threshold too.
    idf = None if table is None else table.idf()
    sketcher = Sketcher.of(recipe, job.backend, recipe.num_perm if run.keep_work else 0, idf)
    if isinstance(job.backend, HostBackend):
        size = sum(source.size for source in sources)
        held = stream.filter.nbytes if stream is not None else estimate.held_bytes(recipe)
        job.footprint = Footprint(recipe, run, job.backend.name, size, job.budget, held)
    with progress.stage("read, sketch" if near else "read, digest", sum(s.size for s in sources)) as advance:
        survey, gpus = _survey(job, sketcher, sources, gpus, processes, stream, advance, kept)
    _check_keeper(recipe, survey)
    few = len(survey.status) <= FEW_ROWS or streamed  # what is streamed is done by now
    if job.backend.name == "numpy" and run.backend is None and not few:
        job.backend, why = host_backend("numba"), "CPU; many rows for so small an input"
        with progress.stage("start"):
            warm(
                job.backend, progress.note, near, edit, html=html, fast=fast, bloom=filters, prints=prints, trim=trim,
                terms=terms,
            )  # fmt: skip
        sketcher = replace(sketcher, backend=job.backend)
    found = _decide(job, survey, sketcher, kept) if stream is None else _streamed(job, survey, sketcher, stream)
    sketcher = found.sketcher
    if table is not None and run.df_table is not None:
        found.frequencies = _frequencies(table, run.df_table)
    _guard(recipe, run, survey, found.outcome)
    audit = None if run.audit is None else _audit(job, survey, sketcher, found, run.audit)
    return _Searched(sketcher, survey, found, audit, gpus, why, stream)


def _check_filter(recipe: Recipe, run: Run) -> None:
    """Settings of filters without one, and a filter that would be half of an input."""
    if recipe.method not in STREAMED:
        for name, given in (("bloom", run.bloom is not None), ("on-full", run.on_full != "stop")):
            if given:
                raise RunError(f"{name} means nothing with method {recipe.method}, which has no filter; drop it")
    elif run.keep_work:
        raise RunError(f"keep-work keeps sketches, and method {recipe.method} keeps nothing of a row; drop it")
    elif run.bloom is not None and recipe.limit is not None:
        raise RunError(
            "limit stops inside a file, and a filter that is saved holds whole files, or it could not tell which; drop "
            "--limit or --bloom"
        )


def _survey(
    job: _Job,
    sketcher: Sketcher,
    sources: list[Source],
    gpus: int,
    processes: int,
    stream: Stream | None,
    advance: Callable[[int], None],
    kept: Checkpoint | None,
) -> tuple[Survey, int]:
    """The first pass, here or in a process for each GPU; and how many GPUs took part (0 on a CPU)."""
    recipe, run = job.recipe, job.run
    wanted = gpus or min(processes, len(sources))
    if wanted > 1 and recipe.limit is not None:
        job.progress.note(f"the first {recipe.limit:,} rows are counted in one process")
        wanted = 1
    elif wanted > 1 and stream is not None:
        job.progress.note(f"method {recipe.method} takes rows in the order of the input, in one process")
        wanted = 1
    elif run.gpus is not None and run.gpus > gpus:
        job.progress.note(f"{gpus} of {run.gpus} GPUs take part: there are no more files, and none is cut")
    if wanted > 1:
        from gpu_dedup.pipeline.shards import Place, cut, survey_shards

        shards = cut([_unpacked(source) for source in sources], wanted)
        survey = survey_shards(
            sources, shards, [Place(job.backend.name, number) for number in range(len(shards))], recipe,
            run, job.table, job.work_folder(), advance, job.progress.note,
            recipe.num_perm if run.keep_work else 0, kept,
        )  # fmt: skip
        return survey, len(shards) if gpus else 0
    resume = saver = None
    if kept is not None:
        key, field = first_pass_key(recipe), recipe.keep_field
        resume = Resume(kept, key, sources, sketcher.slots, prefix=not sketcher.fast, field_name=field)
        saver = Saver(kept, key, field, run.keep_work, job.progress.note)
        if kept.used:
            job.progress.note(f"going on from {kept.used} parts ({kept.nbytes / 1e9:.1f} GB) of an earlier start")
    surveyor = Surveyor(sketcher, job.pool, run.batch_bytes, job.table, resume, saver, stream)
    if job.footprint is not None:
        surveyor.met, surveyor.in_turn = job.footprint.met, job.footprint.in_turn
    survey = surveyor.survey(sources, advance)
    return survey, min(gpus, 1)


def _already_done(target: str, sources: list[Source], recipe: Recipe, run: Run) -> Report | None:
    """The report of an earlier run that made just this: same recipe, same files by path, size and time."""
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
        same = finish_saving(run.bloom, [entry.content_hash for entry in report.inputs if entry.problem is None])
    return report if same else None


def _work_folder(run: Run, sources: list[Source], folder: OutputFolder | None) -> str:
    """Where work is kept for a next start; '' where it cannot be."""
    if run.work_dir is not None:
        return folder_of(run.work_dir, [source.path for source in sources])
    return folder.kept_folder() if folder is not None else ""


@contextlib.contextmanager
def _kept_work(
    recipe: Recipe, run: Run, sources: list[Source], folder: OutputFolder | None, progress: Progress
) -> Iterator[Checkpoint | None]:
    """The folder with what an earlier start has left and the next may find; None where that is not worth it.

    Goes when the run is done. It stays after an error, Ctrl-C or worse: then the same command goes on from there.
    """
    paths = [source.path for source in sources]
    where = _work_folder(run, sources, folder)
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


class _Job:
    """What all stages of one call share."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        backend: Backend,
        pool: Pool,
        progress: Progress,
        budget: Budget,
        folder: OutputFolder | None,
    ) -> None:
        self.recipe = recipe
        self.run = run
        self.backend = backend
        self.pool = pool
        self.progress = progress
        self.budget = budget
        self._folder = folder
        self.footprint: Footprint | None = None  # of a CPU
        self._work: str | None = None
        self._lock = threading.Lock()
        self._tables: list[Table | RaggedTable] = []

    def work_folder(self) -> str:
        """A folder for tables that outgrow the memory; made at the first need, removed at the end."""
        with self._lock:  # threads have tables of their own
            if self._work is None:
                if self.run.work_dir is not None:
                    self._work = _private_folder(self.run.work_dir)
                elif self._folder is not None:
                    self._work = self._folder.work_folder()
                else:
                    self._work = _private_folder(None)
            return self._work

    def table(self, dtype: Any, width: int | None) -> Table:
        table = Table(dtype, width, self.work_folder, self.budget)
        self._tables.append(table)
        return table

    def ragged(self, dtype: Any) -> RaggedTable:
        table = RaggedTable(dtype, self.work_folder, self.budget)
        self._tables.append(table)
        return table

    @property
    def sorted_rows(self) -> int:
        """Rows of the input that may be sorted at a time."""
        return 1 << 62 if self.footprint is None else max(1, self.footprint.work // SORT)

    def holds(self, name: str, nbytes: int, words: str) -> None:
        """See `Footprint.holds`; tables move to disk where they have no more room, the largest first."""
        if self.footprint is None:
            return
        self.footprint.holds(name, nbytes, words)
        for table in sorted(self._tables, key=lambda table: -table.held):
            if not self.budget.over:
                break
            table.move()

    def met_copies(self, count: int, by: str = "text") -> None:
        """So many rows were found to be copies."""
        name = "gone" if by == "text" else by
        self.holds(name, count * gone_bytes(self.recipe), f"{count:,} copies by {by}")

    def collide(self, heads: int) -> tuple[int, int]:
        """Threads that may look for buckets at once, and in how many parts of the heads."""
        threads = self.pool.threads
        return (threads, 1) if self.footprint is None else self.footprint.collide(heads, threads)

    @property
    def spilled(self) -> int:
        """Bytes of tables that outgrew the memory."""
        return sum(table.spilled for table in self._tables)

    def clean(self) -> None:
        for table in self._tables:
            table.close()
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)


@dataclass
class _Found:
    """What the middle of the road knows."""

    outcome: Outcome
    sketcher: Sketcher  # with all that sketches take
    decision: Gone | None
    candidates: Candidates | Near | Layers | None
    ranked: Heads | None  # the heads that decision is about
    without_text: I64
    short_texts: int
    heavy: list[HeavyBucket]
    level0: Level | None = None
    frequencies: dict[str, Any] | None = None  # of SimHash's terms


def _frequencies(table: DocumentFrequencies, file: str) -> dict[str, Any]:
    """What the report says of a table. file: that it was read from, '' if this run has counted it."""
    facts = {"checksum": table.checksum(), "documents": table.documents, "cells": table.cells}
    return {**facts, "bytes": table.counts.nbytes, "file": file}


def _decide(job: _Job, survey: Survey, sketcher: Sketcher, kept: Checkpoint | None) -> _Found:
    """Exact classes, heads, collisions, verification: the outcome of every row."""
    recipe = job.recipe
    near = recipe.near
    level0 = by_key = None
    some, empty = texts_of(survey)
    part_in = some if near else np.asarray(survey.status == ROW_TEXT, np.bool_)
    if recipe.keyed:
        with job.progress.stage("level 0: keys", None):
            by_key, sieved = _copies_by_key(job, survey, some)
            level0 = _level0(recipe.key_flags, sieved, len(by_key.copies))
            if not recipe.key_flags:
                part_in[by_key.copies] = False
    with job.progress.stage("exact copies", None):
        if recipe.leveled and level0 is None:
            among, sieved = may_meet(survey.digest, part_in, job.backend, job.run.thread_count)
            found = find_classes(survey, recipe, part_in, job.sorted_rows, job.table, among, met=job.met_copies)
            level0 = _level0(recipe.action == "flag", sieved, len(found.copies))
            del among
        else:
            found = find_classes(survey, recipe, part_in, job.sorted_rows, job.table, met=job.met_copies)
        del some, part_in
        copied = len(found.copies)
    if not near:
        outcome = assemble(recipe, survey.status, found.copies, found.head, None, None, empty)
        if by_key is not None:
            outcome = join_keys(recipe, outcome, by_key.copies, by_key.head)
        return _Found(outcome, sketcher, None, None, None, empty, 0, [], level0)

    frequencies = None
    if not sketcher.ready:
        heads = np.flatnonzero(found.heads)
        with job.progress.stage("count terms", survey.bytes_of(heads)) as advance:
            table = count_terms(survey, sketcher, job.pool, job.run.batch_bytes, heads, advance)
            recipe = job.recipe = checked(recipe, table, "the texts of this input")
            if job.run.save_df_table is not None:
                table.save(job.run.save_df_table, job.run.overwrite)
            sketcher = replace(sketcher, recipe=recipe, idf=table.idf())
            frequencies = _frequencies(table, "")
        del heads
    made = rank_heads(survey, sketcher, job.pool, job.run.batch_bytes, found, job.table)
    ranked, without_text = made.heads, np.union1d(empty, made.without_text)
    copies, head = found.copies, found.head
    del found
    threads = job.pool.threads
    road = Road(
        survey,
        sketcher,
        job.pool,
        job.run.batch_bytes,
        verify_of(job.run),
        (
            max(job.run.memory_bytes, SEARCH_MEMORY)
            if job.footprint is None or not job.footprint.strict
            else job.footprint.search_memory(len(ranked))
        ),
        threads if job.footprint is None else job.footprint.search_threads(len(ranked), threads),
        job.collide,
        job.table,
        job.ragged,
        job.holds,
        job.progress,
    )
    known = key = None
    if kept is not None and (kept.used or kept.written) and recipe.method == "minhash":
        contents = [(f.source.rel, f.source.size, f.content_hash, f.problem) for f in survey.files]
        key = decision_key(recipe, contents)
        known = load_decision(kept, key)
    candidates: Candidates | Near | Layers
    if known is not None:
        decision, candidates = known
        job.progress.note("who goes was known from an earlier start")
    else:
        decision, candidates = find_and_decide(road, ranked)
        if key is not None and kept is not None and isinstance(candidates, Candidates):
            save_decision(kept, key, decision, candidates)
    gone = copied + len(decision)
    job.holds("gone", gone * gone_bytes(recipe), f"{gone:,} copies by text")
    heavy: list[HeavyBucket] = []
    for bucket in bands_of(candidates).stats.heavy:
        members = ranked.rows.take(np.asarray(bucket.members, np.int64))
        shared = common_shingles(survey, sketcher, job.pool, job.run.batch_bytes, members)
        heavy.append(HeavyBucket(bucket.band, bucket.size, shared))
    outcome = assemble(recipe, survey.status, copies, head, ranked.rows, decision, without_text)
    if by_key is not None:
        outcome = join_keys(recipe, outcome, by_key.copies, by_key.head)
    return _Found(outcome, sketcher, decision, candidates, ranked, without_text, made.short, heavy, level0, frequencies)


def _copies_by_key(job: _Job, survey: Survey, some: Bool) -> tuple[Classes, Sieved]:
    """Classes of rows of equal keys, and what the sieve in front of them saw.

    some  bool[n]: rows with a text that is not empty; what another one would stand for would be lost
    """
    assert survey.key_digest is not None
    assert survey.key_length is not None
    keyed = some.copy()
    for start, length in survey.key_length.blocks():
        keyed[start : start + len(length)] &= length != NO_KEY
    if not keyed.any():
        raise RecipeError(
            f"key-field {job.recipe.key_field!r}: no row has a value in it{_here(survey, job.recipe.key_field)}; name "
            "a field that rows have, or drop it"
        )
    among, sieved = may_meet(survey.key_digest, keyed, job.backend, job.run.thread_count)
    keys = survey.key_digest, survey.key_length
    return find_classes(
        survey, job.recipe, keyed, job.sorted_rows, job.table, among, keys, lambda count: job.met_copies(count, "key")
    ), sieved


def _level0(flags: bool, sieved: Sieved, caught: int) -> Level:
    return Level(0, "flag" if flags else "remove", sieved.asked, sieved.may_repeat, caught, caught, caught)


def _streamed(job: _Job, survey: Survey, sketcher: Sketcher, stream: Stream) -> _Found:
    """The outcome of rows that have had their verdicts in the first pass."""
    assert survey.verdict is not None
    outcome, without_text = stream_outcome(job.recipe, survey.status, survey.verdict)
    return _Found(outcome, sketcher, None, None, None, without_text, stream.short, [])


def _audit(job: _Job, survey: Survey, sketcher: Sketcher, found: _Found, count: int) -> Audit:
    """Rows that stay against all others by brute force, for the report."""
    assert found.ranked is not None
    assert found.decision is not None
    size, outcome = job.run.batch_bytes, found.outcome
    return audit_rows(survey, sketcher, job.pool, size, found.ranked, found.decision, outcome, count, job.progress)


def _check_keeper(recipe: Recipe, survey: Survey) -> None:
    """A field that no row has cannot choose which copy stays; most likely its name is mistyped."""
    if survey.values is not None and survey.values.empty and np.any(survey.status == ROW_TEXT):
        raise RecipeError(
            f"keep {recipe.keep}: no row has a value in the field {recipe.keep_field!r}"
            f"{_here(survey, recipe.keep_field)}; name a field that rows have, or keep by another rule"
        )


def _here(survey: Survey, field: str | None) -> str:
    """The fields that there are, in brackets; nothing where there are none to name."""
    sources = [facts.source for facts in survey.files if facts.problem is None and facts.source.format != "memory"]
    names = first_fields(sources)
    return f" ({fields_here(names, [field or ''])})" if names else ""


def _without_ids(recipe: Recipe, survey: Survey, emitted: Emitted) -> list[str]:
    """A line about a field that was named for ids, and that no row in the log has."""
    if recipe.id_field == Recipe.id_field or emitted.ids is None or not len(emitted.ids.wanted):
        return []
    if emitted.ids.some:
        return []
    here = _here(survey, recipe.id_field)
    return [f"no row of the log has a value in the id field {recipe.id_field!r}{here}; name another with --id-field"]


def _left_out(passed_over: Sequence[str]) -> list[str]:
    """A line about files of a folder that are of no kind we read; somebody may be about to delete the input."""
    if not passed_over:
        return []
    names = sorted({os.path.basename(path) for path in passed_over})
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [f"{len(passed_over)} files of another kind were left out and are not in the output: {shown}"]


def _guard(recipe: Recipe, run: Run, survey: Survey, outcome: Outcome) -> None:
    """--max-removed: more near removals than anybody expects mean wrong parameters; nothing is written then."""
    read = len(survey.status) - survey.blank
    near = outcome.near
    if recipe.method == "lshbloom":
        near = int(np.count_nonzero(outcome.reason == BLOOM))
    if (
        (recipe.action == "flag" and not recipe.leveled)
        or read < GUARD_FROM_ROWS
        or near * PPM <= run.max_removed_ppm * read
    ):
        return
    raise RunError(
        f"{near:,} of {read:,} rows ({near / read:.1%}) would go as near copies, over --max-removed "
        f"{share_text(run.max_removed_ppm)}; look with --dry-run or --action flag, raise --threshold or "
        "the shingle's n, or pass --max-removed 1"
    )


def _report(job: _Job, done: _Searched, groups: Groups, emitted: Emitted, started: float, target: str | None) -> Report:
    recipe, survey, found = job.recipe, done.survey, done.found
    outcome = found.outcome
    report = Report(recipe=recipe.as_dict(), fingerprint=recipe.fingerprint())
    if done.stream is not None:
        report.filter = done.stream.facts()
        full = done.stream.filter.warning()
        report.warnings += [full] if full else []
    for facts, kept in zip(survey.files, emitted.kept_by_file, strict=True):
        source = facts.source
        rows = facts.rows - int(np.count_nonzero(facts.status == ROW_BLANK))
        path = STANDARD if isinstance(source, StandardInput) else source.path
        report.inputs.append(
            InputFile(
                source.rel, path, source.format, source.compression, source.size, facts.content_hash, rows, kept,
                facts.problem,
            )
        )  # fmt: skip
        room = BAD_ROWS_LISTED - len(report.bad_rows)
        report.bad_rows += [BadRow(source.rel, row + 1, reason) for row, reason in facts.bad_rows[: max(0, room)]]
    counts = report.counts
    counts.read = len(survey.status) - survey.blank
    counts.blank = survey.blank
    counts.bad = int(np.count_nonzero(survey.status == ROW_BAD))
    counts.no_text = len(found.without_text)
    counts.short = found.short_texts
    counts.kept = sum(emitted.kept_by_file)
    counts.removed = counts.read - counts.kept
    for code, reason in enumerate(REASONS):
        if code == STAYS:
            continue
        mine = outcome.reason == code
        counts.by_reason[reason] = int(np.count_nonzero(mine & ~emitted.kept_mask))
        counts.flagged_by_reason[reason] = int(np.count_nonzero(mine & emitted.kept_mask))
    counts.flagged = sum(counts.flagged_by_reason.values())
    report.frequencies = found.frequencies
    report.groups, report.group_sizes = groups.count, groups.by_size
    texts, _ = emitted.ids.look_up(groups.rows) if emitted.ids is not None else ([None] * len(groups.rows), None)
    excerpts = {} if emitted.ids is None else emitted.ids.texts
    for row, size, text, members in zip(groups.rows.tolist(), groups.sizes, texts, groups.members, strict=True):
        facts, local = survey.place(row)
        name = getattr(text, "as_py", lambda: None)()
        group = Group(facts.source.rel, local, name, int(size), excerpts.get(row))
        about = outcome.about(np.array(members, np.int64))
        for member, shared, union in zip(members, about.shared.tolist(), about.union.tolist(), strict=True):
            facts, local = survey.place(member)
            reason = REASONS[outcome.reason[member]]
            group.members.append(Member(facts.source.rel, local, reason, shared, union, excerpts.get(member)))
        report.largest_groups.append(group)
    report.levels = [] if found.level0 is None else [found.level0]
    if recipe.sketched:
        view = recipe.bands_view
        report.forecast = [asdict(entry) for entry in forecast(recipe)]
        report.warnings += bands.warnings(view) if recipe.banded else []
        short = short_texts_warning(counts, recipe.as_dict())
        report.warnings += [short] if short else []
    if found.candidates is not None and found.decision is not None:
        report.collisions = _collisions(found)
        assert found.ranked is not None
        report.likeness = likeness(recipe, survey, found.ranked, found.decision)
        report.levels += found.candidates.levels if isinstance(found.candidates, Layers) else []
        stats = dict(found.decision.stats)
        report.machine.work = {"verify_parts": int(stats.pop("parts"))}
        weakest = stats.pop("weakest")
        report.verification = Verification(**stats, weakest=None if weakest is None else [int(n) for n in weakest])
    report.audit = done.audit
    report.bytes_read = sum(f.source.size for f in survey.files if f.problem is None)
    report.text_bytes = survey.text_bytes
    report.check()
    machine = report.machine
    machine.start()
    machine.started = datetime.fromtimestamp(started, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    machine.output = target or ""
    machine.report = job.run.report or ""
    machine.write, machine.keep_removed = job.run.write, job.run.keep_removed
    machine.backend, machine.backend_why = job.backend.name, done.why
    machine.gpus, machine.threads, machine.memory = done.gpus, job.run.thread_count, job.run.memory_bytes
    machine.spilled = job.spilled
    machine.dry_run = job.run.dry_run
    machine.notes = list(job.progress.notes)
    machine.input_times = [facts.source.mtime_ns for facts in survey.files]
    machine.finish(time.time() - started, job.progress.times)
    return report


def _collisions(found: _Found) -> Collisions:
    assert found.candidates is not None
    assert found.ranked is not None
    search = None
    if isinstance(found.candidates, Layers):
        search = found.candidates.near.stats
    elif isinstance(found.candidates, Near):
        search = found.candidates.stats
        return Collisions(
            documents=len(found.ranked),
            pairs=search.compared,
            candidates=found.candidates.count,
            buckets=search.buckets,
            largest=search.largest,
            histogram={str(2**j): count for j, count in enumerate(search.histogram) if count},
            tables=search.tables,
            equal=search.equal,
        )
    stats = bands_of(found.candidates).stats
    return Collisions(
        documents=len(found.ranked),
        pairs=stats.pairs_before,
        candidates=len(bands_of(found.candidates)),
        buckets=stats.buckets,
        largest=max(stats.largest, default=0),
        capped=stats.capped,
        histogram={str(2**j): count for j, count in enumerate(stats.histogram) if count},
        heavy=found.heavy,
        tables=search.tables if search is not None else 0,
        equal=search.equal if search is not None else 0,
    )
