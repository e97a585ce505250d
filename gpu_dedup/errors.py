"""Every error of this package, as a tree.

    GpuDedupError            ours to explain in one line
      UserError              the user can mend it: exit code 2
        RecipeError          an option has a value that cannot work, or two options exclude each other
        InputError           a file or a row of the input; the message starts with ``file:line`` or ``file: row``
        OutputError          the output folder: already used, inside an input, no space, no permission
        RunError             a setting of the machine: device, backend, memory, work folder, a guard such as --max-removed
      InternalError          our fault: exit code 1

A message is one line: the place, the value, the remedy.
"""

from __future__ import annotations


class GpuDedupError(Exception):
    """Root of all errors that this package raises on purpose."""

    exit_code = 1


class UserError(GpuDedupError):
    """Something the user can mend; the message says how."""

    exit_code = 2


class RecipeError(UserError):
    """An option that cannot work, alone or together with another."""


class InputError(UserError):
    """A file or row of the input that cannot be used."""


class OutputError(UserError):
    """An output place that cannot be used."""


class RunError(UserError):
    """A machine setting that cannot be met, or a guard that stopped the run."""


class InternalError(GpuDedupError):
    """A promise of this package that did not hold; please report it."""
