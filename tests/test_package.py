"""What ships: the wheel, the source archive and the editable install hold every module once, and work without the
repo."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
CODE = {".py", ".npz", ".cu", ".cuh", ".h", ".typed"}


def sources() -> dict[str, Path]:
    """Every file that must ship, by its path in an installation."""
    out = {}
    for folder, prefix in ((REPO / "gpu_dedup", "gpu_dedup"), (REPO / "kernels", "gpu_dedup/kernels")):
        for path in sorted(folder.rglob("*")):
            relative = path.relative_to(folder)
            inside_link = prefix == "gpu_dedup" and relative.parts[0] == "kernels"
            if path.is_file() and path.suffix in CODE and not inside_link:
                out[f"{prefix}/{relative.as_posix()}"] = path
    return out


def build(tree: Path, kind: str, into: Path) -> None:
    """Call the build backend as pip does, in a process of its own."""
    into.mkdir(exist_ok=True)
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(into)], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist, built by the backend that pyproject names from a copy of the tree."""
    setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} is older than the build needs; pip install 'setuptools>=77'")
    place = tmp_path_factory.mktemp("package")
    tree = place / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: what belongs to the tree is not known")
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = REPO / name, tree / name
        if not source.exists() and not source.is_symlink():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        else:
            target.write_bytes(source.read_bytes())
    for kind in ("sdist", "wheel"):
        build(tree, kind, place / "dist")
    return place


def test_the_link_leads_to_the_kernels() -> None:
    link = REPO / "gpu_dedup" / "kernels"
    assert link.is_symlink()
    assert link.readlink() == Path("../kernels")


def test_wheel_holds_every_file_once(built: Path) -> None:
    (wheel,) = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for name, path in sources().items():
            assert archive.read(name) == path.read_bytes(), name
        entry_points = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert len(names) == len(set(names))
    pages = {"gpu_dedup/README.md", "gpu_dedup/kernels/README.md"}
    pages |= {f"gpu_dedup/docs/{path.name}" for path in (REPO / "gpu_dedup" / "docs").glob("*.md")}
    assert {name for name in names if ".dist-info/" not in name} == set(sources()) | pages
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "gpu-dedup = gpu_dedup.__main__:main" in entry_points
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_works_away_from_the_tree(built: Path, tmp_path: Path) -> None:
    """Unpacked into an empty folder: the package, its kernels and its Unicode tables are there."""
    (wheel,) = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import gpu_dedup.kernels.unicode as u, gpu_dedup\n"
        "print(gpu_dedup.__file__, u.__file__, len(u.class_table()[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    package = tmp_path / "site" / "gpu_dedup"
    want = [str(package / "__init__.py"), str(package / "kernels" / "unicode.py"), str(0x110000 >> 7)]
    assert done.stdout.split() == want


def test_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,) = (built / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        assert not any(member.issym() or member.islnk() for member in members), "a link does not survive every unpacker"
        for member in members:
            file = tar.extractfile(member)
            if file is not None:
                target = tmp_path / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read())
    (tree,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    build(tree, "wheel", tmp_path / "again")
    (first,), (second,) = (built / "dist").glob("*.whl"), (tmp_path / "again").glob("*.whl")
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as two:
        assert set(one.namelist()) == set(two.namelist())
        for name in one.namelist():
            if not name.endswith("RECORD"):
                assert one.read(name) == two.read(name), name


def test_typed_marker_ships() -> None:
    assert (REPO / "gpu_dedup" / "py.typed").exists()
    assert "gpu_dedup/py.typed" in sources()


def test_version_is_one() -> None:
    import gpu_dedup

    text = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    (declared,) = re.findall(r'^version = "(.+)"$', text, re.MULTILINE)
    assert gpu_dedup.__version__ == declared


def command(marker: str) -> str:
    """The command in the README's block between `<!-- marker -->` and `<!-- /marker -->`."""
    text = (REPO / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"<!-- {marker} -->\s*```\w*\n(.+?)\n```\s*<!-- /{marker} -->", text, re.DOTALL)
    return str(block)


def test_readme_has_one_command_to_run_and_one_to_test() -> None:
    for marker, ending in (("run", "gpu-dedup demo"), ("test", "pytest -n auto -q")):
        text = command(marker)
        assert "\n" not in text
        assert text.startswith("python3 -m venv ")
        assert text.endswith(ending)


def test_ci_runs_the_readme_command() -> None:
    """.ci/run prints the command it takes from the README when it is asked to; the two cannot drift apart."""
    done = subprocess.run(
        ["bash", str(REPO / ".ci" / "run"), "--print"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == command("test")


def test_lower_bounds_are_the_versions_that_ci_tries() -> None:
    text = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    lists = re.findall(r"^(?:dependencies|test|remote) = \[(.+?)\](?:$|  #)", text, re.MULTILINE | re.DOTALL)
    assert len(lists) == 3
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)', "".join(lists)))
    lines = (REPO / ".ci" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert set(pins) == set(bounds)
    for name, bound in bounds.items():
        assert (pins[name] + ".0.0").startswith(bound + "."), (
            f"{name}: pyproject says >={bound}, .ci/oldest.txt {pins[name]}"
        )


@pytest.mark.parametrize(("argument", "code", "says"), [("--version", 0, "gpu-dedup"), ("--no-such", 2, "")])
def test_the_end_is_quick_but_leaves_nothing_out(argument: str, code: int, says: str) -> None:
    """The process ends without Python's tear-down: what others asked for at the end, and output, still come."""
    program = (
        "import atexit, sys; atexit.register(print, 'at the end', end='')\n"
        "from gpu_dedup.__main__ import main\n"
        f"sys.argv[1:] = [{argument!r}]\n"
        "main()\n"
        "print('not reached')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stdout.startswith(says)
    assert done.stdout.endswith("at the end")
