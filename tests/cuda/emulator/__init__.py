# SPDX-License-Identifier: Apache-2.0
"""A GPU emulated on the CPU, for the real CuPy and the real NVRTC: see __main__.py."""
