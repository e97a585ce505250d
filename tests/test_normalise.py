"""What counts of a text: markup, accents, stripped ends, the first characters; from the recipe to the rows that go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import oracle
import pyarrow as pa
import pytest

from gpu_dedup import Recipe
from gpu_dedup.errors import RecipeError
from gpu_dedup.outlook import compare
from gpu_dedup.show import show

WORDS = [f"word{number}" for number in range(60)]
BODY = " ".join(WORDS)


@pytest.fixture(params=["numpy", "numba"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def go(tmp_path: Path, backend: str):
    """Run over rows (of one file) and give what harness.run gives."""
    count = 0

    def run(records: list[dict[str, Any]], name: str = "a.jsonl", /, **recipe: Any) -> harness.Ran:
        nonlocal count
        count += 1
        source = harness.write_rows(tmp_path / f"in{count}" / name, records)
        return harness.run(source, tmp_path / f"out{count}", Recipe(**recipe), backend=backend)

    return run


def rows_of(texts: dict[str, str]) -> list[dict[str, Any]]:
    return [{"id": name, "text": text} for name, text in texts.items()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_pages_that_differ_in_markup_alone(go, name: str) -> None:
    other = BODY.replace("word5 ", "<b class='x>'>w&oacute;rd5</b> ").replace(" word9", "<script>var x;</script> word9")
    rows = rows_of({"page": f"<p>{BODY}</p>", "text": BODY.replace("word5 ", "wórd5 "), "bold": other})
    ran = go(rows, name, method="exact", normalize=("html", "nfkc", "lower", "whitespace"))
    assert ran.groups == {"text": ["bold"]}
    ran = go(rows, name, method="exact", normalize=("html", "nfkc", "lower", "accents", "whitespace"))
    assert ran.groups == {"page": ["text", "bold"]}
    assert ran.rows(name)[0] == harness.read_rows(ran.inputs[name])[0]  # as it came, markup and all
    assert go(rows, name, method="exact", normalize=("whitespace",)).groups == {}


def test_near_copies_are_judged_by_what_the_oracle_makes_of_pages(go) -> None:
    texts = {}
    for number in range(6):
        words = list(WORDS)
        words[10 * number] = "résumé"
        words[10 * number + 3] = "<i>re\u0301sume\u0301</i>&nbsp;&amp;"
        texts[f"d{number}"] = f"<html><!-- it's {number} --><p>" + " ".join(words) + "</p>"
    recipe = Recipe(
        normalize=("html", "nfkc", "lower", "accents", "whitespace"), threshold_ppm=500_000, **harness.FULL_RECALL
    )
    ran = go(rows_of(texts), normalize=recipe.normalize, threshold_ppm=500_000, **harness.FULL_RECALL)
    assert ran.check(harness.rules_of(recipe)) == []
    assert ran.removed


def test_show_and_compare_take_the_steps_into_account(go) -> None:
    rows = rows_of({"page": f"<p>{BODY}</p>", "bold": f"<div><b>{BODY}</b></div>"})
    ran = go(rows, normalize=("html", "nfkc", "lower", "whitespace"))
    assert ran.groups == {"page": ["bold"]}
    shown = show(str(ran.out), "id:bold", width=100)
    assert "<b>" not in shown
    assert "without tags" in shown
    assert "[-" not in shown
    one, other = f"<p>{BODY}</p> été", f"<b>{BODY}</b> ete"
    with_steps = Recipe(normalize=("html", "accents", "whitespace"))
    assert "1.0000" in compare(one, other, with_steps, False)
    assert "1.0000" not in compare(one, other, Recipe(), False)


SENTENCES = [f"Sentence {number} says {' '.join(WORDS[number : number + 8])}." for number in range(40)]
LONG = " ".join(SENTENCES)


@pytest.mark.parametrize("method", ["minhash", "exact"])
def test_only_the_first_characters_count(go, method: str) -> None:
    rows = rows_of({"a": LONG, "b": LONG.replace("Sentence 30", "Quite another"), "c": LONG[:1200], "d": LONG[900:]})
    recipe: dict[str, Any] = {"method": method, "normalize": ("nfkc", "lower", "whitespace")}
    ran = go(rows, **recipe, max_chars=1000)
    assert ran.groups == {"a": ["b", "c"]}
    assert set(ran.reasons().values()) == {"exact"}
    assert ran.rows("a.jsonl")[0] == harness.read_rows(ran.inputs["a.jsonl"])[0]  # as it came, in full
    assert "exact" not in go(rows, **recipe).reasons().values()
    shown = show(str(ran.out), "id:b", width=100)
    assert "the first 1,000 characters" in shown
    assert "changed" not in shown


def test_cut_texts_are_judged_as_the_oracle_judges_their_beginnings(go) -> None:
    texts = {f"d{i}": LONG[:900].replace(f"Sentence {i} says", "Somebody") + " tail" * 50 * i for i in range(8)}
    recipe = Recipe(max_chars=700, threshold_ppm=600_000, **harness.FULL_RECALL)
    ran = go(rows_of(texts), max_chars=700, threshold_ppm=600_000, **harness.FULL_RECALL)
    assert ran.removed
    sets = {}
    for name, text in texts.items():
        normal = oracle.normalise(text)
        kept = normal[: normal[:700].rindex(".") + 1]  # a blank follows each point here
        sets[name] = oracle.shingles(kept, "token", 5)
    for entry in ran.removed:
        assert (entry["shared"], entry["union"]) == oracle.jaccard(sets[entry["id"]], sets[entry["kept_id"]])
        assert oracle.meets(entry["shared"], entry["union"], recipe.threshold_ppm)


def test_the_cut_makes_no_text_short_enough_for_nothing(go) -> None:
    assert go(rows_of({"a": "x" * 90, "b": "x" * 80}), max_chars=10).groups == {"a": ["b"]}


@pytest.mark.parametrize("method", ["minhash", "exact"])
def test_template_strings_do_not_count(go, method: str) -> None:
    news = " ".join(WORDS[:12])
    rows = rows_of(
        {
            "a": news,
            "b": f"{news} | The Daily  News",
            "c": f"Accept cookies! {news} - the daily news | THE DAILY NEWS",
            "d": f"{news} | the weekly news",
            "e": "| The Daily News",
            "f": "accept cookies! accept cookies!",
        }
    )
    steps = ("nfkc", "lower", "whitespace")
    ends = ("| The Daily News", "- The Daily News", "ACCEPT COOKIES!")
    ran = go(rows, method=method, normalize=steps, strip=ends)
    assert ran.groups["a"] == ["b", "c"]
    assert ran.report["result"]["counts"]["no_text"] == 2
    assert ran.report["result"]["recipe"]["strip"] == list(ends)
    assert "b" not in go(rows, method=method, normalize=steps).groups.get("a", [])
    # With punctuation out of both, the separators do not matter.
    ran = go(rows, method=method, normalize=("lower", "punctuation", "whitespace"), strip=("The Daily News", *ends[2:]))
    assert ran.groups["a"] == ["b", "c"]


def test_a_string_of_which_nothing_is_left_is_refused(go) -> None:
    with pytest.raises(
        RecipeError, match=r"strip string 2, '---': nothing is left .* nfkc,punctuation,whitespace; drop"
    ):
        go(rows_of({"a": "x"}), normalize=("nfkc", "punctuation", "whitespace"), strip=("x", "---"))


def test_near_copies_behind_templates_have_true_numbers(go) -> None:
    texts = {}
    for number in range(6):
        words = list(WORDS)
        words[9 * number] = "changed"
        texts[f"d{number}"] = " ".join(words) + " Read more on our site" * (number % 3)
    ran = go(rows_of(texts), strip=("Read more on our site",), threshold_ppm=500_000, **harness.FULL_RECALL)
    sets = {}
    for name, text in texts.items():
        sets[name] = oracle.shingles(oracle.normalise(text).replace(" read more on our site", ""), "token", 5)
    assert ran.removed
    for entry in ran.removed:
        assert (entry["shared"], entry["union"]) == oracle.jaccard(sets[entry["id"]], sets[entry["kept_id"]])
    shown = show(str(ran.out), "0", width=100)
    assert "without the 1 strings of --strip" in shown
    assert "changed:" not in shown


def test_comparison_of_two_texts_strips_and_cuts() -> None:
    assert "1.0000" in compare(LONG[:1200], LONG[:1300], Recipe(max_chars=1000), False)
    assert "1.0000" in compare(BODY, BODY + " the end", Recipe(strip=("The End",)), False)
    assert "1.0000" not in compare(BODY, BODY + " the end", Recipe(), False)


@pytest.mark.parametrize("settings", [{}, {"method": "exact"}, {"method": "simhash"}, {"method": "cascade"}], ids=str)
def test_several_fields_are_one_text_in_every_format(tmp_path: Path, settings: dict[str, Any]) -> None:
    long = " ".join(WORDS)
    rows: list[dict[str, Any]] = [
        {"id": "a", "title": "A title", "body": {"text": long}},
        {"id": "b", "title": "A title", "body": {"text": long}},
        {"id": "c", "title": None, "body": {"text": long}},
        {"id": "d", "title": long, "body": {"text": None}},
        {"id": "e", "title": long, "body": None},
        {"id": "f", "title": None, "body": {"text": " ".join(WORDS[::-1])}},
        {"id": "g", "title": "", "body": {"text": long}},
    ]
    groups = []
    for name in ("a.jsonl", "a.parquet", "a.arrow"):
        path = tmp_path / name
        if name == "a.arrow":
            table = pa.Table.from_pylist(rows)
            with pa.ipc.new_file(path, table.schema) as made:
                made.write_table(table)
        else:
            harness.write_rows(path, rows)
        recipe = Recipe(text_field=("title", "body.text"), normalize=("whitespace",), **settings)
        ran = harness.run(path, tmp_path / f"out-{name}", recipe, backend="numpy")
        assert ran.reasons()["b"] == "exact"
        assert {ran.reasons()[name] for name in "de"} <= {"exact", "exact+near"}
        groups.append(ran.removed)
    for log in groups[1:]:
        for entry in log:
            entry["file"], entry["kept_file"] = "a.jsonl", "a.jsonl"
        assert log == groups[0]
