# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow calls the operators of TensorFlow Lite that it has under another name."""

# Name, name in TensorFlow, and the inputs whose types are attributes; y is the output.
_TABLE = """
ABS Abs T=0
ADD AddV2 T=0
ATAN2 Atan2 T=0
BROADCAST_TO BroadcastTo T=0 Tidx=1
CAST Cast SrcT=0 DstT=y
CEIL Ceil T=0
COS Cos T=0
CUMSUM Cumsum T=0 Tidx=1
DIV RealDiv T=0
ELU Elu T=0
EQUAL Equal T=0
EXP Exp T=0
FLOOR Floor T=0
FLOOR_DIV FloorDiv T=0
FLOOR_MOD FloorMod T=0
GATHER_ND GatherNd Tparams=0 Tindices=1
GREATER Greater T=0
GREATER_EQUAL GreaterEqual T=0
LEAKY_RELU LeakyRelu T=0
LESS Less T=0
LESS_EQUAL LessEqual T=0
LOG Log T=0
LOGICAL_AND LogicalAnd
LOGICAL_NOT LogicalNot
LOGICAL_OR LogicalOr
LOGISTIC Sigmoid T=0
LOG_SOFTMAX LogSoftmax T=0
MAXIMUM Maximum T=0
MEAN Mean T=0 Tidx=1
MINIMUM Minimum T=0
MUL Mul T=0
NEG Neg T=0
NOT_EQUAL NotEqual T=0
ONE_HOT OneHot T=2 TI=0
PAD Pad T=0 Tpaddings=1
PADV2 PadV2 T=0 Tpaddings=1
POW Pow T=0
REDUCE_MAX Max T=0 Tidx=1
REDUCE_MIN Min T=0 Tidx=1
REDUCE_PROD Prod T=0 Tidx=1
RANGE Range Tidx=0
RELU Relu T=0
RELU6 Relu6 T=0
RESHAPE Reshape T=0 Tshape=1
RESIZE_BILINEAR ResizeBilinear T=0
RESIZE_NEAREST_NEIGHBOR ResizeNearestNeighbor T=0
REVERSE_V2 ReverseV2 T=0 Tidx=1
RSQRT Rsqrt T=0
SCATTER_ND ScatterNd T=1 Tindices=0
SELECT_V2 SelectV2 T=1
SHAPE Shape T=0
SIGN Sign T=0
SIN Sin T=0
SLICE Slice T=0 Index=1
SOFTMAX Softmax T=0
SQRT Sqrt T=0
SQUARED_DIFFERENCE SquaredDifference T=0
STRIDED_SLICE StridedSlice T=0 Index=1
SUB Sub T=0
SUM Sum T=0 Tidx=1
TANH Tanh T=0
TILE Tile T=0 Tmultiples=1
TOPK_V2 TopKV2 T=0
TRANSPOSE Transpose T=0 Tperm=1
UNPACK Unpack T=0
BATCH_MATMUL BatchMatMulV2 T=0
"""
DIRECT = {r[0]: r[1:] for r in map(str.split, _TABLE.strip().splitlines())}
# Names in TensorFlow, of those whose inputs or attributes are others too.
_OTHERS = """
ADD_N AddN  ARG_MAX ArgMax  ARG_MIN ArgMin  BATCH_TO_SPACE_ND BatchToSpaceND
BROADCAST_ARGS BroadcastArgs  CONCATENATION ConcatV2  DEPTH_TO_SPACE DepthToSpace  FILL Fill
LOCAL_RESPONSE_NORMALIZATION LRN  MATRIX_DIAG MatrixDiag  MIRROR_PAD MirrorPad  PACK Pack
RANK Rank  REDUCE_ALL All  REDUCE_ANY Any  REVERSE_SEQUENCE ReverseSequence  ROUND Round
SELECT Select  SPACE_TO_BATCH_ND SpaceToBatchND  SPACE_TO_DEPTH SpaceToDepth  SPLIT Split
SPLIT_V SplitV  SQUARE Square  ZEROS_LIKE ZerosLike
"""
IN_TENSORFLOW = {name: row[0] for name, row in DIRECT.items()}
IN_TENSORFLOW |= dict(zip(_OTHERS.split()[::2], _OTHERS.split()[1::2], strict=True))
