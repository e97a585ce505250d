"""`python -m gpu_dedup` is `gpu-dedup`.

Until the command line is loaded and sees to Ctrl-C itself, Ctrl-C just ends the process, as it ends any program:
Python's own way would be a traceback through half an import.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run this process's command line and return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored (nohup, a shell's `&`)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpu_dedup import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
