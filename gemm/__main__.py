"""`python -m gemm`: the command line, see gemm.cli."""

import sys

from gemm.cli import main

if __name__ == "__main__":
    sys.exit(main())
