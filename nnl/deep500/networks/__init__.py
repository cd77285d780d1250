# SPDX-License-Identifier: Apache-2.0
"""One module per back end; nnl.deep500.contract_class imports them when they are asked for."""
