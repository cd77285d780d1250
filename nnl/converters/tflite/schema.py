# SPDX-License-Identifier: Apache-2.0
"""What .tflite files are made of: their tables, and the operators with their options.

A field is a name and what it holds; numbers that files leave out are 0, or what is after "=". Field
number n of a table is the n-th one here, so those that nobody needs stand here too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nnl.converters.tflite.flatbuffer import Field, fields

VERSION = 3
IDENTIFIER = b"TFL3"
SAME, VALID = 0, 1  # padding: of the output's size / stride, or none
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")

# Number of a tensor's type -> what numpy calls it.
TYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.float32),
    1: np.dtype(np.float16),
    2: np.dtype(np.int32),
    3: np.dtype(np.uint8),
    4: np.dtype(np.int64),
    6: np.dtype(np.bool_),
    7: np.dtype(np.int16),
    8: np.dtype(np.complex64),
    9: np.dtype(np.int8),
    10: np.dtype(np.float64),
    11: np.dtype(np.complex128),
    12: np.dtype(np.uint64),
    15: np.dtype(np.uint32),
    16: np.dtype(np.uint16),
}
NUMBER_OF_TYPE = {v: k for k, v in TYPES.items()}  # of those that are written
INT4, BFLOAT16 = 17, 18  # as int8, two in a byte, and as float32, of which they are the upper half
TYPES |= {INT4: np.dtype(np.int8), BFLOAT16: np.dtype(np.float32)}
TYPES |= {n: np.dtype(object) for n in (5, 13, 14)}  # strings, resources, variants: no numbers

_TABLES = {
    "Model": "version:u32 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:str "
    "buffers:[Buffer] metadata_buffer:[i32] metadata:[Metadata] signature_defs:[SignatureDef]",
    "OperatorCode": "short_code:i8 custom_code:str version:i32=1 builtin_code:i32",
    "SubGraph": "tensors:[Tensor] inputs:[i32] outputs:[i32] operators:[Operator] name:str",
    "Buffer": "data:[u8] offset:u64 size:u64",
    "Metadata": "name:str buffer:u32",
    "SignatureDef": "inputs:[TensorMap] outputs:[TensorMap] signature_key:str unused:str "
    "subgraph_index:u32",
    "TensorMap": "name:str tensor_index:u32",
    "Tensor": "shape:[i32] type:i8 buffer:u32 name:str quantization:Quantization is_variable:bool "
    "sparsity:Sparsity shape_signature:[i32] has_rank:bool",
    "Quantization": "min:[f32] max:[f32] scale:[f32] zero_point:[i64] details_type:u8 details:any "
    "quantized_dimension:i32",
    "Sparsity": "traversal_order:[i32] block_map:[i32] levels:[Level]",
    "Level": "format:i8 dense_size:i32 segments_type:u8 segments:any indices_type:u8 indices:any",
    "Vector1": "values:[i32]",  # by the number of their type
    "Vector2": "values:[u16]",
    "Vector3": "values:[u8]",
    "Operator": "opcode_index:u32 inputs:[i32] outputs:[i32] options_type:u8 options:any "
    "custom_options:[u8] custom_options_format:i8 mutating_variable_inputs:[bool] "
    "intermediates:[i32] large_offset:u64 large_size:u64 more_type:u8 more:any",
    "Composite": "name:str graph:i32",
}

# Name, number, number of its options, and these. Most that have a number have no fields.
_WINDOW = "padding:i8 stride_w:i32 stride_h:i32"
_SEQUENCE = "activation:i8 cell_clip:f32 proj_clip:f32"
_VOLUME = (
    "padding:i8 stride_d:i32 stride_w:i32 stride_h:i32 activation:i8 "
    "dilation_d:i32=1 dilation_w:i32=1 dilation_h:i32=1"
)
_MASKS = (
    "begin_mask:i32 end_mask:i32 ellipsis_mask:i32 new_axis_mask:i32 shrink_axis_mask:i32 "
    "offset:bool"
)
_OPERATORS = f"""
ADD 0 11 activation:i8
AVERAGE_POOL_2D 1 5 {_WINDOW} filter_w:i32 filter_h:i32 activation:i8
CONCATENATION 2 10 axis:i32 activation:i8
CONV_2D 3 1 {_WINDOW} activation:i8 dilation_w:i32=1 dilation_h:i32=1
DEPTHWISE_CONV_2D 4 2 {_WINDOW} depth_multiplier:i32 activation:i8 dilation_w:i32=1 dilation_h:i32=1
DEPTH_TO_SPACE 5 94 block_size:i32
DEQUANTIZE 6 38
EMBEDDING_LOOKUP 7 0
FLOOR 8 0
FULLY_CONNECTED 9 8 activation:i8 weights_format:i8 keep_num_dims:bool asymmetric_inputs:bool
HASHTABLE_LOOKUP 10 0
L2_NORMALIZATION 11 12 activation:i8
L2_POOL_2D 12 5 {_WINDOW} filter_w:i32 filter_h:i32 activation:i8
LOCAL_RESPONSE_NORMALIZATION 13 13 radius:i32 bias:f32 alpha:f32 beta:f32
LOGISTIC 14 0
LSH_PROJECTION 15 3
LSTM 16 14 {_SEQUENCE}
MAX_POOL_2D 17 5 {_WINDOW} filter_w:i32 filter_h:i32 activation:i8
MUL 18 21 activation:i8
RELU 19 0
RELU_N1_TO_1 20 0
RELU6 21 0
RESHAPE 22 17 new_shape:[i32]
RESIZE_BILINEAR 23 15 unused:i32 unused_too:i32 align_corners:bool half_pixel_centers:bool
RNN 24 7 activation:i8
SOFTMAX 25 9 beta:f32
SPACE_TO_DEPTH 26 19 block_size:i32
SVDF 27 6 rank:i32 activation:i8
TANH 28 0
CONCAT_EMBEDDINGS 29 3
SKIP_GRAM 30 18
CALL 31 16 subgraph:u32
CUSTOM 32 0
EMBEDDING_LOOKUP_SPARSE 33 20
PAD 34 22
UNIDIRECTIONAL_SEQUENCE_RNN 35 31 time_major:bool activation:i8
GATHER 36 23 axis:i32 batch_dims:i32
BATCH_TO_SPACE_ND 37 24
SPACE_TO_BATCH_ND 38 25
TRANSPOSE 39 26
MEAN 40 27 keep_dims:bool
SUB 41 28 activation:i8
DIV 42 29 activation:i8
SQUEEZE 43 30 squeeze_dims:[i32]
UNIDIRECTIONAL_SEQUENCE_LSTM 44 71 {_SEQUENCE} time_major:bool
STRIDED_SLICE 45 32 {_MASKS}
BIDIRECTIONAL_SEQUENCE_RNN 46 70 time_major:bool activation:i8 merge_outputs:bool
EXP 47 33
TOPK_V2 48 34
SPLIT 49 35 num_splits:i32
LOG_SOFTMAX 50 36
DELEGATE 51 0
BIDIRECTIONAL_SEQUENCE_LSTM 52 69 {_SEQUENCE} merge_outputs:bool time_major:bool=1
CAST 53 37 in_type:i8 out_type:i8
PRELU 54 0
MAXIMUM 55 39
ARG_MAX 56 40 output_type:i8
MINIMUM 57 39
LESS 58 41
NEG 59 42
PADV2 60 43
GREATER 61 44
GREATER_EQUAL 62 45
LESS_EQUAL 63 46
SELECT 64 47
SLICE 65 48
SIN 66 0
TRANSPOSE_CONV 67 49 {_WINDOW} activation:i8
SPARSE_TO_DENSE 68 50 validate_indices:bool
TILE 69 51
EXPAND_DIMS 70 52
EQUAL 71 53
NOT_EQUAL 72 54
LOG 73 0
SUM 74 27 keep_dims:bool
SQRT 75 0
RSQRT 76 0
SHAPE 77 55 out_type:i8
POW 78 56
ARG_MIN 79 57 output_type:i8
FAKE_QUANT 80 58 min:f32 max:f32 num_bits:i32 narrow_range:bool
REDUCE_PROD 81 27 keep_dims:bool
REDUCE_MAX 82 27 keep_dims:bool
PACK 83 59 values_count:i32 axis:i32
LOGICAL_OR 84 60
ONE_HOT 85 61 axis:i32
LOGICAL_AND 86 62
LOGICAL_NOT 87 63
UNPACK 88 64 num:i32 axis:i32
REDUCE_MIN 89 27 keep_dims:bool
FLOOR_DIV 90 65
REDUCE_ANY 91 27 keep_dims:bool
SQUARE 92 66
ZEROS_LIKE 93 67
FILL 94 68
FLOOR_MOD 95 72
RANGE 96 73
RESIZE_NEAREST_NEIGHBOR 97 74 align_corners:bool half_pixel_centers:bool
LEAKY_RELU 98 75 alpha:f32
SQUARED_DIFFERENCE 99 76
MIRROR_PAD 100 77 mode:i8
ABS 101 78
SPLIT_V 102 79 num_splits:i32
UNIQUE 103 80 index_type:i8=2
CEIL 104 0
REVERSE_V2 105 81
ADD_N 106 82
GATHER_ND 107 83
COS 108 84
WHERE 109 85
RANK 110 86
ELU 111 0
REVERSE_SEQUENCE 112 87 seq_dim:i32 batch_dim:i32
MATRIX_DIAG 113 88
QUANTIZE 114 89
MATRIX_SET_DIAG 115 90
ROUND 116 0
HARD_SWISH 117 91
IF 118 92 then_graph:i32 else_graph:i32
WHILE 119 93 condition_graph:i32 body_graph:i32
NON_MAX_SUPPRESSION_V4 120 95
NON_MAX_SUPPRESSION_V5 121 96
SCATTER_ND 122 97
SELECT_V2 123 98
DENSIFY 124 99
SEGMENT_SUM 125 100
BATCH_MATMUL 126 101 adj_x:bool adj_y:bool
CUMSUM 128 102 exclusive:bool reverse:bool
CALL_ONCE 129 103 graph:i32
BROADCAST_TO 130 104
RFFT2D 131 105
CONV_3D 132 106 {_VOLUME}
IMAG 133 0
REAL 134 0
COMPLEX_ABS 135 0
HASHTABLE 136 107
HASHTABLE_FIND 137 108
HASHTABLE_IMPORT 138 109
HASHTABLE_SIZE 139 110
REDUCE_ALL 140 27 keep_dims:bool
CONV_3D_TRANSPOSE 141 106 {_VOLUME}
VAR_HANDLE 142 111 container:str shared_name:str
READ_VARIABLE 143 112
ASSIGN_VARIABLE 144 113
BROADCAST_ARGS 145 0
RANDOM_STANDARD_NORMAL 146 114 seed:i64 seed2:i64
BUCKETIZE 147 115 boundaries:[f32]
RANDOM_UNIFORM 148 114 seed:i64 seed2:i64
MULTINOMIAL 149 114 seed:i64 seed2:i64
GELU 150 116 approximate:bool
DYNAMIC_UPDATE_SLICE 151 117
RELU_0_TO_1 152 0
UNSORTED_SEGMENT_PROD 153 118
UNSORTED_SEGMENT_MAX 154 119
UNSORTED_SEGMENT_SUM 155 121
ATAN2 156 122
UNSORTED_SEGMENT_MIN 157 120
SIGN 158 123
BITCAST 159 124
BITWISE_XOR 160 125
RIGHT_SHIFT 161 126
DILATE 203 0
REDUCE_WINDOW 205 0
"""
# Of a dialect that converters may leave in files, from 162 on, and from 204 and 206 on.
_STABLEHLO = """
LOGISTIC ADD DIVIDE MULTIPLY MAXIMUM RESHAPE CLAMP CONCATENATE BROADCAST_IN_DIM CONVOLUTION
SLICE CUSTOM_CALL REDUCE ABS AND COSINE EXPONENTIAL FLOOR LOG MINIMUM NEGATE OR POWER REMAINDER
RSQRT SELECT SUBTRACT TANH SCATTER COMPARE CONVERT DYNAMIC_SLICE DYNAMIC_UPDATE_SLICE PAD IOTA
DOT_GENERAL REDUCE_WINDOW SORT WHILE GATHER TRANSPOSE
"""
_LATER_STABLEHLO = {204: "RNG_BIT_GENERATOR", 206: "COMPOSITE", 207: "SHIFT_LEFT", 208: "CBRT"}
_LATER_STABLEHLO |= {209: "CASE"}


class Operator(NamedTuple):
    """One builtin operator.

    Attributes:
        options_type: The number of its options, 0 if there are none.
        options: Their fields.
    """

    name: str
    number: int
    options_type: int
    options: tuple[Field, ...]


def _operators() -> dict[str, Operator]:
    found = {}
    for line in _OPERATORS.strip().split("\n"):
        name, number, kind, *rest = line.split(maxsplit=3)
        options = tuple(fields(rest[0])) if rest else ()
        found[name] = Operator(name, int(number), int(kind), options)
    for number, name in [*enumerate(_STABLEHLO.split(), 162), *_LATER_STABLEHLO.items()]:
        found[f"STABLEHLO_{name}"] = Operator(f"STABLEHLO_{name}", number, 0, ())
    return found


OPERATORS = _operators()
BY_NUMBER = {o.number: o for o in OPERATORS.values()}
TABLES = {name: fields(text) for name, text in _TABLES.items()}
TABLES.update({o.name: list(o.options) for o in OPERATORS.values()})  # options of that operator
