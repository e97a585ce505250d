"""`python -m gpu_dedup` is `gpu-dedup`."""

import sys

try:
    from gpu_dedup.cli import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
