"""`python -m gpu_dedup` is `gpu-dedup`."""

import sys

from gpu_dedup.cli import main

if __name__ == "__main__":
    sys.exit(main())
