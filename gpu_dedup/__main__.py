"""`python -m gpu_dedup` is `gpu-dedup`.

Until the command line is loaded and sees to Ctrl-C itself, Ctrl-C just ends the process, as it ends any program:
Python's own way would be a traceback through half an import.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys


def main() -> int:
    """Run this process's command line and end it with the exit code; returns it only where output cannot be flushed."""
    code = _run()
    # What Python would do at its end is to take apart, object by object, what the system takes back at once: compiled
    # kernels above all, 0.3 s. What others asked to have done at the end is done.
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return code
    os._exit(code)


def _run() -> int:
    # Nothing here makes garbage in rings by the thousand, and the collector would look through all of Numba again and
    # again while it is imported: a tenth of the CPU time of a small run.
    gc.set_threshold(200_000, 20, 100)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads for matrices: there are none here
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored (nohup, a shell's `&`)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpu_dedup import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
