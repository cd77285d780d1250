# SPDX-License-Identifier: Apache-2.0
"""NNB, the binary format of NNabla's C runtime for microcontrollers: `.nnb`.

Variables and functions are numbered records, mapped as they are into memory. What the runtime has
is in `table`, networks are written by `writer` and read back by `reader`.
"""
