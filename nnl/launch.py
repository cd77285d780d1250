# SPDX-License-Identifier: Apache-2.0
import sys

from nnl.cli.launch import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
