"""The rooms of the house: who may import whom, what stays light, which words never appear. Read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
PACKAGE = REPO / "gpu_dedup"
KERNELS = REPO / "kernels"

# Rooms by name; a room is a module of gpu_dedup or a folder with that name.
BASE = {"errors", "recipe", "run", "batch", "backend"}
STAGES = {
    "read", "normalise", "shingle", "sketches", "bands", "bloom", "collide", "hamming", "verify", "cluster", "keep",
    "write", "audit", "weights", "keys",
}  # fmt: skip
SERVICES = {
    "columns",
    "spool",
    "checkpoint",
    "progress",
    "report",
    "page",
    "spans",
    "distribute",
}  # used along the road, but no step of it
FRONT = {"__init__", "__main__", "cli", "show", "outlook", "texts", "reference", "demo", "doctor"}
ROOMS = BASE | STAGES | SERVICES | FRONT | {"pipeline"}

# What a stage may import of this package besides itself. kernels.mix64 and kernels.unicode are tables and integers.
FOR_STAGES = {"errors", "recipe", "batch", "backend", "columns", "spool", "kernels.mix64", "kernels.unicode"}
# What each of the other rooms may import.
ALLOWED = {
    "errors": set(),
    "recipe": {"errors", "kernels.unicode"},
    "run": {"errors"},
    "batch": {"errors"},
    "backend": {"errors", "batch", "run", "kernels"},
    "columns": {"batch"},
    "spool": {"errors", "batch"},
    "checkpoint": {"errors", "recipe", "kernels.unicode"},
    "distribute": {"errors"},  # processes and what they say; what they do is told to it
    "progress": {"errors", "batch"},
    "report": {"columns", "errors", "batch", "recipe", "progress", "__init__"},
    "page": {"errors", "progress", "report", "spans"},
    "spans": set(),
}
# Helpers of more than one operation; a kernel may import these and the files of its own operation.
SHARED_KERNELS = {"mix64", "mix64_cpu", "simd", "jit", "unicode", "npz", "cuda", "tape_cuda", "ranks_cuda"}
# An operation that fuses others may import their helpers.
FUSES = {
    "shingle": {"units"},
    "sketch": {"shingle", "minhash", "units"},
    "fastsketch": {"shingle", "minhash", "sketch", "units"},
    "shingle_sets": {"shingle"},
    "simhash": {"shingle", "shingle_sets", "units"},
    "weights": {"shingle", "units"},
    "edit": {"jaccard"},  # the check of its arguments
    "sweep": {"jaccard", "edit"},
}


def modules(folder: Path) -> list[Path]:
    """Python files below a folder, without what the link `kernels` leads to."""
    return sorted(path for path in folder.rglob("*.py") if (folder / "kernels") not in path.parents)


def imports(path: Path, package: str = "gpu_dedup") -> set[tuple[str, bool]]:
    """(module of this package without its `gpu_dedup.`, whether at top level) for each import of it in a file.

    Imports under `if TYPE_CHECKING:` do not happen and do not count.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                skipped |= set(ast.walk(child))
    inside = {
        child
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.walk(node)
    }
    found: set[tuple[str, bool]] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        top = node not in inside
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write gpu_dedup.…"
            base = node.module or ""
            names = [f"{base}.{a.name}" if (base in (package, f"{package}.kernels")) else base for a in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0]
            text = argument.value if isinstance(argument, ast.Constant) else ast.unparse(argument)
            names = [str(text).strip("f'\"")]
        else:
            continue
        for name in names:
            if name == package:
                found.add(("__init__", top))
            elif name.startswith(f"{package}."):
                found.add((name[len(package) + 1 :], top))
    return found


def room(name: str) -> str:
    """The room of an imported module; a public name imported from the package itself belongs to `__init__`."""
    first = name.partition(".")[0]
    if first == "kernels":
        return ".".join(name.split(".")[:2])
    return first if first in ROOMS else "__init__"


def rooms_of_package() -> dict[str, list[Path]]:
    out: dict[str, list[Path]] = {}
    for path in modules(PACKAGE):
        relative = path.relative_to(PACKAGE)
        out.setdefault(relative.parts[0].removesuffix(".py"), []).append(path)
    return out


def test_every_room_is_known() -> None:
    assert set(rooms_of_package()) <= ROOMS, "a new room: say here what it is and what it may import"
    assert set(rooms_of_package()) >= STAGES | BASE | {"pipeline", "cli"}


@pytest.mark.parametrize("name", sorted(ROOMS - {"pipeline"} - FRONT))
def test_rooms_import_only_what_they_may(name: str) -> None:
    may = FOR_STAGES if name in STAGES else ALLOWED[name]
    for path in rooms_of_package().get(name, []):
        for imported, _ in imports(path):
            target = room(imported)
            if target == name:
                continue
            # `kernels` alone stands for all of them; a stage may have the constants of its own operation's definition
            allowed = target in may or (target.startswith("kernels.") and "kernels" in may)
            allowed = allowed or (name in STAGES and target == f"kernels.{name}_ref")
            assert allowed, (
                f"{path.relative_to(REPO)} imports gpu_dedup.{imported}; {name} may only import {sorted(may)}"
            )


def test_only_the_pipeline_imports_stages() -> None:
    """cli, show, outlook and doctor may ask a stage something for a person, but never run one after another: that order
    is the pipeline's. So they get no sketch, no collide, no verify and no cluster."""
    for name in FRONT:
        for path in rooms_of_package().get(name, []):
            for imported, _ in imports(path):
                assert room(imported) not in {"sketches", "collide", "verify", "cluster", "write"}, (
                    f"{path}: {imported}"
                )


def test_only_the_front_imports_the_pipeline() -> None:
    for name, paths in rooms_of_package().items():
        if name in FRONT | {"pipeline"}:
            continue
        for path in paths:
            assert "pipeline" not in {room(imported) for imported, _ in imports(path)}, path


def operation(stem: str) -> str:
    for suffix in ("_ref", "_cpu", "_cuda", "_build", "_tables"):
        stem = stem.removesuffix(suffix)
    return stem


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda path: path.stem)
def test_kernels_know_only_arrays(path: Path) -> None:
    own = operation(path.stem)
    for imported, _ in imports(path):
        head, _, stem = imported.partition(".")
        assert head == "kernels", f"{path.name} imports gpu_dedup.{imported}: a kernel knows arrays and integers"
        other = operation(stem.partition(".")[0])
        assert stem in SHARED_KERNELS or other == own or other in FUSES.get(own, set()), (
            f"{path.name} imports {imported}"
        )


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*_ref.py")), ids=lambda path: path.stem)
def test_the_definition_needs_no_compiler(path: Path) -> None:
    """The slow backend shares no code with the fast one, and works where Numba cannot compile."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert not name.startswith("numba"), path.name
            assert not name.endswith(("_cpu", ".jit", ".simd")), path.name


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*_cpu.py")), ids=lambda path: path.stem)
def test_each_fast_kernel_has_its_definition(path: Path) -> None:
    shared = {"mix64_cpu", "units_cpu"}
    if path.stem in shared and not (KERNELS / f"{operation(path.stem)}_ref.py").exists():
        assert (KERNELS / f"{operation(path.stem)}.py").exists()
        return
    assert (KERNELS / f"{operation(path.stem)}_ref.py").exists()


ALL_SOURCES = [*modules(PACKAGE), *sorted(KERNELS.glob("*.py"))]


@pytest.mark.parametrize("path", ALL_SOURCES, ids=lambda path: str(path.relative_to(REPO)))
def test_forbidden_calls(path: Path) -> None:
    """Python's hash() differs between processes; parallel=True brings Numba's threading layers and their faults."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        assert not (isinstance(node.func, ast.Name) and node.func.id == "hash"), f"{path}:{node.lineno}: hash()"
        for keyword in node.keywords:
            on = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            assert not (keyword.arg in ("parallel", "fastmath") and on), f"{path}:{node.lineno}: {keyword.arg}=True"


@pytest.mark.parametrize("path", ALL_SOURCES, ids=lambda path: str(path.relative_to(REPO)))
def test_no_global_random_state(path: Path) -> None:
    source = ast.unparse(ast.parse(path.read_text(encoding="utf-8")))
    for word in ("np.random.seed", "random.seed(", "np.random.rand"):
        assert word not in source, f"{path}: {word}"


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in sys.modules after a statement, in a process of its own."""
    code = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import gpu_dedup", {"numba", "llvmlite", "cupy", "pyarrow", "numpy", "click", "tqdm", "xxhash"}),
        ("import gpu_dedup.cli", {"numba", "llvmlite", "cupy", "pyarrow"}),
        ("from gpu_dedup import Recipe; Recipe()", {"numba", "llvmlite", "cupy", "pyarrow"}),
        ("from gpu_dedup import Run; Run()", {"numba", "llvmlite", "cupy", "pyarrow"}),
        ("from gpu_dedup import dedup", {"cupy"}),
        ("from gpu_dedup import dedup_texts, sketch, similarity, explain", {"numba", "cupy", "pyarrow"}),
        (
            "from gpu_dedup import *; dedup_texts(['a', None, 'a'], Recipe(on_bad_row='skip')).to_arrow()",
            {"pandas", "polars", "datasets", "numba", "cupy"},
        ),
    ],
)
def test_imports_stay_light(statement: str, heavy: set[str]) -> None:
    assert loaded_after(statement) & heavy == set()


def test_the_numpy_backend_needs_no_numba() -> None:
    statement = "from gpu_dedup.backend import host_backend; host_backend('numpy')"
    assert loaded_after(statement) & {"numba", "llvmlite", "cupy"} == set()


def test_public_names_are_true() -> None:
    import gpu_dedup

    for name in gpu_dedup.__all__:
        assert getattr(gpu_dedup, name) is not None
    assert set(gpu_dedup.__all__) <= set(dir(gpu_dedup))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gpu_dedup.no_such_name


def test_kernels_refuse_to_be_a_package_of_their_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import kernels"], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "from gpu_dedup.kernels import" in done.stderr
