# SPDX-License-Identifier: Apache-2.0
"""Networks as a folder of C99 that compiles alone.

What C can say is in `target`, how each function is said in `calls`: loops around one element
(`loops`), or calls of the functions in `kernels/`, of which a folder gets those that it uses.
`writer` plans memory and writes the folder.
"""
