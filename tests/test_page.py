"""report.html: what it says is in report.json, nothing from the input gets loose in it, and people can read it."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pyarrow.parquet as pq
import pytest
from harness import write_rows

from gpu_dedup import Recipe, Run, cli, dedup, dedup_texts, page, sketch
from gpu_dedup.report import EXCERPT, Likeness, Report

EVIL = "<script>alert(1)</script> \"'><img src=x onerror=alert(2)> &amp; </div></main> \u202eevil\u202c \x1b[31m \x00"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Tags of a page, whether they are closed in order, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.text += data


def corpus(seed: int = 3) -> list[dict[str, Any]]:
    """Rows with groups of several sizes and near copies between 0.7 and 1."""
    rng = random.Random(seed)
    rows = []
    for group in range(40):
        words = corpora.english(rng, 120)
        for member in range(1 + group % 5):
            copy = list(words)
            for place in rng.sample(range(0, 120, 6), member):
                copy[place] = f"new{rng.randrange(10**6)}"
            rows.append({"text": " ".join(copy), "id": f"{group}-{member}"})
    rows += [dict(rows[1], id="copy"), {"text": "", "id": "empty"}, {"text": "...", "id": "nothing"}]
    return rows


def run(
    folder: Path, rows: list[dict[str, Any]], recipe: Recipe | None = None, name: str = "in.jsonl", **more: Any
) -> Path:
    source = write_rows(folder / name, rows)
    dedup([str(source)], str(folder / "out"), recipe, Run(progress=False, backend="numba", **more))
    return folder / "out"


def page_of(out: Path) -> str:
    return (out / "_gpu_dedup" / "report.html").read_text(encoding="utf-8")


def check(html: str) -> Page:
    """What holds for every page."""
    parsed = Page(html)
    assert parsed.wrong == []
    assert not set(parsed.tags) & {"script", "img", "link", "iframe", "object", "embed", "form", "input", "base", "a"}
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "href", "srcset", "action", "xlink:href"), (tag, name, value)
        assert name != "style", tag
    style = html[html.index("<style>") : html.index("</style>")]
    assert not re.search(r"url\(|@import|//", style)
    assert "default-src 'none'" in html
    # Every table has heads with a scope and says what it is; every picture says what it shows.
    assert parsed.tags["table"] == parsed.tags["caption"] > 0
    assert all(
        dict.fromkeys(["col", "row"]) and value in ("col", "row")
        for tag, name, value in parsed.attributes
        if name == "scope"
    )
    assert sum(tag == "th" and name == "scope" for tag, name, _ in parsed.attributes) == parsed.tags["th"]
    labels = [value for tag, name, value in parsed.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(labels) == parsed.tags["svg"]
    assert all(labels)
    assert ("html", "lang", "en") in parsed.attributes
    assert parsed.tags["h1"] == 1
    return parsed


def test_the_page_says_what_the_report_says(tmp_path: Path) -> None:
    out = run(tmp_path, corpus(), Recipe(threshold_ppm=600_000), audit=10)
    report = Report.load(str(out))
    parsed = check(page_of(out))
    counts = report.counts
    for number in (counts.read, counts.kept, counts.removed, report.groups, report.collisions.buckets):
        assert f"{number:,}" in parsed.text
    assert report.fingerprint in parsed.text
    assert "Recall of near copies: 100 %" in parsed.text
    assert "threshold 0.6" in parsed.text
    assert "in.jsonl row" in parsed.text
    for field in report.recipe:
        assert field.removesuffix("_ppm").replace("_", "-") in parsed.text
    assert parsed.tags["circle"] == len(page.observed(report.likeness, report.recipe["bands"])) > 0
    assert parsed.tags["del"] > 0
    assert parsed.tags["ins"] > 0


def test_numbers_behind_the_pictures_are_those_of_the_log(tmp_path: Path) -> None:
    rows = corpus()
    recipe = Recipe(threshold_ppm=600_000)
    out = run(tmp_path, rows, recipe)
    report = Report.load(str(out))
    log = pq.read_table(out / "_gpu_dedup" / "removed.parquet").to_pylist()
    near = [row for row in log if row["reason"] == "near"]
    assert len(near) > 40
    counted = Counter(row["shared"] * 100 // row["union"] for row in near)
    assert {one.percent: one.pairs for one in report.likeness} == dict(counted)
    signatures = sketch([row["text"] for row in rows], recipe).reshape(len(rows), report.recipe["bands"], -1)
    agree: dict[int, list[int]] = {}
    for row in near:
        equal = (signatures[row["row"]] == signatures[row["kept_row"]]).all(axis=1).sum()
        agree.setdefault(row["shared"] * 100 // row["union"], []).append(int(equal))
    for one in report.likeness:
        mine = agree[one.percent]
        assert (one.sampled, one.bands, one.squares) == (len(mine), sum(mine), sum(n * n for n in mine))
    sizes = Counter(1 << (count + 1).bit_length() - 1 for count in Counter(row["kept_row"] for row in log).values())
    assert {int(size): count for size, count in report.group_sizes.items()} == dict(sizes)
    assert sum(report.group_sizes.values()) == report.groups
    texts = [row["text"] for row in rows]
    for group in report.largest_groups:
        assert group.text == texts[group.row][:EXCERPT]
        mine = [row for row in log if row["kept_row"] == group.row]
        assert len(mine) == group.size - 1
        least = min((row["similarity"] for row in mine), default=None)
        assert len(group.members) == min(2, len(mine))
        first = next(row for row in mine if row["row"] == group.members[0].row)
        assert first["similarity"] == least
        for member in group.members:
            assert member.text == texts[member.row][:EXCERPT]
            assert member.reason == next(row["reason"] for row in mine if row["row"] == member.row)


@pytest.mark.parametrize("name", ["in.jsonl.gz", "in.jsonl.zst", "in.parquet"])
def test_every_format_gives_the_same_texts(name: str, tmp_path: Path) -> None:
    plain = Report.load(str(run(tmp_path / "plain", corpus())))
    other = Report.load(str(run(tmp_path / "other", corpus(), name=name, batch_bytes=1000, threads=3)))
    assert [(g.row, g.text, [(m.row, m.text) for m in g.members]) for g in other.largest_groups] == [
        (g.row, g.text, [(m.row, m.text) for m in g.members]) for g in plain.largest_groups
    ]
    assert plain.largest_groups[0].text


def test_texts_of_plain_text_files(tmp_path: Path) -> None:
    rows = corpus()
    (tmp_path / "in").mkdir()
    for number, row in enumerate(rows):
        (tmp_path / "in" / f"{number:04d}.txt").write_text(row["text"])
    dedup([str(tmp_path / "in")], str(tmp_path / "out"), Recipe(), Run(progress=False, backend="numba"))
    report = Report.load(str(tmp_path / "out"))
    assert report.largest_groups
    for group in report.largest_groups:
        for one in (group, *group.members):
            assert one.text == rows[int(one.file[:4])]["text"]


def test_lists_of_tokens_are_shown_as_words(tmp_path: Path) -> None:
    tokens: list[Any] = [f"t{i}" for i in range(30)]
    rows = [{"tokens": [*tokens, 7]}, {"tokens": [*tokens, 7, "more"]}]
    out = run(tmp_path, rows, Recipe(pretokenized="tokens"))
    group = Report.load(str(out)).largest_groups[0]
    assert group.text == " ".join([*tokens, "7"])
    assert group.members[0].text == group.text + " more"


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(method="exact"),
        Recipe(verify="edit"),
        Recipe(verify="none"),
        Recipe(verify="signature"),
        Recipe(cluster="connected", threshold_ppm=500_000),
        Recipe(keep="none"),
        Recipe(action="flag"),
        Recipe(bucket_cap=2, cap_lowest=1),
        Recipe(limit=0),
        Recipe(method="simhash"),
        Recipe(method="cascade"),
        Recipe(method="bloom", capacity=1000),
        Recipe(method="lshbloom", capacity=1000),
        Recipe(sketch="fast"),
    ],
    ids=lambda recipe: f"{recipe.method}-{recipe.verify}-{recipe.cluster}-{recipe.keep}-{recipe.action}-{recipe.limit}",
)
def test_every_recipe_has_a_page(recipe: Recipe, tmp_path: Path) -> None:
    out = run(tmp_path, corpus(), recipe)
    parsed = check(page_of(out))
    report = Report.load(str(out))
    assert ("circle" in parsed.tags) == (
        recipe.verify == "exact" and recipe.method == "minhash" and recipe.limit is None
    )
    if recipe.action == "flag":
        assert f"{report.counts.flagged:,}flagged for review" in parsed.text
    if recipe.verify == "edit":
        assert "Levenshtein" in parsed.text


def test_nothing_from_the_input_gets_loose(tmp_path: Path) -> None:
    text = f"{EVIL} " + " ".join(f"w{i}" for i in range(40))
    rows: list[dict[str, Any]] = [{"text": text, "id": EVIL}, {"text": text + " more", "id": EVIL}]
    rows += [{"text": 5, "id": EVIL}, {"text": f"{EVIL} {EVIL}"}, {"text": "\ud800 half", "id": 1}]
    rows += [{"text": f"{EVIL} {i}"} for i in range(8)]
    out = run(tmp_path, rows, Recipe(on_bad_row="skip", shingle="token:2", bucket_cap=2), "<b>in&.jsonl")
    html = page_of(out)
    parsed = check(html)
    assert parsed.tags["b"] == 5  # of the numbers on top
    assert "<script>alert(1)</script>" in parsed.text
    assert "\u202e" not in html
    assert "\x1b" not in html
    assert "\x00" not in html
    assert "<b>in&.jsonl" in parsed.text


def test_long_texts_and_many_files_stay_bounded(tmp_path: Path) -> None:
    long = "word " * 200_000
    rows = [{"text": f"{long} {i}", "id": "i" * 100_000} for i in range(4)]
    sources = [write_rows(tmp_path / "many" / f"{i:03d}.jsonl", rows if i == 0 else []) for i in range(200)]
    dedup([str(source.parent) for source in sources[:1]], str(tmp_path / "out"), Recipe(), Run(progress=False))
    html = page_of(tmp_path / "out")
    parsed = check(html)
    assert len(html) < 100_000
    assert "150 more are in report.json" in parsed.text
    assert len((tmp_path / "out" / "_gpu_dedup" / "report.json").read_bytes()) < 1_000_000


def test_a_dry_run_and_texts_in_memory_have_no_texts() -> None:
    report = dedup_texts([row["text"] for row in corpus()]).report
    assert report.largest_groups[0].text is None
    parsed = check(page.render(report))
    assert "rows like texts row" in parsed.text
    check(page.render(Report(recipe=Recipe(bands=4, rows=4).as_dict())))


def test_observed_chance_by_hand() -> None:
    # Of pairs with chance p = 1/2 in each of 2 bands, three quarters are found: with one band agreeing or with both, in
    # the ratio 2 : 1. So 200 pairs with one and 100 with both are what a chance of 3/4 looks like.
    points = page.observed([Likeness(80, 300, 300, 200 + 2 * 100, 200 + 4 * 100)], 2)
    ((similarity, chance, low, high, count),) = points
    assert (similarity, count) == (0.805, 300)
    assert chance == pytest.approx(0.75)
    assert low < 0.75 < high
    assert high - low < 0.2
    assert page.observed([Likeness(80, 4, 4, 8, 16)], 2) == []  # too few
    assert page.observed([Likeness(80, 90)], 2) == []  # not looked at
    assert page.observed([Likeness(100, 9, 9, 18, 36)], 2) == [(1.0, 1.0, 1.0, 1.0, 9)]
    assert page.observed([Likeness(80, 9, 9, 9, 9)], 2)[0][1] == 0.0  # never more than the one band that found it


@pytest.mark.parametrize("p", [0.1, 0.3, 0.6])
def test_observed_chance_of_drawn_pairs(p: float, rng: np.random.Generator) -> None:
    bands = 17
    agree = rng.binomial(bands, p, 200_000)
    agree = agree[agree > 0]
    one = Likeness(70, len(agree), len(agree), int(agree.sum()), int((agree * agree).sum()))
    ((_, chance, low, high, _),) = page.observed([one], bands)
    truth = 1 - (1 - p) ** bands
    assert low <= truth <= high
    assert chance == pytest.approx(truth, abs=0.01)


def test_the_command_makes_the_page_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(tmp_path, corpus())
    place = out / "_gpu_dedup" / "report.html"
    first = page_of(out)
    place.unlink()
    (tmp_path / "in.jsonl").unlink()  # the input is not needed for it
    assert cli.main(["report", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(place)
    assert page_of(out) == first
    elsewhere = tmp_path / "page.html"
    assert cli.main(["report", str(out), "-o", str(elsewhere)]) == 0
    assert elsewhere.read_text(encoding="utf-8") == first
    assert cli.main(["report", str(out / "_gpu_dedup" / "report.json"), "-o", str(elsewhere)]) == 0
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 2
    assert "no finished run of gpu-dedup here" in capsys.readouterr().err
    assert cli.main(["report", str(out), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "page.html: cannot be written" in capsys.readouterr().err


def test_reports_from_before_have_a_page_too(tmp_path: Path) -> None:
    out = run(tmp_path, corpus())
    values = json.loads((out / "_gpu_dedup" / "report.json").read_text())
    for name in ("group_sizes", "likeness"):
        del values["result"][name]
    for group in values["result"]["largest_groups"]:
        del group["text"], group["members"]
    check(page.render(Report.from_dict(values)))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_read() -> None:
    """WCAG 2.1 AA: 4.5 for text, 3 for parts of pictures, in the light and in the dark."""
    light, dark = re.findall(r":root \{(.*?)\}", page._STYLE, re.S)
    for block in (light, dark):
        colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
        for ground in ("bg", "card"):
            for ink in ("ink", "soft"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
            for part in ("c0", "c1", "c3", "c4", "c5"):
                assert contrast(colours[part], colours[ground]) >= 3, (part, ground)
        assert contrast(colours["del-ink"], colours["del"]) >= 4.5
        assert contrast(colours["add-ink"], colours["add"]) >= 4.5
        assert contrast(colours["ink"], colours["warn"]) >= 4.5
    assert math.isclose(contrast("#000000", "#ffffff"), 21)
