"""The documentation is true: every command and option is on its page, every example runs and prints what it shows."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import click
import pytest

from gpu_dedup import cli
from gpu_dedup.recipe import Recipe
from gpu_dedup.run import Run

REPO = Path(__file__).resolve().parent.parent
DOCS = REPO / "gpu_dedup" / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name != "options.md")
OPTIONAL = ("pandas", "polars", "datasets")


@dataclass
class Block:
    """A fenced block; `shown` is the block of output right behind it."""

    language: str
    text: str
    line: int
    shown: str | None = None


def blocks(path: Path) -> list[Block]:
    found: list[Block] = []
    text = path.read_text(encoding="utf-8")
    last_end = -1
    for match in re.finditer(r"^```([a-z]*)\n(.*?)^```$", text, re.S | re.M):
        language, body = match[1], match[2]
        if language == "text" and found and not text[last_end : match.start()].strip():
            found[-1].shown = body
        else:
            found.append(Block(language, body, text.count("\n", 0, match.start()) + 1))
        last_end = match.end()
    return found


def test_every_command_and_option_is_documented() -> None:
    """Read off the page itself, so that it would be missed if the generator left something out. (That the page is what
    the generator makes is held in test_cli.py, beside the tables.)"""
    page = (DOCS / "options.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## gpu-dedup ([a-z]+)$", page, re.M)) == set(cli.cli.commands)
    for name, command in cli.cli.commands.items():
        part = page.split(f"## gpu-dedup {name}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for flag in parameter.opts:
                    assert re.search(rf"`[^`]*{re.escape(flag)}(?![a-z-])[^`]*`", part), f"{name} {flag}"
    for entry in fields(Recipe):
        assert f"`Recipe.{entry.name}`" in page, entry.name
    for entry in fields(Run):
        assert f"`Run.{entry.name}" in page, entry.name


def test_every_option_on_a_page_exists() -> None:
    known = {
        flag for command in cli.cli.commands.values() for p in command.params for flag in (*p.opts, *p.secondary_opts)
    }
    for path in [*PAGES, REPO / "README.md", REPO / "gpu_dedup" / "README.md"]:
        text = path.read_text(encoding="utf-8")
        for line in text.splitlines():
            if "python -m text_dedup" in line or "pip install" in line or "python -m pytest" in line:
                continue
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line):
                assert flag in known or flag == "--gpu-dedup", f"{path.name}: {flag} in: {line}"


def test_links_lead_somewhere() -> None:
    for path in [*PAGES, DOCS / "options.md", REPO / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name}: {target}"
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for path in DOCS.glob("*.md"):
        assert path.name == "README.md" or f"({path.name})" in index, f"docs/README.md does not list {path.name}"


def shown_in(shown: str, printed: str) -> str | None:
    """The first line that is shown but was not printed, in this order; white space folded, `...` is anything."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    at = 0
    for line in filter(None, (" ".join(one.split()) for one in shown.splitlines())):
        pattern = re.compile(".*".join(re.escape(part.strip()) for part in line.split("...")))
        match = next((i for i in range(at, len(lines)) if pattern.fullmatch(lines[i])), None)
        if match is None:
            return line
        at = match + 1
    return None


def test_shown_output_is_found() -> None:
    assert shown_in("a  b\n...\nd ... f\n", "a b\nc\nd e f\n") is None
    assert shown_in("a\nc\n", "c\na\n") == "c"
    assert shown_in("a ... c\n", "a b\n") == "a ... c"


def command_of(block: Block) -> list[str]:
    if block.language == "python":
        return [sys.executable, "-c", block.text]
    return ["bash", "-euo", "pipefail", "-c", block.text]


def merged(page: list[Block]) -> list[Block]:
    """Python blocks of a page share their names, so those that nothing else stands between are one process."""
    out: list[Block] = []
    for block in page:
        if block.language not in ("bash", "python"):
            continue
        if out and block.language == out[-1].language == "python":
            shown = (out[-1].shown or "") + (block.shown or "")
            out[-1] = Block("python", out[-1].text + "\n" + block.text, out[-1].line, shown)
        else:
            out.append(block)
    return out


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / "gpu-dedup"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpu_dedup "$@"\n')
    tool.chmod(0o755)
    folder = tmp_path / "here"
    folder.mkdir()
    environment = {
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(REPO), "COLUMNS": "100",
        "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "PYTHONWARNINGS": "ignore", "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    missing = {name for name in OPTIONAL if importlib.util.find_spec(name) is None}
    page = blocks(path)
    wanted = [block for block in page if not any(f"import {name}" in block.text for name in missing)]
    for block in merged(wanted):
        done = subprocess.run(
            command_of(block), cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        where = f"{path.name}, line {block.line}"
        assert done.returncode == 0, f"{where}:\n{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        if block.shown:
            lacking = shown_in(block.shown, done.stdout)
            assert lacking is None, f"{where} shows {lacking!r}, and it printed:\n{done.stdout[-3000:]}"
    if len(wanted) < len(page):
        pytest.skip(f"{len(page) - len(wanted)} examples were left out: {', '.join(sorted(missing))} not installed")


def test_the_readme_s_python_runs(tmp_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl" / "a.jsonl").write_text('{"text": "a b c", "quality": 1}\n{"text": "a b c", "quality": 2}\n')
    found = [block for block in blocks(REPO / "README.md") if block.language == "python"]
    assert found
    for block in found:
        done = subprocess.run(
            command_of(block), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "clean" / "a.jsonl").read_text() == '{"text": "a b c", "quality": 2}\n'
