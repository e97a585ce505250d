"""Which names of the stand-in CuPy itself has. Run once per CuPy version, with that version on the path:

    python tests/cuda/cupy_names.py          adds the version to cupy_names.json; CuPy imports without a GPU

tests/test_cuda_standin.py holds that every name of the stand-in is there in each version of the file.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FILE = HERE / "cupy_names.json"

# Classes whose public attributes are checked too, by their name in CuPy.
CLASSES = (
    "ndarray", "RawModule", "RawKernel", "cuda.Stream", "cuda.Device", "cuda.MemoryPool",
    "cuda.memory.OutOfMemoryError", "cuda.runtime.CUDARuntimeError",
)  # fmt: skip
# These have no name in the stand-in's modules; a call returns them.
PRIVATE = {"RawKernel": "RawKernel", "cuda.MemoryPool": "MemoryPool"}
FUNCTIONS = ("asarray", "asnumpy", "argsort", "cumsum", "empty", "sort", "take", "zeros")


def standin_names() -> list[str]:
    """Every dotted name that the stand-in offers, and its functions' parameters as `name(parameter)`."""
    import cupy
    from cupy import _standin

    names = ["__version__"]
    modules: list[tuple[str, Any]] = [("", cupy), ("cuda.", cupy.cuda), ("cuda.runtime.", cupy.cuda.runtime),
                                      ("cuda.memory.", cupy.cuda.memory)]  # fmt: skip
    for prefix, module in modules:
        names += [prefix + name for name in module.__all__]
    for path in CLASSES:
        if path in PRIVATE:
            names.append(path)
            kind = getattr(_standin, PRIVATE[path])
        else:
            kind = cupy
            for part in path.split("."):
                kind = getattr(kind, part)
        names += [f"{path}.{name}" for name in vars(kind) if not name.startswith("_")]
    for name in FUNCTIONS:
        names += [f"{name}({parameter})" for parameter in inspect.signature(getattr(cupy, name)).parameters]
    return sorted(names)


def has(module: Any, name: str) -> bool:
    """CuPy has the name."""
    path, _, parameter = name.rstrip(")").partition("(")
    thing = module
    try:
        for part in path.split("."):
            thing = getattr(thing, part)
    except AttributeError:
        return False
    return not parameter or parameter in inspect.signature(thing).parameters


def main() -> None:
    out = subprocess.run(
        [sys.executable, "-c", "import json, cupy_names; print(json.dumps(cupy_names.standin_names()))"],
        env={"PYTHONPATH": f"{HERE / 'standin'}:{HERE}"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    import cupy

    if not hasattr(cupy, "ndarray") or hasattr(cupy, "_standin"):
        sys.exit("cupy_names.py: CuPy itself must be on the path, not the stand-in")
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known[cupy.__version__] = [name for name in json.loads(out.stdout) if has(cupy, name)]
    FILE.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")


if __name__ == "__main__":
    main()
