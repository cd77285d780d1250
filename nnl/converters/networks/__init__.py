# SPDX-License-Identifier: Apache-2.0
"""What readers and writers of formats share: networks that were read, their lowering to what a
format has, axes, scales of 8 bits, open sizes."""
