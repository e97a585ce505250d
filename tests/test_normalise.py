"""What counts of a text: markup, accents - from the command's options to the rows that go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import pytest

from gpu_dedup import Recipe
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
