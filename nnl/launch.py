# SPDX-License-Identifier: Apache-2.0
import sys

from nnl.cli.main import launch_main as main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
