"""The benchmarks of this machine run, check equality before they time, and leave numbers that say where they come
from."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))
import run_all  # noqa: E402

SMALL = {
    "extract": ["--megabytes", "0.05"], "normalise": ["--megabytes", "0.02"], "sketch": ["--megabytes", "0.05"],
    "simhash": ["--megabytes", "0.02"],
    "hamming": ["--sizes", "2000", "--megabytes", "0.05"], "cascade": ["--megabytes", "0.03"],
    "collide": ["--heads", "2000"], "verify": [], "bloom": ["--keys", "3000"], "audit": ["--documents", "300"],
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_kernel_benchmark_runs(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / run_all.SCRIPTS[name]), "--quick", "--json", str(out), *SMALL[name]],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["benchmark"] == name
    assert found["machine"]["processor"]
    assert found["date"].endswith("Z")
    assert "numpy" in found["versions"]
    numbers = [value for value in flat(found) if isinstance(value, float)]
    assert len(numbers) > 5
    assert found["machine"]["processor"] in done.stdout


def flat(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for entry in value.values() for leaf in flat(entry)]
    if isinstance(value, list):
        return [leaf for entry in value for leaf in flat(entry)]
    return [value]


def test_every_kernel_benchmark_is_in_the_list() -> None:
    assert {path.name for path in BENCHMARKS.glob("bench_*.py")} == {
        name for name in run_all.SCRIPTS.values() if name.startswith("bench_")
    }
    assert set(SMALL) == set(run_all.SCRIPTS) - {"quality"}  # which has tests of its own


@pytest.mark.parametrize("name", [name for name in run_all.SCRIPTS if name != "quality"])
def test_equality_is_checked_before_anything_is_timed(name: str) -> None:
    """Each script compares with the definition: an `assert` or np.testing call stands in it."""
    tree = ast.parse((BENCHMARKS / run_all.SCRIPTS[name]).read_text())
    checks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and "assert_array_equal" in ast.unparse(node.func))
    ]
    assert checks


def test_all_in_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)\n")
    monkeypatch.setitem(run_all.SCRIPTS, "broken", str(broken))
    arguments = ["run_all.py", "--quick", "--results", str(tmp_path / "r"), "--only"]
    monkeypatch.setattr(sys, "argv", [*arguments, "broken,audit"])
    assert run_all.main() == 1
    out = capfd.readouterr().out
    assert "broken: FAILED (3)" in out
    assert "failed: broken" in out
    assert json.loads((tmp_path / "r" / "audit-quick.json").read_text())["benchmark"] == "audit"
    monkeypatch.setattr(sys, "argv", [*arguments, "nothing"])
    with pytest.raises(SystemExit):
        run_all.main()
    assert "'nothing' is no benchmark" in capfd.readouterr().err
