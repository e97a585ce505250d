"""Every error of this package, as a tree.

    GpuDedupError            ours to explain in one line
      UserError              the user can mend it: exit code 2
        RecipeError          an option has a value that cannot work, or two options exclude each other
        InputError           a file or a row of the input; the message starts with ``file:line`` or ``file: row``
        OutputError          the output folder: already used, inside an input, no space, no permission
        RunError             a setting of the machine: device, memory, work folder, a guard such as --max-removed
      InternalError          our fault: exit code 1

A message is one line: the place, the value, the remedy.
"""

from __future__ import annotations

import errno
from typing import Any, get_args, get_origin, get_type_hints


class GpuDedupError(Exception):
    """Root of all errors that this package raises on purpose."""

    exit_code = 1


class UserError(GpuDedupError):
    """Something the user can mend; the message says how."""

    exit_code = 2


class RecipeError(UserError):
    """An option that cannot work, alone or together with another."""


class InputError(UserError):
    """A file or row of the input that cannot be used.

    The message is `place: reason; remedy`. A report that lists files which were left out has its own column for the
    place, and its reader has chosen already: it takes `reason` alone.
    """

    def __init__(self, reason: str, remedy: str = "", *, place: str = "") -> None:
        super().__init__((f"{place}: " if place else "") + reason + (f"; {remedy}" if remedy else ""))
        self.reason = reason
        self.remedy = remedy
        self.place = place


class OutputError(UserError):
    """An output place that cannot be used."""


class RunError(UserError):
    """A machine setting that cannot be met, or a guard that stopped the run."""


class InternalError(GpuDedupError):
    """A promise of this package that did not hold; please report it."""


def check_types(values: Any, error: type[UserError]) -> None:
    """Raise `error` for the first field of a frozen dataclass whose value is not what its annotation says.

    Knows int, str, bool, tuple[str, ...] and any of these or None. True is no number.
    """
    for name, kind in get_type_hints(type(values)).items():
        value = getattr(values, name)
        allowed = [part for part in (get_args(kind) or (kind,)) if part is not Ellipsis]
        if get_origin(kind) is tuple or any(get_origin(part) is tuple for part in allowed):
            fits = isinstance(value, tuple) and all(isinstance(entry, str) for entry in value)
            words = "a tuple of strings, such as ('text',)"
        else:
            plain = tuple(part for part in allowed if part is not type(None))
            fits = isinstance(value, plain) and (bool in plain or not isinstance(value, bool))
            words = " or ".join({int: "a whole number", str: "a string", bool: "True or False"}[part] for part in plain)
        if not fits and not (value is None and type(None) in allowed):
            raise error(f"{name} is {value!r}, a {type(value).__name__}; give {words}")


def shown(path: str) -> str:
    """A path that fits a one-line message, whatever bytes are in it."""
    return path if path.isprintable() else ascii(path)


_DISK = {
    errno.ENOSPC: ("no space left on the disk", "free some, or choose {other}"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or choose {other}"),
    errno.EFBIG: ("the file would pass the size limit of the file system or of this process", "choose {other}"),
    errno.EACCES: ("no permission to write", "change the permission, or choose {other}"),
    errno.EPERM: ("no permission to write", "change the permission, or choose {other}"),
    errno.EROFS: ("the file system is read-only", "choose {other}"),
    errno.ENAMETOOLONG: ("the name is too long for the file system", "choose {other} with a shorter path"),
    errno.EMFILE: ("too many open files", "raise the limit (ulimit -n)"),
}


def disk_error(error: OSError, path: str, other: str = "another output folder") -> OutputError:
    """The one line for a write that the system refused: path, reason, remedy. `other`: what else could be chosen."""
    reason, remedy = _DISK.get(error.errno or 0, (None, "choose {other}"))
    if reason is None:
        lines = (error.strerror or str(error) or type(error).__name__).splitlines()
        reason = f"cannot be written ({lines[0]})"
    return OutputError(f"{shown(path)}: {reason}; {remedy.format(other=other)}")
