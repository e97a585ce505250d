"""The report of a run, out of what the stages know."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import numpy as np

from gpu_dedup import bands, hamming
from gpu_dedup.batch import ROW_BAD, ROW_BLANK
from gpu_dedup.hamming import Near
from gpu_dedup.pipeline.checks import fields_there
from gpu_dedup.pipeline.emit import Emitted
from gpu_dedup.pipeline.figures import Groups, likeness
from gpu_dedup.pipeline.job import Found, Job, Searched
from gpu_dedup.pipeline.near import Layers, bands_of
from gpu_dedup.pipeline.outcome import REASONS, STAYS
from gpu_dedup.pipeline.sieve import Sieved
from gpu_dedup.pipeline.survey import Survey
from gpu_dedup.read import STANDARD, StandardInput
from gpu_dedup.recipe import PPM, Recipe
from gpu_dedup.report import (
    BAD_ROWS_LISTED,
    BadRow,
    Collisions,
    Group,
    InputFile,
    Level,
    Member,
    Report,
    Verification,
    short_texts_warning,
)
from gpu_dedup.weights import DocumentFrequencies


def forecast(recipe: Recipe) -> Sequence[Any]:
    """The chance to find a pair by its similarity, of a settled recipe whose method looks for near copies."""
    if recipe.leveled and not recipe.banded:
        return hamming.level_forecast(
            [(line.similarity, 0.0) for line in hamming.forecast(recipe.distance)], recipe.distance, recipe.reach,
            recipe.far_distance, recipe.far_jaccard_ppm / PPM,
        )  # fmt: skip
    if not recipe.banded:
        return hamming.forecast(recipe.distance)
    curve = bands.forecast(recipe.bands_view)
    if not recipe.leveled:
        return curve
    points = [(line.similarity, line.found) for line in curve]
    return hamming.level_forecast(
        points, recipe.distance, recipe.reach, recipe.far_distance, recipe.far_jaccard_ppm / PPM
    )


def make_report(
    job: Job, done: Searched, groups: Groups, emitted: Emitted, started: float, target: str | None
) -> Report:
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
        report.collisions = collisions(found)
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


def collisions(found: Found) -> Collisions:
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


def level_of_keys(flags: bool, sieved: Sieved, caught: int) -> Level:
    return Level(0, "flag" if flags else "remove", sieved.asked, sieved.may_repeat, caught, caught, caught)


def facts_of_terms(table: DocumentFrequencies, file: str) -> dict[str, Any]:
    """What the report says of a table. file: that it was read from, '' if this run has counted it."""
    facts = {"checksum": table.checksum(), "documents": table.documents, "cells": table.cells}
    return {**facts, "bytes": table.counts.nbytes, "file": file}


def without_ids(recipe: Recipe, survey: Survey, emitted: Emitted) -> list[str]:
    """A line about a field that was named for ids, and that no row in the log has."""
    if recipe.id_field == Recipe.id_field or emitted.ids is None or not len(emitted.ids.wanted):
        return []
    if emitted.ids.some:
        return []
    here = fields_there(survey, recipe.id_field)
    return [f"no row of the log has a value in the id field {recipe.id_field!r}{here}; name another with --id-field"]


def left_out(passed_over: Sequence[str]) -> list[str]:
    """A line about files of a folder that are of no kind we read; somebody may be about to delete the input."""
    if not passed_over:
        return []
    names = sorted({os.path.basename(path) for path in passed_over})
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [f"{len(passed_over)} files of another kind were left out and are not in the output: {shown}"]
