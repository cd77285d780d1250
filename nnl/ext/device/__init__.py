# SPDX-License-Identifier: Apache-2.0
"""What backends of devices share: kernels by the name of their op, the executor, arrays."""
