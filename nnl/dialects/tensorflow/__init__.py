# SPDX-License-Identifier: Apache-2.0
"""TensorFlow 1 as a dialect: `import nnl.dialects.tensorflow as tf`.

A graph of tensors is written down and sessions run parts of it. What is fetched, with what is fed,
is one nnl program for each combination of sizes.
"""

from __future__ import annotations

import sys as _sys
from types import ModuleType as _Module
from types import SimpleNamespace as _Names

import numpy as _np

from nnl.converters.tensorflow.messages import messages as _messages
from nnl.dialects.tensorflow import arrays as _arrays  # noqa: F401  fills the table
from nnl.dialects.tensorflow import contrib as _contrib
from nnl.dialects.tensorflow import control as _control
from nnl.dialects.tensorflow import data as _data
from nnl.dialects.tensorflow import distributions as _distributions
from nnl.dialects.tensorflow import estimator as _estimator
from nnl.dialects.tensorflow import graph as _graph
from nnl.dialects.tensorflow import host as _host
from nnl.dialects.tensorflow import image as _image
from nnl.dialects.tensorflow import initializers as _initializers
from nnl.dialects.tensorflow import layers as _layers
from nnl.dialects.tensorflow import losses as _losses
from nnl.dialects.tensorflow import metrics as _metrics
from nnl.dialects.tensorflow import mnist as _mnist
from nnl.dialects.tensorflow import monitored as _monitored
from nnl.dialects.tensorflow import nn as _nn
from nnl.dialects.tensorflow import operation as _operation
from nnl.dialects.tensorflow import platform as _platform
from nnl.dialects.tensorflow import queues as _queues
from nnl.dialects.tensorflow import records as _records
from nnl.dialects.tensorflow import rnn as _rnn
from nnl.dialects.tensorflow import saver as _saver
from nnl.dialects.tensorflow import session as _session
from nnl.dialects.tensorflow import shapes as _shapes
from nnl.dialects.tensorflow import summary as _summary
from nnl.dialects.tensorflow import table as _table
from nnl.dialects.tensorflow import train as _train
from nnl.dialects.tensorflow import variables as _variables

__version__ = "1.15.0"


def _space(module, names, **more):
    return _Names(**{n: getattr(module, n) for n in names.split()}, **more)


def _public(module, *without):
    """What a module defines for scripts."""
    return {
        k: v
        for k, v in vars(module).items()
        if not k.startswith("_")
        and k not in without
        and getattr(v, "__module__", "").startswith(module.__name__)
    }


float16, float32, float64 = (_np.dtype(t) for t in ("float16", "float32", "float64"))
int8, int16, int32, int64 = (_np.dtype(t) for t in ("int8", "int16", "int32", "int64"))
uint8, uint16, string = _np.dtype("uint8"), _np.dtype("uint16"), _np.dtype(object)
bool = _np.dtype("bool")
half, double, newaxis, DType = float16, float64, None, _np.dtype

_OWN = {
    _control: "Assert assert_equal assert_greater assert_greater_equal assert_less "
    "assert_less_equal case cond foldl map_fn scan while_loop",
    _graph: "Graph GraphKeys Tensor add_to_collection control_dependencies device get_collection "
    "get_collection_ref get_default_graph name_scope reset_default_graph",
    _operation: "Operation constant convert_to_tensor placeholder placeholder_with_default",
    _initializers: "multinomial random_normal random_shuffle random_uniform truncated_normal",
    _session: "ConfigProto GPUOptions InteractiveSession RunMetadata RunOptions Session "
    "get_default_session",
    _shapes: "Dimension TensorShape",
    _train: "gradients",
    _variables: "AUTO_REUSE Variable VariableScope all_variables get_variable get_variable_scope "
    "global_variables global_variables_initializer group initialize_all_variables "
    "initialize_local_variables initialize_variables "
    "local_variables local_variables_initializer moving_average_variables no_op "
    "report_uninitialized_variables set_random_seed trainable_variables variable_scope "
    "variables_initializer",
    _host: "decode_csv decode_raw py_func read_file string_to_number",
    _platform: "app flags gfile logging",
    _queues: "FIFOQueue QueueBase RandomShuffleQueue TextLineReader WholeFileReader",
    _records: "FixedLenFeature FixedLenSequenceFeature SparseTensor TFRecordReader VarLenFeature "
    "parse_example parse_single_example sparse_tensor_to_dense",
}
for _module, _names in _OWN.items():
    globals().update({n: getattr(_module, n) for n in _names.split()})
globals().update(_table.N)
globals().update(_variables.ASSIGN)
globals().update({f"{k}_initializer": f for k, f in _initializers.INITIALIZERS.items()})
op_scope, variable_op_scope = _graph.name_scope, _variables.variable_scope


def tuple(tensors, name=None, control_inputs=None):
    """Tensors of which none is there before all are."""
    with _graph.control_dependencies([t for t in tensors if t is not None]):
        return [None if t is None else _table.N.identity(t) for t in tensors]


_cells = {k: v for k, v in _public(_rnn).items() if k.endswith(("Cell", "Wrapper", "Tuple"))}
_unrolled = {k: v for k, v in _public(_rnn).items() if k.endswith("_rnn")}


class _Train(_Names):
    """tf.train, whose messages are built when they are asked for: they need protobuf."""

    def __getattr__(self, name):
        if name not in _records.MESSAGES:
            raise AttributeError(f"module 'tf.train' has no attribute {name!r}")
        return _messages()[name]


train = _Train(
    **_public(_train, "gradients"),
    **_train.DECAYS,
    **_public(_saver),
    **_public(_monitored),
    **_public(_queues, *_OWN[_queues].split()),
)
data = _space(_data, "Dataset Iterator TextLineDataset", TFRecordDataset=_records.TFRecordDataset)
python_io = _space(
    _records, "TFRecordCompressionType TFRecordOptions TFRecordWriter tf_record_iterator"
)
io = _Names(
    **vars(python_io),
    **{k: getattr(_records, k) for k in _OWN[_records].split()},
    **{k: getattr(_host, k) for k in _OWN[_host].split() if k != "py_func"},
    decode_image=_host.decode_image, decode_jpeg=_host.decode_image,
    decode_png=_host.decode_image, gfile=_platform.gfile,
)  # fmt: skip
sparse = _Names(SparseTensor=SparseTensor, to_dense=sparse_tensor_to_dense)  # noqa: F821
layers = _Names(**_public(_layers))
losses = _Names(**_public(_losses), **_losses.LOSSES)
image = _Names(
    **_public(_image),
    **_image.IMAGE,
    **dict.fromkeys(["decode_image", "decode_jpeg", "decode_png"], _host.decode_image),
)
summary = _space(_summary, "scalar histogram image merge merge_all FileWriter Summary")
rnn_cell = _Names(**_cells)
nn = _Names(**_nn.NN, **_unrolled, log_sigmoid=_table.N.log_sigmoid, rnn_cell=rnn_cell)
errors = _Names(**{k: v for k, v in _public(_session).items() if k.endswith("Error")})
math = _Names(**_table.N)
linalg = _Names(
    **{k: _table.N[k] for k in "norm trace diag_part eye einsum tensordot matmul".split()}
)
initializers = _Names(
    **_initializers.INITIALIZERS, global_variables=_variables.global_variables_initializer
)
random = _Names(
    normal=_initializers.random_normal,
    uniform=_initializers.random_uniform,
    truncated_normal=_initializers.truncated_normal,
    shuffle=_initializers.random_shuffle,
    multinomial=_initializers.multinomial,
    categorical=lambda logits, num_samples, dtype=int64, seed=None, name=None: (
        _initializers.multinomial(logits, num_samples, seed, name, dtype)
    ),
    set_random_seed=_variables.set_random_seed,
)
nest = _space(_control, "flatten map_structure", pack_sequence_as=_control.packed)
test = _Names(is_gpu_available=lambda *_, **__: False, gpu_device_name=lambda: "")
compat = _Names(
    v1=_sys.modules[__name__],
    as_str=lambda x: x.decode() if isinstance(x, bytes) else str(x),
    as_bytes=lambda x: x if isinstance(x, bytes) else str(x).encode(),
)
distributions = _Names(**_public(_distributions))
metrics = _Names(**_public(_metrics))


def _module(path, **names):
    """A module of TensorFlow's that has no file here."""
    made = _Module(f"{__name__}.{path}", f"tf.{path}")
    made.__dict__.update(names, __path__=[])
    _sys.modules[made.__name__] = made
    return made


_inputs = _Names(numpy_input_fn=_estimator.numpy_input_fn)
_estimators = _space(
    _estimator,
    "Estimator EstimatorSpec EvalSpec ModeKeys RunConfig TrainSpec train_and_evaluate",
    inputs=_inputs,
)
estimator = _module("estimator", **vars(_estimators))
_reader = _module(
    "examples.tutorials.mnist.input_data",
    DataSet=_mnist.DataSet,
    read_data_sets=_mnist.read_data_sets,
)
_digits = _module("examples.tutorials.mnist", input_data=_reader)
examples = _module("examples", tutorials=_module("examples.tutorials", mnist=_digits))
_scoped = {"arg_scope": _contrib.arg_scope, "add_arg_scope": _contrib.add_arg_scope}
_starts = {
    "xavier_initializer": _initializers.xavier_initializer,
    "xavier_initializer_conv2d": _initializers.xavier_initializer,
    "variance_scaling_initializer": _initializers.INITIALIZERS["variance_scaling"],
}
contrib = _module(
    "contrib",
    rnn=_module("contrib.rnn", **_cells, **_unrolled),
    seq2seq=_module("contrib.seq2seq", sequence_loss=_rnn.sequence_loss),
    framework=_module("contrib.framework", nest=nest, **_scoped),
    data=_module("contrib.data", **vars(data)),
    distributions=_module("contrib.distributions", **vars(distributions)),
    layers=_module("contrib.layers", **_public(_contrib), **_starts),
    losses=_module("contrib.losses", **_contrib.LOSSES),
    slim=_module("contrib.slim", losses=_Names(**_contrib.LOSSES), **_public(_contrib), **_starts),
)
