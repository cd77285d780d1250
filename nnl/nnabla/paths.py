# SPDX-License-Identifier: Apache-2.0
"""NNabla's import paths, as one table."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Path below nnl -> the modules that it stands for. Of one, it is that module itself, so that
# variables that change are shared; of several, a module with the public names of all; of none, a
# package. Where names follow a colon, only these are taken.
PATHS: dict[str, tuple[str, ...]] = {
    "_init": ("nnl.ext.host_device",),
    "_nd_array": ("nnl.core.arrays.array",),
    "_variable": ("nnl.core.graph.variable", "nnl.core.settings.context", "nnl.communicators"),
    "_version": ("nnl",),
    "auto_forward": ("nnl.core.interpreters.switches",),
    "backward_functions": ("nnl.core.differentiation.grad_rules",),
    "callback": ("nnl.core.interpreters.callback",),
    "communicator": ("nnl.communicators",),
    "config": ("nnl.data.settings",),
    "context": (
        "nnl.core.settings.context: Context",
        "nnl.core.interpreters.switches: context_scope get_current_context set_default_context",
    ),
    "contrib": (),
    "contrib.context": ("nnl.ext",),
    "core.graph_def": ("nnl.graph_def",),
    "core.module": ("nnl.parametric_functions.module",),
    "core.modules": ("nnl.nnabla.modules",),
    "core.sequential": ("nnl.parametric_functions.module",),
    "dtypes": ("nnl.nnabla.dtypes",),
    "experimental": (),
    "experimental.graph_converters": ("nnl.converters.rewriting",),
    "experimental.mixed_precision_training": (
        "nnl.training.loss_scaling: DynamicLossScalingUpdater",
    ),
    "experimental.parametric_function_class": (),
    "experimental.parametric_function_class.affine": ("nnl.nnabla.layers",),
    "experimental.parametric_function_class.batch_normalization": ("nnl.nnabla.layers",),
    "experimental.parametric_function_class.convolution": ("nnl.nnabla.layers",),
    "experimental.parametric_function_class.deconvolution": ("nnl.nnabla.layers",),
    "experimental.parametric_function_class.embed": ("nnl.nnabla.layers",),
    "experimental.parametric_function_class.module": ("nnl.nnabla.layers",),
    "experimental.parametric_function_classes": ("nnl.nnabla.layers",),
    "experimental.tb_graph_writer": ("nnl.nnabla.tensorboard",),
    "experimental.viewers": ("nnl.graph.printing.drawing",),
    "ext_utils": ("nnl.ext: get_extension_context import_extension_module list_extensions",),
    "function": ("nnl.nnabla.function",),
    "function_bases": ("nnl.functions",),
    "grad": ("nnl.core.differentiation.grad",),
    "graph_def": (
        "nnl.converters.nnp.graph_capture: create_graph_from_variable",
        "nnl.converters.nnp.graph_def: ProtoFunction ProtoGraph ProtoNetwork ProtoVariable",
        "nnl.converters.nnp.graph_def_files: load save",
        "nnl.converters.nnp.graph_def_files: ProtoExecutor",
        "nnl.converters.nnp.graph_recorder: get_default_graph get_default_graph_by_variable graph"
        " graph_name reset_default_graph",
    ),
    "initializer": ("nnl.parametric_functions.initializer", "nnl.core.ops: random"),
    "lms": ("nnl.nnabla.lms",),
    "monitor": ("nnl.training.monitor",),
    "normalization_functions": (
        "nnl.functions: batch_normalization fused_batch_normalization group_normalization"
        " instance_normalization layer_normalization sync_batch_normalization tensor_normalization"
        " weight_standardization",
        "nnl.nnabla.normalization: BatchNormalizationInOutAdapter _apply_affine _check_axis"
        " _check_batch_axis_and_force_list _create_bn_dummy_vars _force_list _get_axes_excluding"
        " _init_beta_gamma",
    ),
    "numpy_compat_functions": ("nnl.functions.affine",),
    "parameter": ("nnl.core.parameters.parameter",),
    "random": ("nnl.core.ops.random",),
    "recompute": ("nnl.core.interpreters.switches",),
    "solver": ("nnl.solvers",),
    "testing": ("nnl.nnabla.testing",),
    "utils": (),
    "utils.audio_utils": ("nnl.data.audio",),
    "utils.communicator_util": (
        "nnl.communicators: create_communicator current_communicator single_or_rankzero",
    ),
    "utils.converter": ("nnl.nnabla.converter",),
    "utils.create_cache": ("nnl.data.source_csv",),
    "utils.data_iterator": (
        "nnl.data.iterator",
        "nnl.data.source: DataSource DataSourceWithMemoryCache SlicedDataSource",
        "nnl.data.source_cache: CacheDataSource",
        "nnl.data.source_csv: CsvDataSource",
        "nnl.data.source_file_cache: DataSourceWithFileCache",
        "nnl.data.source_simple: ConcatDataSource SimpleDataSource",
        "nnl.data.workers: sample_rng",
    ),
    "utils.data_source": (
        "nnl.data.source: DataSource DataSourceWithMemoryCache SlicedDataSource",
        "nnl.data.source_file_cache: DataSourceWithFileCache DataSourceWithFileCacheError",
    ),
    "utils.data_source_implements": (
        "nnl.data.source_cache: CacheDataSource CachePrefetcher CacheReaderWithPrefetch",
        "nnl.data.source_csv: CsvDataSource",
        "nnl.data.source_simple: ConcatDataSource SimpleDataSource",
    ),
    "utils.data_source_loader": ("nnl.data.download: download get_data_home", "nnl.data.loader"),
    "utils.dlpack": ("nnl.core.arrays.dlpack",),
    "utils.download": ("nnl.data.download",),
    "utils.factorization": (),
    "utils.factorization.cpd": ("nnl.parametric_functions.cpd",),
    "utils.function_profile": ("nnl.nnabla.function_profile",),
    "utils.image_utils": ("nnl.data.image",),
    "utils.inspection": ("nnl.training.inspection",),
    "utils.learning_rate_scheduler": ("nnl.solvers.learning_rate_scheduler",),
    "utils.load": (
        "nnl.converters.nnp.reader: load",
        "nnl.converters.nnp.training_reader: restore_optimizer_state",
    ),
    "utils.nnabla_pb2": ("nnl.nnabla.messages",),
    "utils.nnl_pb2": ("nnl.nnabla.messages",),  # where every "nnabla" was replaced
    "utils.nnp_graph": ("nnl.converters.nnp.graph",),
    "utils.profiler": ("nnl.training.profiler",),
    "utils.progress": ("nnl.nnabla.progress",),
    "utils.qnn": (
        "nnl.converters.rewriting.recorders",
        "nnl.converters.rewriting.scheduler",
    ),
    "utils.rnn": ("nnl.nnabla.rnn",),
    "utils.save": ("nnl.converters.nnp.writer: create_proto save",),
    "variable": ("nnl.core.graph.variable", "nnl.core.settings.context"),
}

# Names that are functions of nnl as well: importing them later would put the module in its place.
FUNCTIONS = ("auto_forward", "grad", "recompute")

# What `import nnabla` loads by itself besides them: attributes of nnl right away.
LOADED = (
    "_init", "_nd_array", "_variable", "_version", "config", "dtypes", "function_bases",
    "normalization_functions", "numpy_compat_functions", "solver",
)  # fmt: skip


# Modules that do not exist, with all below them -> what to use.
REFUSED: dict[str, str] = {
    "_dropout_workaround": "dropout in nnl draws the same numbers in nn.grad and in backward",
    "_arithmetic_ops": "operators are methods of nnl.Variable and nnl.NdArray",
    "_array": "use nnl.NdArray",
    "_computation_graph": "use nnl.forward_all",
    "_indexing": "use x[key] and x[key] = value",
    "autolog": "use log_metric and log_artifact of MLflow",
    "backward_function": "use nnl.grad, or nnl.backward_functions",
    "core.graph_optimizer": "use nnl.experimental.graph_converters, or the command nnl optimize",
    "core.variable_batch_size": "use batch_size of nnl.utils.nnp_graph.NnpLoader.get_network",
    "experimental.framework": "write the loop: nnl.utils.data_iterator, nnl.solvers, nnl.monitor",
    "libnnabla": "use nnl/nnabla.h in C++",
    "mlflow_save_load_model": "use nnl.save_parameters and log_artifact of MLflow",
    "models.object_detection": "read the network's .nnp with nnl.utils.nnp_graph.NnpLoader",
    "models.semantic_segmentation": "read the network's .nnp with nnl.utils.nnp_graph.NnpLoader",
    "models.utils": "use nnl.data.download and nnl.utils.nnp_graph.NnpLoader",
    "utils.callback": "use the command nnl",
    "utils.cli": "use the command nnl, or nnl.cli.main.main",
    "utils.get_file_handle": "use nnl.utils.load and nnl.utils.save",
    "utils.load_function": "use nnl.utils.load.load",
    "utils.nnp_format": "use nnl.utils.load and nnl.utils.save",
    "utils.nvml": "use the package pynvml",
    "utils.py23_compatible": "use Python 3",
    "utils.save_function": "use nnl.utils.save.save",
    "utils.signature_utils": "use inspect.signature",
}


class Finder:
    """Finds the modules of the table."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top, _, below = name.partition(".")
        if top != "nnl":
            return None
        if below not in PATHS:
            parts = below.split(".")
            for n in range(len(parts)):
                if instead := REFUSED.get(".".join(parts[: n + 1])):
                    raise ModuleNotFoundError(f"no module {name}: {instead}", name=name)
            return None
        return ModuleSpec(name, self, origin="nnl.nnabla.paths", is_package=not PATHS[below])

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an empty module, as usual."""

    def exec_module(self, module: ModuleType) -> None:
        sources = PATHS[module.__name__.removeprefix("nnl.")]
        if len(sources) == 1 and ":" not in sources[0]:
            sys.modules[module.__name__] = import_module(sources[0])
            return
        for source in sources:
            name, _, names = source.partition(":")
            found = import_module(name)
            public = names.split() or [k for k in vars(found) if not k.startswith("_")]
            module.__dict__.update({k: getattr(found, k) for k in public})


def keep_functions() -> None:
    """Load the modules whose names are functions, without an attribute of nnl for them."""
    for name in FUNCTIONS:
        (source,) = PATHS[name]
        sys.modules[f"nnl.{name}"] = import_module(source)


sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
