"""The demo: finds text, takes nothing twice, is the same on every run, and never touches what is not its own."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_dedup import Run, demo
from gpu_dedup.errors import OutputError, UserError
from gpu_dedup.report import Report

REPO = Path(__file__).resolve().parent.parent
WORDS = " ".join(f"clause{i}" for i in range(80))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small machine: two installations with copies and near copies, a manual, and things that are no text."""
    root = tmp_path / "machine"
    files: dict[str, bytes] = {}
    for where in ("one", "two"):
        for name in ("alpha", "beta"):
            licence = f"{WORDS} as {name} asks for it"
            files[f"{where}/{name}.dist-info/LICENSE"] = licence.encode()
            files[f"{where}/{name}/__init__.py"] = f"def {name}():\n    return {'x' * 80!r}\n".encode()
    files["one/alpha.dist-info/METADATA"] = b"Name: alpha\n" + b"A package that does something useful. " * 3
    files["one/METADATA"] = b"not the metadata of a package " * 9
    files["one/data.bin"] = b"words " * 50
    files["one/binary.txt"] = b"words\0" * 50
    files["one/latin.txt"] = b"caf\xe9 " * 50
    files["one/short.txt"] = b"short"
    files["one/__pycache__/cached.py"] = b"cached = 1 " * 20
    files["one/README"] = b"read me, I am a page of text about nothing at all, " * 4
    files["one/setup.cfg"] = b"[metadata] " * 20
    files["man/tool.1"] = b"TOOL(1) a tool that does what tools do, and no more than that. " * 3
    files["man/gz.1.gz"] = gzip.compress(
        b"GZ(1) compresses what it is given, and says nothing at all about it. " * 3, mtime=0
    )
    files["man/cut.1.gz"] = gzip.compress(os.urandom(300), mtime=0)[:150]
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    os.symlink(root / "one/README", root / "one/README.md")
    os.link(root / "one/README", root / "two/README.txt")
    roots = [(str(root / "one"), None), (str(root / "two"), None), (str(root / "man"), "manual")]
    monkeypatch.setattr(demo, "roots", lambda: roots)
    return root


def test_what_is_taken_and_in_which_order(machine: Path) -> None:
    found = [(kind, os.path.relpath(path, machine)) for kind, path, _ in demo.texts(10**6)]
    assert found == [
        ("licences", "one/alpha.dist-info/LICENSE"),
        ("licences", "two/alpha.dist-info/LICENSE"),
        ("licences", "one/beta.dist-info/LICENSE"),
        ("licences", "two/beta.dist-info/LICENSE"),
        ("docs", "one/README"),
        ("docs", "one/alpha.dist-info/METADATA"),
        ("manual", "man/gz.1.gz"),
        ("manual", "man/tool.1"),
        ("sources", "one/alpha/__init__.py"),
        ("sources", "two/alpha/__init__.py"),
        ("sources", "one/beta/__init__.py"),
        ("sources", "two/beta/__init__.py"),
    ]


def test_the_limit_holds(machine: Path) -> None:
    for limit in (500, 1000, 2000):
        assert 0 < sum(len(text) for _, _, text in demo.texts(limit)) <= limit


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/x/LICENSE", "licences"), ("/x/COPYING.LESSER", "licences"), ("/x/copyright", "licences"),
        ("/x/licenses.py", "sources"), ("/x/a.py", "sources"), ("/x/a.pyi", "sources"), ("/x/a.rst", "docs"),
        ("/x/README", "docs"), ("/x/changelog.gz", "docs"), ("/x/a.egg-info/PKG-INFO", "docs"),
        ("/x/a.dist-info/METADATA", "docs"), ("/x/METADATA", None), ("/x/a.so", None), ("/x/readme.html", None),
        ("/x/license.h", None),
    ],
)  # fmt: skip
def test_kinds(path: str, kind: str | None) -> None:
    assert demo.kind_of(path) == kind


def test_the_demo_deduplicates_and_shows(machine: Path, tmp_path: Path) -> None:
    said: list[str] = []
    folder = str(tmp_path / "demo")
    demo.demo(folder, 10**6, Run(progress=False, backend="numpy"), said.append)
    report = Report.load(os.path.join(folder, "output"))
    assert report.counts.read == 12
    # Of four licences one stays: the copies of each are equal, and the two differ in one word.
    assert report.counts.by_reason["exact"] == 1 + 2
    assert report.counts.by_reason["near"] == 1
    assert report.counts.by_reason["exact+near"] == 1
    text = "\n".join(said)
    assert "12 texts of this machine" in text
    assert report.summary() in said
    assert text.count("\nwhy      ") == 3
    assert "why      near" in text
    assert "why      exact" in text
    assert "[-beta-]" in text
    shards = sorted(os.listdir(os.path.join(folder, "input")))
    assert shards == ["docs-00.jsonl", "licences-00.jsonl", "manual-00.jsonl", "sources-00.jsonl"]
    with open(os.path.join(folder, "input", "docs-00.jsonl")) as file:
        assert json.loads(file.readline())["id"] == str(machine / "one/README")

    before = {name: Path(folder, "input", name).read_bytes() for name in shards}
    again: list[str] = []
    demo.demo(folder, 10**6, Run(progress=False, backend="numpy"), again.append)
    assert {
        name: Path(folder, "input", name).read_bytes() for name in os.listdir(os.path.join(folder, "input"))
    } == before
    assert again[-1] == said[-1]
    assert Report.load(os.path.join(folder, "output")).to_dict()["result"] == report.to_dict()["result"]


def test_a_foreign_folder_is_left_alone(machine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="not of an earlier demo"):
        demo.demo(str(folder), 10**6, Run(progress=False), print)
    assert os.listdir(folder) == ["thesis.txt"]


def test_a_machine_without_text_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "roots", list)
    with pytest.raises(UserError, match="no readable text"):
        demo.demo(str(tmp_path / "demo"), 10**6, Run(progress=False), print)


def test_the_command_on_this_machine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpu_dedup", "demo", "--limit-mb", "4", "-o", str(tmp_path / "demo")],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = Report.load(str(tmp_path / "demo" / "output"))
    assert report.counts.removed > 0
    assert done.stdout.count("\nwhy      ") == min(3, report.counts.removed)
    assert all(line.startswith("gpu-dedup: ") for line in done.stderr.splitlines())
