"""doctor answers whatever is broken."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpu_dedup import __version__, doctor


def test_doctor_names_versions_backends_caches_and_codecs() -> None:
    text = doctor.doctor()
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert __version__ in lines["gpu-dedup"]
    assert sys.version.split()[0] in lines["python"]
    assert "available: the definition" in lines["numpy"]
    assert "zstd" in lines["codecs"]
    assert "not built in this version" in lines["cuda"]
    assert f"{len(os.sched_getaffinity(0))} usable" in lines["cores"]
    assert "failed" not in lines


def test_numba_is_available_here() -> None:
    assert doctor._backend_problem("numba") is None
    assert doctor._backend_problem("nothing") == "RunError: backend 'nothing' is unknown; choose numpy or numba"


def test_a_broken_part_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise RuntimeError("driver says no")

    monkeypatch.setattr(doctor, "PARTS", (("backends", broken), *doctor.PARTS[-1:]))
    text = doctor.doctor()
    assert "RuntimeError: driver says no" in text
    assert "codecs" in text


def test_a_folder_that_cannot_hold_kernels_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gpu_dedup.kernels import jit

    monkeypatch.setattr(jit, "CACHE_DIR", None)
    assert "NUMBA_CACHE_DIR" in doctor.doctor()
    monkeypatch.setattr(jit, "CACHE_DIR", str(tmp_path))
    assert f"{tmp_path} (writable; empty: the next run compiles first" in doctor.doctor()
    (tmp_path / "kernel.nbc").write_bytes(b"x" * 5000)
    assert f"{tmp_path} (writable; 1 files, 5 kB)" in doctor.doctor()


def test_cupy_that_fails_in_any_way_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> object:
        raise OSError("libcuda.so.1: cannot open")

    monkeypatch.setattr(doctor, "import_module", fails)
    assert doctor._cupy() == "fails to load: OSError: libcuda.so.1: cannot open"
