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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_dedup import bands, bloom, page
from gpu_dedup.backend import Backend, HostBackend, choose_backend, count_gpus, host_backend, warm, warm_csv
from gpu_dedup.batch import I64, ROW_TEXT, Bool
from gpu_dedup.checkpoint import Checkpoint, decision_key, first_pass_key
from gpu_dedup.collide import Candidates
from gpu_dedup.errors import InputError, RecipeError, RunError
from gpu_dedup.hamming import Near
from gpu_dedup.keys import NO_KEY
from gpu_dedup.pipeline import estimate
from gpu_dedup.pipeline.account import (
    facts_of_terms,
    left_out,
    level_of_keys,
    make_report,
    without_ids,
)
from gpu_dedup.pipeline.account import (
    forecast as forecast,
)
from gpu_dedup.pipeline.checks import (
    check_fields,
    check_filter,
    check_keeper,
    check_output,
    check_removed,
    check_stream,
    fields_there,
)
from gpu_dedup.pipeline.emit import Emitted, Ids, Target, emit, wanted_ids
from gpu_dedup.pipeline.exact import Classes, find_classes, texts_of
from gpu_dedup.pipeline.figures import Groups
from gpu_dedup.pipeline.footprint import Footprint, ahead_of, batch_of, gone_bytes, readers_of, verify_of
from gpu_dedup.pipeline.job import Found, Job, Searched, private_folder
from gpu_dedup.pipeline.kept import already_done, kept_work, work_folder
from gpu_dedup.pipeline.near import Layers, Road, bands_of, common_shingles, find_and_decide, rank_heads
from gpu_dedup.pipeline.outcome import Outcome, assemble, join_keys, keep_mask
from gpu_dedup.pipeline.pool import Pool
from gpu_dedup.pipeline.recount import audit_rows, check_audit
from gpu_dedup.pipeline.resume import Resume, Saver, load_decision, save_decision
from gpu_dedup.pipeline.sieve import Sieved, may_meet
from gpu_dedup.pipeline.stream import Stream, open_filter, stream_outcome
from gpu_dedup.pipeline.survey import Sketcher, Survey, Surveyor
from gpu_dedup.pipeline.terms import checked, count_terms, given_table
from gpu_dedup.pipeline.upload import RemoteFolder
from gpu_dedup.progress import Progress
from gpu_dedup.read import STANDARD, Source, discover, guess_text_field
from gpu_dedup.read.remote import is_remote
from gpu_dedup.recipe import STREAMED, Recipe
from gpu_dedup.report import Audit, HeavyBucket, Report
from gpu_dedup.run import Run
from gpu_dedup.spool import Budget
from gpu_dedup.weights import DocumentFrequencies
from gpu_dedup.write import OutputFolder, spool, standard_output

if TYPE_CHECKING:
    from gpu_dedup.read.memory import ColumnSource

# The size of an input that is tiny in bytes is guessed by these factors; bytes say nothing of how many rows will meet.
UNPACKED = {"gz": 8, "zst": 50, "parquet": 8, "arrow": 2}
FEW_ROWS = 400  # with more of them NumPy is not quick enough behind the first pass
SEARCH_MEMORY = 256 << 20  # the least that the search for near fingerprints may take


def settle(recipe: Recipe) -> Recipe:
    """The recipe with its integers solved: bands, rows, the sieve's cut. Raises RecipeError where there are none."""
    if not isinstance(recipe, Recipe):  # a threshold in its place, most likely
        raise RecipeError(f"recipe is {recipe!r}, a {type(recipe).__name__}; give Recipe(threshold_ppm=800_000)")
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
    check_filter(recipe, run)
    target = None if output is None else os.fsdecode(output)
    if isinstance(inputs, (str, bytes, os.PathLike)):
        inputs = [inputs]
    names = [os.fsdecode(path) for path in inputs]
    passed_over: list[str] = []
    place = check_output(target, recipe, run)  # folder that gets anything at all
    recipe, table = given_table(recipe, run)
    with contextlib.ExitStack() as stack:
        away = None
        if place is not None and is_remote(place):  # made here, and sent when it is complete
            away = RemoteFolder(place, run.overwrite)
            away.check()
            staging = private_folder(run.work_dir)
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
        check_fields(recipe, sources)
        recipe, guessed = name_text_field(recipe, sources)
        if guessed:
            progress.note(guessed)
        rows_to = None
        if target == STANDARD:
            check_stream(sources)
            rows_to = standard_output()
        guess = sum(_unpacked(source) for source in sources)
        again = folder is not None and rows_to is None and not run.overwrite and not run.again
        if folder is not None and again and (before := already_done(folder.path, sources, recipe, run)):
            progress.note("already done: the output is of this input and this recipe; --overwrite makes it again")
            folder.tidy()  # after a run that was killed when it had nothing left to do but clean up
            if not run.keep_work:
                shutil.rmtree(work_folder(run, sources, folder), ignore_errors=True)
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
                folder.goes_on = os.path.isdir(work_folder(run, sources, folder)) and recipe.limit is None
                stack.enter_context(folder)
        kept = stack.enter_context(kept_work(recipe, run, sources, folder, progress))
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
        report = make_report(job, done, groups, emitted, started, target)
        report.warnings += [*([guessed] if guessed else []), *left_out(passed_over)]
        report.warnings += without_ids(recipe, survey, emitted)
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
        where = private_folder(run.work_dir)
        stack.callback(shutil.rmtree, where, True)
    path = os.path.join(where, "stdin")
    with progress.stage("standard input", None):
        spool(0, path, "another folder with --work-dir")
    return path


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
    check_filter(recipe, run)
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
        report = make_report(job, done, groups, Emitted([int(np.count_nonzero(kept))], kept, known), started, None)
        with done.stream.saving() if done.stream is not None else contextlib.nullcontext():
            pass
    return Deduped(recipe, report, survey, outcome, kept, known)


def _job(
    stack: contextlib.ExitStack, recipe: Recipe, run: Run, backend: Backend, progress: Progress,
    folder: OutputFolder | None,
) -> Job:  # fmt: skip
    """What all stages share; it goes with the stack."""
    pool = Pool(run.thread_count, readers_of(run), ahead_of(run))
    job = Job(recipe, run, backend, pool, progress, Budget(run.memory_bytes // 2), folder)
    stack.callback(job.clean)  # after the pool has let go of the tables
    stack.enter_context(job.pool)
    if run.work_dir is not None:
        job.work_folder()  # one that cannot be used is found now, not when memory ends
    return job


def _search(
    job: Job, why: str, sources: list[Source], gpus: int, processes: int, kept: Checkpoint | None = None,
    table: DocumentFrequencies | None = None,
) -> Searched:  # fmt: skip
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
    check_keeper(recipe, survey)
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
        found.frequencies = facts_of_terms(table, run.df_table)
    check_removed(recipe, run, survey, found.outcome)
    audit = None if run.audit is None else _audit(job, survey, sketcher, found, run.audit)
    return Searched(sketcher, survey, found, audit, gpus, why, stream)


def _survey(
    job: Job,
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


def _decide(job: Job, survey: Survey, sketcher: Sketcher, kept: Checkpoint | None) -> Found:
    """Exact classes, heads, collisions, verification: the outcome of every row."""
    recipe = job.recipe
    near = recipe.near
    level0 = by_key = None
    some, empty = texts_of(survey)
    part_in = some if near else np.asarray(survey.status == ROW_TEXT, np.bool_)
    if recipe.keyed:
        with job.progress.stage("level 0: keys", None):
            by_key, sieved = _copies_by_key(job, survey, some)
            level0 = level_of_keys(recipe.key_flags, sieved, len(by_key.copies))
            if not recipe.key_flags:
                part_in[by_key.copies] = False
    with job.progress.stage("exact copies", None):
        if recipe.leveled and level0 is None:
            among, sieved = may_meet(survey.digest, part_in, job.backend, job.run.thread_count)
            found = find_classes(survey, recipe, part_in, job.sorted_rows, job.table, among, met=job.met_copies)
            level0 = level_of_keys(recipe.action == "flag", sieved, len(found.copies))
            del among
        else:
            found = find_classes(survey, recipe, part_in, job.sorted_rows, job.table, met=job.met_copies)
        del some, part_in
        copied = len(found.copies)
    if not near:
        outcome = assemble(recipe, survey.status, found.copies, found.head, None, None, empty)
        if by_key is not None:
            outcome = join_keys(recipe, outcome, by_key.copies, by_key.head)
        return Found(outcome, sketcher, None, None, None, empty, 0, [], level0)

    frequencies = None
    if not sketcher.ready:
        heads = np.flatnonzero(found.heads)
        with job.progress.stage("count terms", survey.bytes_of(heads)) as advance:
            table = count_terms(survey, sketcher, job.pool, job.run.batch_bytes, heads, advance)
            recipe = job.recipe = checked(recipe, table, "the texts of this input")
            if job.run.save_df_table is not None:
                table.save(job.run.save_df_table, job.run.overwrite)
            sketcher = replace(sketcher, recipe=recipe, idf=table.idf())
            frequencies = facts_of_terms(table, "")
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
        key = decision_key(recipe, survey.contents)
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
    return Found(outcome, sketcher, decision, candidates, ranked, without_text, made.short, heavy, level0, frequencies)


def _copies_by_key(job: Job, survey: Survey, some: Bool) -> tuple[Classes, Sieved]:
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
            f"key-field {job.recipe.key_field!r}: no row has a value in it"
            f"{fields_there(survey, job.recipe.key_field)}; name a field that rows have, or drop it"
        )
    among, sieved = may_meet(survey.key_digest, keyed, job.backend, job.run.thread_count)
    keys = survey.key_digest, survey.key_length
    return find_classes(
        survey, job.recipe, keyed, job.sorted_rows, job.table, among, keys, lambda count: job.met_copies(count, "key")
    ), sieved


def _streamed(job: Job, survey: Survey, sketcher: Sketcher, stream: Stream) -> Found:
    """The outcome of rows that have had their verdicts in the first pass."""
    assert survey.verdict is not None
    outcome, without_text = stream_outcome(job.recipe, survey.status, survey.verdict)
    return Found(outcome, sketcher, None, None, None, without_text, stream.short, [])


def _audit(job: Job, survey: Survey, sketcher: Sketcher, found: Found, count: int) -> Audit:
    """Rows that stay against all others by brute force, for the report."""
    assert found.ranked is not None
    assert found.decision is not None
    size, outcome = job.run.batch_bytes, found.outcome
    return audit_rows(survey, sketcher, job.pool, size, found.ranked, found.decision, outcome, count, job.progress)
