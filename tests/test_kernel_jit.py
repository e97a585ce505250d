"""The cache of compiled kernels: its place, and what a run makes of a damaged, unwritable or shared one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PLACE = "from gpu_dedup.kernels import jit; print(jit.CACHE_DIR)"
# One small kernel of the package: enough to make a cache entry and to read it again.
WORK = """
import numpy as np
from gpu_dedup.kernels import jit
from gpu_dedup.kernels.components_cpu import components
def warm():
    return components(3, np.array([0], np.int64), np.array([2], np.int64)).tolist()
print(jit.guarded(warm), jit.is_cold())
"""


def run(code: str, **environment: str) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**env, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def entries(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.rglob(f"*{suffix}"))


def test_the_users_cache_folder_is_used_but_only_a_corner_of_it(tmp_path: Path) -> None:
    place = Path(run(PLACE, NUMBA_CACHE_DIR=str(tmp_path)))
    assert place.parent == tmp_path / "gpu-dedup"


def test_xdg_cache_home_comes_next(tmp_path: Path) -> None:
    assert Path(run(PLACE, XDG_CACHE_HOME=str(tmp_path))).parent == tmp_path / "gpu-dedup"


def test_no_home_falls_back_to_a_private_temporary_folder(tmp_path: Path) -> None:
    place = Path(run(PLACE, HOME="", XDG_CACHE_HOME="/dev/null/nowhere", TMPDIR=str(tmp_path)))
    assert tmp_path in place.parents
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Cached machine code is executed: nobody else may plant it."""
    from gpu_dedup.kernels import jit

    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert not jit._usable(str(open_to_all))
    open_to_all.chmod(0o700)
    assert jit._usable(str(open_to_all))


def test_nowhere_to_write_compiles_without_a_cache() -> None:
    code = "from gpu_dedup.kernels import jit; jit._usable = lambda folder: False; print(jit.choose_cache_dir())"
    assert run(code) == "None"


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", ["cut", "empty", "noise"])
def test_a_damaged_entry_is_made_anew(tmp_path: Path, suffix: str, damage: str) -> None:
    assert run(WORK, NUMBA_CACHE_DIR=str(tmp_path)) == "[0, 1, 0] False"
    files = entries(tmp_path, suffix)
    assert files
    for path in files:
        content = path.read_bytes()
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "noise": b"\x93noise" * 9}[damage])
    assert run(WORK, NUMBA_CACHE_DIR=str(tmp_path)) == "[0, 1, 0] False"
    assert run(WORK, NUMBA_CACHE_DIR=str(tmp_path)) == "[0, 1, 0] False"


def test_two_processes_fill_one_cache_at_once(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", WORK]
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert out.strip() == "[0, 1, 0] False"


def test_the_users_own_functions_keep_their_cache(tmp_path: Path) -> None:
    code = (
        "from numba.core import config; before = config.CACHE_DIR\n"
        "import gpu_dedup.kernels.components_cpu\n"
        "print(config.CACHE_DIR == before)"
    )
    assert run(code, XDG_CACHE_HOME=str(tmp_path)) == "True"


def test_the_digest_follows_the_sources() -> None:
    from gpu_dedup.kernels import jit

    assert jit.sources_digest() in str(jit.choose_cache_dir())
    assert len(jit.sources_digest()) == 8


def test_what_is_stored_is_made_once_and_anew_after_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_dedup.kernels import jit

    made: list[int] = []

    def make() -> tuple[np.ndarray, ...]:
        made.append(1)
        return np.arange(1000, dtype=np.uint32), np.zeros(0, np.uint8), np.array([[1, 2], [3, 4]], np.int64)

    def check() -> int:
        made.clear()
        found = jit.stored("some", make)
        for one, other in zip(found, make(), strict=True):
            assert one.dtype == other.dtype
            assert one.flags.writeable  # one type for Numba, wherever it comes from
            np.testing.assert_array_equal(one, other)
        return len(made) - 1

    monkeypatch.setattr(jit, "CACHE_DIR", str(tmp_path))
    assert [check(), check()] == [1, 0]
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:100] + b"\1" + content[101:]):
        path.write_bytes(damaged)
        assert [check(), check()] == [1, 0]
    for folder in (None, str(tmp_path / "not there")):
        monkeypatch.setattr(jit, "CACHE_DIR", folder)
        assert [check(), check()] == [1, 1]
