"""report.html: the report as one page for a browser. No script, no font and no picture from elsewhere.

Everything that comes from the input (texts, ids, names of files, shingles) is escaped, bounded in length, and shown
with control characters as pictures; a content security policy in the page forbids what should slip through.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from gpu_dedup.errors import disk_error
from gpu_dedup.progress import bytes_text, seconds_text
from gpu_dedup.report import (
    EXCERPT,
    FOLDER,
    REASON_WORDS,
    REASONS,
    Filter,
    Group,
    Likeness,
    Member,
    Report,
    describe,
    few,
    share_text,
    short,
)
from gpu_dedup.spans import DIFFERENT, safe, spans, tidy

PAGE_NAME = "report.html"
PAGE = f"{FOLDER}/{PAGE_NAME}"
FILES_LISTED = 50
FEWEST = 5  # near copies in a range of similarities from which a point is drawn
LEAST_SHOWN = 0.4  # similarity at the left end of the S-curve

_COLOURS = {
    "kept": "c0",
    "exact": "c1",
    "near": "c2",
    "exact+near": "c3",
    "no-text": "c4",
    "bad-row": "c5",
    "bloom": "c1",
    "key": "c6",
}

_STYLE = """
:root { color-scheme: light dark; --bg: #fcfcfb; --card: #ffffff; --ink: #1c1d1f; --soft: #55585e; --line: #d9dbdf;
  --c0: #2f6f9f; --c1: #b4562d; --c2: #d98a1f; --c3: #8a5a9e; --c4: #6b7280; --c5: #a8324a; --c6: #2f8577;
  --del: #fde3dc; --del-ink: #7a1f0a; --add: #dcefe0; --add-ink: #14502a; --warn: #fff4d6; --warn-line: #b98900; }
@media (prefers-color-scheme: dark) { :root { --bg: #16181b; --card: #1e2125; --ink: #e8e9eb; --soft: #a9aeb6;
  --line: #363b42; --c0: #6fb1e0; --c1: #ea9470; --c2: #f0b35a; --c3: #c79ad9; --c4: #9aa3af; --c5: #ec7f93;
  --c6: #74c9b8;
  --del: #4a231a; --del-ink: #ffc9b8; --add: #173a24; --add-ink: #b9e8c8; --warn: #3a300f; --warn-line: #d9ad2b; } }
* { box-sizing: border-box; }
body { margin: 0; overflow-wrap: anywhere; background: var(--bg); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans",
  "Noto Sans CJK SC", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; line-height: 1.25; } h2 { font-size: 1.25rem; margin: 2.75rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; } p { margin: .4rem 0 .8rem; max-width: 46rem; }
.soft { color: var(--soft); } .number { font-variant-numeric: tabular-nums; } a { color: var(--c0); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0;
  padding: 0; list-style: none; }
.tiles li, .card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem; }
.tiles b { display: block; font-size: 1.45rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.card { margin: .75rem 0; overflow-x: auto; }
.two { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 1rem; align-items: start; }
table { border-collapse: collapse; min-width: min(100%, 26rem); max-width: 100%; font-size: .92rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .35rem; }
th, td { text-align: left; padding: .28rem .8rem .28rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; } thead th { color: var(--soft); font-weight: 600;
  overflow-wrap: normal; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; overflow-wrap: normal; }
tbody th { font-weight: 500; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: .15em; margin-right: .45em; }
svg { display: block; width: 100%; height: auto; } .stack { height: 26px; margin-bottom: .7rem; }
svg text { fill: var(--soft); font-size: 14px; font-family: inherit; } svg .strong { fill: var(--ink); }
.axis { stroke: var(--soft); stroke-width: 1; } .grid { stroke: var(--line); stroke-width: 1; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); }
.k0 { background: var(--c0); } .k1 { background: var(--c1); } .k2 { background: var(--c2); }
.k3 { background: var(--c3); } .k4 { background: var(--c4); } .k5 { background: var(--c5); }
.k6 { background: var(--c6); }
.curve { fill: none; stroke: var(--c0); stroke-width: 2.5; } .whisker { stroke: var(--c1); stroke-width: 1.5; }
.threshold { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
.text { font-size: .9rem; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 22rem; overflow-y: auto;
  unicode-bidi: plaintext; margin: 0; font-family: inherit; }
.text mark, .text del, .text ins { border-radius: .15em; padding: 0 .1em; text-decoration-thickness: 1px; }
.text del { background: var(--del); color: var(--del-ink); } .text ins { background: var(--add); color: var(--add-ink);
  text-decoration: underline; }
.warn { background: var(--warn); border-left: 4px solid var(--warn-line); padding: .55rem .8rem; margin: .6rem 0;
  border-radius: 0 .4rem .4rem 0; overflow-wrap: anywhere; }
details > summary { cursor: pointer; color: var(--soft); margin: .4rem 0; } details[open] > summary { color: inherit; }
code { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; font-size: .88em;
  overflow-wrap: anywhere; }
:focus-visible { outline: 3px solid var(--c0); outline-offset: 2px; }
@media (max-width: 52rem) { .two { grid-template-columns: minmax(0, 1fr); gap: 0; } svg text { font-size: 17px; }
  h1 { font-size: 1.3rem; } }
@media print { .text { max-height: none; } details > summary { display: none; } }
"""


def render(report: Report) -> str:
    """The page of a report."""
    return "".join(f"{part}\n" for part in _page(report))


def save(report: Report, path: str) -> None:
    """Write the page: a temporary name in the same folder, then a rename. Raises OutputError."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(render(report))
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise disk_error(error, path, "another file with -o") from error


# ---------------------------------------------------------------------------------------------------------------------
# Words and numbers.


def _text(value: object, most: int = 300) -> str:
    """A value as HTML text: one line, escaped, its middle left out where it is long."""
    return escape(short(safe(str(value)), most))


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """A table of ready HTML cells; the first cell of a row is its head. numbers: columns that are set to the right."""
    right = set(numbers)
    mark = ("", ' class="n"')

    def cell(kind: str, column: int, text: str, scope: str = "") -> str:
        return f"<{kind}{scope}{mark[column in right]}>{text}</{kind}>"

    head = "".join(cell("th", column, text, ' scope="col"') for column, text in enumerate(heads))
    body = "".join(
        "<tr>"
        + "".join(
            cell("td", column, text) if column else cell("th", column, text, ' scope="row"')
            for column, text in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _page(report: Report) -> Iterator[str]:
    counts, machine = report.counts, report.machine
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>gpu-dedup: {counts.removed:,} of {counts.read:,} rows removed</title><style>{_STYLE}</style></head>"
    yield "<body><main><header><h1>Deduplication report</h1>"
    started = machine.started.replace("T", " ").replace("Z", " UTC")
    version = f"gpu-dedup {_text(report.version)}" + (f", {_text(started)}" if started else "")
    yield f'<p class="soft">{_text(describe(report.recipe))}<br>{version}</p></header>'
    yield from _tiles(report)
    yield from _warnings(report)
    yield from _outcome(report)
    if report.forecast or report.collisions is not None:
        yield from _search(report)
    if report.filter is not None:
        yield from _filter(report.filter)
    yield from _groups(report)
    if report.collisions is not None:
        yield from _buckets(report)
    yield from _files(report)
    yield from _recipe(report)
    yield from _machine(report)
    yield "</main></body></html>"


def _tiles(report: Report) -> Iterator[str]:
    counts, machine = report.counts, report.machine
    tiles = [
        (f"{counts.read:,}", "rows read"),
        (f"{counts.kept:,}", f"kept, {_share(counts.kept, counts.read)}"),
        (f"{counts.removed:,}", f"removed, {_share(counts.removed, counts.read)}"),
    ]
    if counts.flagged:
        tiles.append((f"{counts.flagged:,}", f"flagged for review, {_share(counts.flagged, counts.read)}"))
    tiles.append((bytes_text(report.text_bytes), "of text"))
    if machine.seconds:
        speed = bytes_text(report.bytes_read / machine.seconds)
        tiles.append((seconds_text(machine.seconds), f"{speed} of input a second"))
    yield '<ul class="tiles">' + "".join(f"<li><b>{number}</b>{words}</li>" for number, words in tiles) + "</ul>"


def _warnings(report: Report) -> Iterator[str]:
    if not report.warnings:
        return
    yield "<h2>Warnings</h2>"
    for warning in report.warnings:
        yield f'<p class="warn" role="note">{_text(warning, 1000)}</p>'


def _outcome(report: Report) -> Iterator[str]:
    counts = report.counts
    yield "<h2>What went, and why</h2>"
    flagged = bool(counts.flagged)
    parts = [("kept", "kept", counts.kept - counts.flagged)]
    for reason in REASONS:
        parts.append(
            (reason, REASON_WORDS[reason], counts.by_reason.get(reason, 0) + counts.flagged_by_reason.get(reason, 0))
        )
    parts = [part for part in parts if part[2]]
    if counts.read:
        yield '<div class="card">' + _stack([(_COLOURS[name], words, size) for name, words, size in parts], counts.read)
        rows = []
        for name, words, size in parts:
            key = f'<span class="key k{_COLOURS[name][1]}"></span>{words}' + (
                " (flagged)" if flagged and name not in ("kept", "no-text", "bad-row") else ""
            )
            rows.append((key, f"{size:,}", _share(size, counts.read)))
        yield _table("Rows by outcome.", ("outcome", "rows", "share"), rows, (1, 2)) + "</div>"
    aside = []
    if counts.blank:
        aside.append(f"{counts.blank:,} blank lines were dropped")
    if counts.no_text:
        aside.append(f"{counts.no_text:,} rows have no text to compare")
    if counts.short:
        aside.append(f"{counts.short:,} texts are shorter than one shingle")
    if counts.bad:
        aside.append(f"{counts.bad:,} rows are bad")
    if aside:
        yield f"<p>{'; '.join(aside)}.</p>"
    if report.machine.output and not report.machine.dry_run:
        yield f"<p>Every row that went, with the row that stays for it: <code>{FOLDER}/removed.parquet</code>; "
        yield "<code>gpu-dedup show DIR ROW</code> puts the two side by side.</p>"
    if report.bad_rows:
        files = {file.rel: file.format for file in report.inputs}
        bad_rows = [
            (
                _text(f"{bad.file}:{bad.line}" if files.get(bad.file) == "jsonl" else f"{bad.file} row {bad.line - 1}"),
                _text(bad.reason),
            )
            for bad in report.bad_rows[:20]
        ]
        yield f"<details><summary>The first {len(bad_rows)} of {counts.bad:,} bad rows</summary><div class='card'>"
        yield _table("Rows without a usable text.", ("place", "reason"), bad_rows) + "</div></details>"


def _stack(parts: Sequence[tuple[str, str, int]], whole: int) -> str:
    """One bar, split."""
    out = []
    at = 0.0
    for colour, words, size in parts:
        width = 720 * size / whole
        out.append(
            f'<rect class="{colour}" x="{at:.2f}" y="0" width="{max(width - 1, 0.75):.2f}" height="26">'
            f"<title>{words}: {size:,}</title></rect>"
        )
        at += width
    alt = ", ".join(f"{words} {_share(size, whole)}" for _, words, size in parts)
    attributes = f'viewBox="0 0 720 26" preserveAspectRatio="none" role="img" aria-label="{escape(alt)}"'
    return f'<svg class="stack" {attributes}>{"".join(out)}</svg>'


# ---------------------------------------------------------------------------------------------------------------------
# The S-curve and the near copies that were found.


def _chance(share: float, recipe: Mapping[str, Any]) -> float:
    return 1.0 - (1.0 - share ** int(recipe["rows"])) ** int(recipe["bands"])


def observed(likeness: Sequence[Likeness], bands: int, width: int = 5) -> list[tuple[float, float, float, float, int]]:
    """Chance to find a pair, estimated from the bands in which the found ones agree: one point for every `width`
    percent that has enough of them: (similarity, chance, low, high, pairs).

    A pair is found if one band of b or more agrees. With p the share of agreeing bands, those found have b p / (1 -
    (1 - p)^b) agreeing bands on average, which gives p, and the chance 1 - (1 - p)^b of a pair that may or may not have
    been found. low, high: the same from the mean two standard errors lower and higher.
    """
    points = []
    for first in range(0, 101, width):
        part = [one for one in likeness if first <= one.percent < first + width and one.sampled]
        count = sum(one.sampled for one in part)
        if count < FEWEST:
            continue
        mean = sum(one.bands for one in part) / count
        spread = sum(one.squares for one in part) / count - mean * mean
        error = 2 * math.sqrt(max(spread, 0.0) / count)
        at = sum((min(one.percent + 0.5, 100)) * one.sampled for one in part) / count / 100
        low, middle, high = (_found_by(value, bands) for value in (mean - error, mean, mean + error))
        points.append((at, middle, low, high, count))
    return points


def _found_by(mean: float, bands: int) -> float:
    """1 - (1 - p)^b where b p / (1 - (1 - p)^b) = mean."""
    if mean <= 1:
        return 0.0
    if mean >= bands:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        if bands * p / -math.expm1(bands * math.log1p(-p)) < mean:
            low = p
        else:
            high = p
    return -math.expm1(bands * math.log1p(-low))


def _search(report: Report) -> Iterator[str]:
    recipe, found, checked = report.recipe, report.collisions, report.verification
    yield "<h2>Finding near copies</h2>"
    threshold = recipe.get("threshold_ppm", 0) / 1e6
    if report.forecast:
        yield from _forecast(report, threshold)
    if report.likeness:
        yield "<h3>How alike the near copies are</h3>"
        total = sum(one.pairs for one in report.likeness)
        what = "Levenshtein similarity" if recipe.get("verify") == "edit" else "similarity"
        yield f"<p>{total:,} different texts went as near copies. By their {what} with the row they went for:</p>"
        low = min(int(threshold * 100), min(one.percent for one in report.likeness))
        by_percent = {one.percent: one.pairs for one in report.likeness}
        bars = [(f"{p} %", f"{p} to {p + 1} %" if p < 100 else "100 %", by_percent.get(p, 0)) for p in range(low, 101)]
        every = max(1, len(bars) // 6)
        yield '<div class="two"><div class="card">' + _bars(bars, "near copies by similarity", "c2", every)
        shown = [(words, f"{size:,}", _share(size, total)) for _, words, size in bars if size]
        yield "<details><summary>The same as a table</summary>"
        yield _table("Near copies by similarity.", ("similarity", "texts", "share"), shown, (1, 2)) + "</details></div>"
    if found is None:
        return
    steps = [("different texts compared", f"{found.documents:,}")]
    if found.tables or found.equal:
        steps.append((f"pairs that met in {found.tables:,} tables", f"{found.pairs:,}"))
        steps.append(("texts with the fingerprint of an earlier one", f"{found.equal:,}"))
        steps.append((f"pairs at distance {recipe.get('distance')} or less", f"{found.candidates:,}"))
    else:
        steps.append(("collisions in bands", f"{found.pairs:,}"))
        steps.append(("candidate pairs after the sieve", f"{found.candidates:,}"))
    if checked is not None:
        steps += [
            ("pairs verified", f"{checked.verified:,}"),
            ("of these at or above the threshold", f"{checked.matched:,}"),
        ]
        if checked.over_cap:
            steps.append(("pairs with a text over edit-max-chars", f"{checked.over_cap:,}"))
        if checked.weakest is not None and checked.weakest[1] > 0:
            shared, union = checked.weakest
            steps.append(("least similarity of a row that went", f"{shared / union:.4f} ({shared:,} of {union:,})"))
        if checked.longest_chain > 1:
            steps.append(("longest chain of matches", f"{checked.longest_chain:,}"))
    table = '<div class="card">' + _table("From collisions to matches.", ("step", "number"), steps, (1,)) + "</div>"
    yield table + ("</div>" if report.likeness else "")
    yield from _audit(report)


def _forecast(report: Report, threshold: float) -> Iterator[str]:
    """The chance to find a pair: forecast, what was observed, and both as a table."""
    recipe = report.recipe
    lines = [line if isinstance(line, Mapping) else vars(line) for line in report.forecast]
    banded = bool(recipe.get("bands")) and recipe.get("method") not in ("simhash", "cascade")
    points = observed(report.likeness, int(recipe["bands"])) if banded and recipe.get("verify") == "exact" else []
    words = "The chance that a pair of texts is found, by its similarity: "
    if banded:
        words += f"{recipe['bands']} bands of {recipe['rows']} slots"
        least = min([LEAST_SHOWN, *(point[0] for point in points)])
        steps = [least + (1 - least) * i / 120 for i in range(121)]
        curve = [(share, _chance(share, recipe)) for share in steps]
    else:
        words += f"fingerprints at distance {recipe.get('distance')} or less"
        if recipe.get("method") == "cascade":
            threshold = int(recipe["far_jaccard_ppm"]) / 1e6
            words += f", and level 2 to {recipe.get('far_distance')} bits where edit similarity is enough"
        curve = [(float(line["similarity"]), float(line["found"])) for line in lines] + [(1.0, 1.0)]
    yield f"<p>{words}, threshold {threshold:g}."
    if points:
        yield "Points: the same chance worked out from how many bands agree among the pairs that were found, "
        yield "corrected for those that were not; lines through them reach two standard errors up and down."
    yield "</p>"
    yield '<div class="two"><div class="card">' + _curve(curve, threshold, points) + '</div><div class="card">'
    rows = []
    for line in lines:
        s, found_there = float(line["similarity"]), float(line["found"])
        beside = [point for point in points if s - 1e-9 <= point[0] < s + 0.05 - 1e-9]
        if beside:  # the forecast where the point is
            s, middle, _, _, count = beside[0]
            rows.append((f"{s:.3f}", _percent(_chance(s, recipe)), _percent(middle), f"{count:,}"))
        else:
            rows.append((f"{s:.2f}", _percent(found_there), "-", "-"))
    heads = ("similarity", "forecast", "observed", "pairs")
    shown = 4 if points else 2
    yield _table("Chance to find a pair.", heads[:shown], [row[:shown] for row in rows], (1, 2, 3)) + "</div></div>"


def _filter(found: Filter) -> Iterator[str]:
    yield "<h2>Filter</h2>"
    rows = [
        ("size", bytes_text(found.bytes) + (f" in {found.tables:,} tables" if found.tables > 1 else "")),
        ("made for", f"{found.capacity:,} keys"),
        ("keys from before", f"{found.before:,}"),
        ("rows looked up", f"{found.asked:,}"),
        ("of these, new to it", f"{found.new:,}"),
        ("bits that are set", f"{100 * found.fill:.3g} %"),
        ("chance that a new row is taken for seen", f"{100 * found.rate:.3g} %"),
        ("the same at capacity, as asked for", f"{100 * found.asked_rate:.3g} %"),
        ("rows expected to have gone although new", few(found.wrong)),
    ]
    yield '<div class="card">' + _table("The Bloom filter at the end.", ("what", "number"), rows, (1,)) + "</div>"


def _percent(share: float) -> str:
    """Never rounded up to 100 % or down to 0 %."""
    return f"{min(max(100 * share, 0.01), 99.99):.2f} %" if 0 < share < 1 else f"{100 * share:.0f} %"


def _audit(report: Report) -> Iterator[str]:
    audit = report.audit
    if audit is None:
        return
    yield "<h3>Audit</h3>"
    whole = audit.sampled == audit.kept
    yield f"<p>{audit.sampled:,} of {audit.kept:,} texts that stay were compared with {audit.compared:,} by brute "
    yield f"force: {audit.missed:,} should have gone. "
    if audit.recall is not None:
        recall = f"Recall of near copies: <b>{_percent(audit.recall)}</b>"
        if not whole and audit.recall_low is not None and audit.recall_high is not None:
            recall += f" (95 % interval {_percent(audit.recall_low)} to {_percent(audit.recall_high)})"
        yield f"{recall}."
    yield "</p>"
    if audit.examples:
        rows = [
            (
                _text(f"{miss.file} row {miss.row}"),
                _text(f"{miss.like_file} row {miss.like_row}"),
                f"{miss.shared / miss.union:.4f}",
            )
            for miss in audit.examples
        ]
        yield (
            '<div class="card">'
            + _table("Missed near copies.", ("row", "is like", "similarity"), rows, (2,))
            + "</div>"
        )


def _curve(line: Sequence[tuple[float, float]], threshold: float, points: Sequence[tuple[float, ...]]) -> str:
    """The S-curve: a line of (similarity, chance), and observed points."""
    left, right, top, bottom = 64, 458, 12, 212
    least = line[0][0]

    def x(share: float) -> float:
        return left + (right - left) * (share - least) / (1 - least)

    def y(chance: float) -> float:
        return bottom - (bottom - top) * chance

    out = []
    for step in range(0, 101, 25):
        out.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(step / 100):.1f}" y2="{y(step / 100):.1f}"/>')
        out.append(f'<text x="{left - 8}" y="{y(step / 100) + 4:.1f}" text-anchor="end">{step} %</text>')
    first = math.ceil(least * 10 - 1e-9)
    for tenth in range(first, 11):
        out.append(f'<text x="{x(tenth / 10):.1f}" y="{bottom + 19}" text-anchor="middle">{tenth / 10:.1f}</text>')
    out.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    out.append(
        f'<text x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle">true similarity of a pair</text>'
    )
    path = " ".join(f"{'L' if i else 'M'}{x(s):.1f} {y(chance):.1f}" for i, (s, chance) in enumerate(line))
    if least <= threshold <= 1:
        at = x(threshold)
        out.append(f'<line class="threshold" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>')
        out.append(f'<text class="strong" x="{at - 6:.1f}" y="{bottom - 8}" text-anchor="end">threshold</text>')
    out.append(f'<path class="curve" d="{path}"/>')
    for share, chance, low, high, count in points:
        out.append(
            f'<line class="whisker" x1="{x(share):.1f}" x2="{x(share):.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
        )
        out.append(
            f'<circle class="c1" cx="{x(share):.1f}" cy="{y(chance):.1f}" r="4.5">'
            f"<title>similarity {share:.3f}: {_percent(chance)}, from {count:,} pairs</title></circle>"
        )
    told = ", ".join(f"{share:.2f}: {_percent(chance)}" for share, chance, *_ in points)
    forecast = ", ".join(f"{s:.2f}: {_percent(chance)}" for s, chance in line[:: max(1, len(line) // 8)])
    alt = f"S-curve. Forecast by similarity: {forecast}." + (f" Observed: {told}." if told else "")
    return f'<svg viewBox="0 0 480 258" role="img" aria-label="{escape(alt)}">{"".join(out)}</svg>'


def _bars(bars: Sequence[tuple[str, str, int]], title: str, colour: str, every: int = 1) -> str:
    """Bars of (label on the axis, words, number); labels of every so many."""
    left, right, top, bottom = 64, 458, 16, 172
    most = max((size for _, _, size in bars), default=0) or 1
    step = (right - left) / max(1, len(bars))
    out = [f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>']
    out.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{top}" y2="{top}"/>')
    out.append(f'<text x="{left - 8}" y="{top + 4}" text-anchor="end">{_round(most)}</text>')
    out.append(f'<text x="{left - 8}" y="{bottom + 4}" text-anchor="end">0</text>')
    width = min(step * 0.8, 48)
    for number, (label, words, size) in enumerate(bars):
        middle = left + step * (number + 0.5)
        if size:
            height = max((bottom - top) * size / most, 1.5)
            out.append(
                f'<rect class="{colour}" x="{middle - width / 2:.1f}" y="{bottom - height:.1f}" width="{width:.1f}" '
                f'height="{height:.1f}" rx="1.5"><title>{words}: {size:,}</title></rect>'
            )
        if number % every == 0:
            out.append(f'<text x="{middle:.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
    largest = max(bars, key=lambda bar: bar[2], default=("", "", 0))
    alt = f"{title}: most, {largest[2]:,}, at {largest[1]}"
    return f'<svg viewBox="0 0 480 204" role="img" aria-label="{escape(alt)}">{"".join(out)}</svg>'


def _round(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            return f"{number / (size if unit != 'k' else 1000):.3g}{unit}"
    return f"{number:,}"


def _by_power(histogram: Mapping[str, int]) -> list[tuple[str, str, int]]:
    """Bars of a histogram whose key 2**i counts 2**i to 2**(i+1) - 1, without gaps."""
    keys = sorted(int(key) for key in histogram)
    bars = []
    key = keys[0] if keys else 1
    while keys and key <= keys[-1]:
        words = str(key) if key == 1 else f"{key:,} to {2 * key - 1:,}"
        bars.append((_round(key) if key == 1 else f"{_round(key)}+", words, histogram.get(str(key), 0)))
        key *= 2
    return bars


# ---------------------------------------------------------------------------------------------------------------------
# Groups and their texts.


def _groups(report: Report) -> Iterator[str]:
    if not report.groups:
        return
    yield "<h2>Groups</h2>"
    yield f"<p>{report.groups:,} kept rows stand for others. Groups by the number of rows, the kept one included:</p>"
    bars = _by_power(report.group_sizes)
    if bars:
        yield '<div class="two"><div class="card">' + _bars(bars, "groups by size", "c0", max(1, len(bars) // 6))
        rows = [(words, f"{size:,}") for _, words, size in bars if size]
        yield '</div><div class="card">' + _table("Groups by size.", ("rows in a group", "groups"), rows, (1,))
        yield "</div></div>"
    if any(group.text is not None for group in report.largest_groups):
        yield "<h3>The largest groups</h3>"
        yield "<p>Left a row that went, right the row that stays for it; what only one of them has is marked. The row "
        yield f"that is least like the kept one comes first. Beginnings of up to {EXCERPT:,} characters.</p>"
    for number, group in enumerate(report.largest_groups):
        yield from _group(group, number, report)


def _group(group: Group, number: int, report: Report) -> Iterator[str]:
    name = f"{group.file} row {group.row}" + (f", id {group.id}" if group.id is not None else "")
    title = f"{group.size:,} rows like {_text(name, 120)}"
    if group.text is None or not group.members:
        yield f'<p class="number">{title}</p>'
        return
    yield f"<details{' open' if number < 3 else ''}><summary>{title}</summary>"
    for place, member in enumerate(group.members):
        if place and member.reason == "exact" and group.members[0].reason == "exact":
            break  # the same text again
        yield from _beside(group, member, report)
    yield "</details>"


def _beside(group: Group, member: Member, report: Report) -> Iterator[str]:
    like = f"similarity {member.shared / member.union:.4f} ({member.shared:,} of {member.union:,})"
    if member.union <= 0:
        like = {"exact": "an exact copy", "key": "a copy by its key"}.get(member.reason, "similarity not counted")
    place = _text(f"{member.file} row {member.row}", 120)
    if member.text is None or group.text is None:
        yield f"<p>{place}: {like}</p>"
        return
    if member.text == group.text and member.union <= 0 and member.reason != "key":
        yield f'<p class="number">{place}: {like}.</p><div class="card">'
        more = "<span class='soft'> ...</span>" if len(group.text) >= EXCERPT else ""
        label = 'role="group" aria-label="beginning of both rows"'
        yield f'<div class="text" dir="auto" tabindex="0" {label}>{escape(safe(group.text))}{more}</div></div>'
        return
    parts = tidy(spans(safe(member.text), safe(group.text)))
    left, right = _marked(parts, "del", True), _marked(parts, "ins", False)
    note = ""
    if not any(part.kind == DIFFERENT for part in parts):
        note = " The beginnings are the same." if member.union > 0 else ""
    yield f'<p class="number">{place}: {like}.{note}</p><div class="two">'
    for head, text, cut in (("goes", left, member.text), ("stays", right, group.text)):
        more = "<span class='soft'> ...</span>" if len(cut) >= EXCERPT else ""
        words = head if report.recipe.get("action") != "flag" or head == "stays" else "flagged"
        yield f'<div class="card"><div class="soft">{words}</div>'
        label = f'role="group" aria-label="beginning of the row that {head}"'
        yield f'<div class="text" dir="auto" tabindex="0" {label}>{text}{more}</div></div>'
    yield "</div>"


def _marked(parts: Sequence[Any], tag: str, first: bool) -> str:
    out = []
    for part in parts:
        text = escape(part.left if first else part.right)
        out.append(f"<{tag}>{text}</{tag}>" if part.kind == DIFFERENT and text else text)
    return "".join(out)


# ---------------------------------------------------------------------------------------------------------------------
# Buckets, files, recipe, machine.


def _buckets(report: Report) -> Iterator[str]:
    found = report.collisions
    assert found is not None
    if not found.buckets:
        return
    yield "<h2>Buckets</h2>"
    cap = report.recipe.get("bucket_cap")
    yield f"<p>{found.buckets:,} buckets hold two or more texts whose band is the same; the largest holds "
    yield f"{found.largest:,}."
    if found.capped:
        yield f" {found.capped:,} are over the cap of {cap:,}: they do not give all their pairs."
    yield "</p>"
    bars = _by_power(found.histogram)
    yield '<div class="two"><div class="card">' + _bars(bars, "buckets by size", "c3", max(1, len(bars) // 6))
    rows = [(words, f"{size:,}") for _, words, size in bars if size]
    yield '</div><div class="card">' + _table("Buckets by size.", ("texts in a bucket", "buckets"), rows, (1,))
    yield "</div></div>"
    if found.heavy:
        heavy = [
            (
                str(bucket.band),
                f"{bucket.size:,}",
                "<br>".join(f"<code>{_text(s, 120)}</code>" for s in bucket.shingles),
            )
            for bucket in found.heavy
        ]
        yield '<div class="card">'
        yield _table("The largest capped buckets.", ("band", "texts", "shingles in common"), heavy, (1,)) + "</div>"


def _files(report: Report) -> Iterator[str]:
    if not report.inputs:
        return
    yield "<h2>Files</h2>"
    worst = sorted(report.inputs, key=lambda file: (-(file.rows - file.kept) / max(1, file.rows), file.rel))
    rows = []
    for file in worst[:FILES_LISTED]:
        gone = file.rows - file.kept
        name = _text(file.rel, 160) + (
            f"<br><span class='soft'>left out: {_text(file.problem)}</span>" if file.problem else ""
        )
        rows.append((name, bytes_text(file.size), f"{file.rows:,}", f"{gone:,}", _share(gone, file.rows)))
    caption = "Files, those that lost most first."
    if len(worst) > FILES_LISTED:
        caption += f" {len(worst) - FILES_LISTED:,} more are in report.json."
    heads = ("file", "size", "rows", "removed", "share")
    yield '<div class="card">' + _table(caption, heads, rows, (1, 2, 3, 4)) + "</div>"


def _recipe(report: Report) -> Iterator[str]:
    yield "<h2>Recipe</h2>"
    yield "<p>Everything that decides what goes. The same recipe over the same input gives the same rows on every "
    yield f"machine. Fingerprint <code>{_text(report.fingerprint)}</code></p>"
    rows = []
    for name, value in report.recipe.items():
        if name.endswith("_ppm"):
            name, shown = name[:-4], share_text(value)
        elif isinstance(value, list):
            shown = f"{len(value)} texts" if name == "stop_shingles" and value else ", ".join(map(str, value)) or "none"
        else:
            shown = "-" if value is None else str(value)
        rows.append((_text(name.replace("_", "-")), _text(shown)))
    yield '<div class="card">' + _table("Fields of the recipe.", ("field", "value"), rows) + "</div>"


def _machine(report: Report) -> Iterator[str]:
    machine = report.machine
    yield "<h2>Machine</h2>"
    rows = [("backend", _text(machine.backend + (f" ({machine.backend_why})" if machine.backend_why else "")))]
    if machine.gpus:
        rows.append(("GPUs", str(machine.gpus)))
    rows += [
        ("threads", str(machine.threads)),
        ("memory at the peak", bytes_text(machine.peak_memory)),
        ("tables in memory up to", bytes_text(machine.memory)),
    ]
    if machine.spilled:
        rows.append(("tables on disk", bytes_text(machine.spilled)))
    if machine.output:
        rows.append(("output", _text(machine.output)))
    rows += [(f"version of {_text(name)}", _text(value)) for name, value in machine.versions.items()]
    yield '<div class="two"><div class="card">' + _table("Where it ran.", ("what", "value"), rows) + "</div>"
    times = [(name, seconds) for name, seconds in machine.stages.items() if seconds >= 0.005]
    if times:
        whole = machine.seconds or sum(seconds for _, seconds in times)
        spent = [(_text(name), seconds_text(seconds), _share(seconds, whole)) for name, seconds in times]
        spent.append(("everything", seconds_text(machine.seconds), ""))
        yield '<div class="card">' + _table("Time by stage.", ("stage", "time", "share"), spent, (1, 2)) + "</div>"
    yield "</div>"
    for note in machine.notes:
        yield f"<p class='soft'>{_text(note, 500)}</p>"
