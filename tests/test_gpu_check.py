"""benchmarks/gpu_check.py runs as far as it can without a GPU, and the stand-in answers as CuPy did on one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

REPO = Path(__file__).resolve().parent.parent
SCRIPT = REPO / "benchmarks" / "gpu_check.py"
RECORDED = REPO / "benchmarks" / "results" / "gpu_check.json"


def script():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    import emulator
    from cuda_fixtures import need

    need(emulator.missing())
    out = tmp_path_factory.mktemp("gpu_check")
    command = [sys.executable, str(SCRIPT), "--stand-in", "--parts", "probes,kernels", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all in order" in done.stdout
    return json.loads((out / "gpu_check.json").read_text())


def test_probes_by_hand(checked):
    probes = checked["probes"]
    assert len(probes) >= 60
    assert probes["sort of uint64"]["values"] == [1, 1, 2, 3]
    assert probes["argsort of uint8"] == {"dtype": "int64", "shape": [4], "values": [1, 3, 2, 0]}
    assert probes["cumsum of uint8 to int64"] == {"dtype": "int64", "shape": [3], "values": [3, 4, 6]}
    assert probes["scalars_by_numpy_type"]["values"] == [-5, (2**63 + 1) - 2**64]
    assert probes["narrow_scalars"]["values"] == [-3, 200, 60000]
    assert probes["error_kinds"][0][:2] == ["OutOfMemoryError", "MemoryError"]
    unexpected = {name: found for name, found in probes.items() if isinstance(found, dict) and "error" in found}
    assert set(unexpected) <= script().STRICTER, unexpected


def test_every_road_was_walked(checked):
    kernels = checked["kernels"]
    assert kernels["equal"] is True
    assert {
        "minhash",
        "throw_pieces",
        "fill_pieces",
        "chunk_digests",
        "unit_hash",
        "shared_items",
        "agreements",
        "set_items",
    } <= set(kernels["kernels"])


def test_the_stand_in_answers_as_cupy_did(checked):
    if not RECORDED.exists():
        pytest.skip("no GPU has run benchmarks/gpu_check.py yet; its gpu_check.json belongs into benchmarks/results")
    recorded = json.loads(RECORDED.read_text())
    assert recorded["stand_in"] is False
    assert script().differences(checked["probes"], recorded["probes"]) == []


def test_a_difference_is_seen():
    differences = script().differences
    assert differences({"a": 1, "b": 2, "len": 3}, {"a": 1, "b": 5, "len": 4, "c": 1}) == ["b"]


def test_the_text_is_the_same_for_a_seed_and_has_near_copies():
    corpus = script().corpus
    texts = corpus(5, 40_000)
    assert texts == corpus(5, 40_000) != corpus(6, 40_000)
    assert sum(len(t.encode()) for t in texts) >= 40_000
    words = [set(t.split()) for t in corpus(5, 300_000)]
    alike = [len(a & b) / max(len(a | b), 1) for i, a in enumerate(words) for b in words[:i] if len(a) > 20]
    assert np.count_nonzero(np.array(alike) > 0.8) > 5
