# SPDX-License-Identifier: Apache-2.0
"""Numbers of element types, as arguments of quantize_linear have them."""

import numpy as np

np_dtype_to_int = {
    bool: 0,
    np.byte: 1,
    np.ubyte: 2,
    np.short: 3,
    np.ushort: 4,
    np.int32: 5,
    np.uint32: 6,
    np.longlong: 9,
    np.int64: 9,
    np.ulonglong: 10,
    np.uint64: 10,
    np.float32: 11,
    np.double: 12,
    np.longdouble: 13,
}
np_dtpye_to_int = np_dtype_to_int  # NNabla's spelling
int_to_np_dtype = {number: kind for kind, number in np_dtype_to_int.items()}
