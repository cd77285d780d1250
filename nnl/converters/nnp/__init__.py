# SPDX-License-Identifier: Apache-2.0
"""NNabla's file formats: parameters, solver states, and the messages they are made of."""
