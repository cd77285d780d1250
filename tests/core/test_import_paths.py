# SPDX-License-Identifier: Apache-2.0
"""NNabla's import paths: their table, and what stands behind it."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.nnabla.paths import FUNCTIONS, LOADED, PATHS, REFUSED

NEEDS = {"experimental.tb_graph_writer": "tensorboardX"}


@pytest.mark.parametrize("path", PATHS)
def test_every_path_of_the_table_can_be_imported(path: str) -> None:
    if path in NEEDS:
        pytest.importorskip(NEEDS[path])
    assert isinstance(importlib.import_module(f"nnl.{path}"), types.ModuleType)


def test_paths_named_like_functions_leave_the_functions_alone() -> None:
    for name in FUNCTIONS:
        module = importlib.import_module(f"nnl.{name}")
        assert callable(getattr(nn, name)) and getattr(module, name) is getattr(nn, name)


def test_a_path_of_one_module_is_that_module() -> None:
    import nnl.core.parameters.parameter
    import nnl.parameter

    assert nnl.parameter is nnl.core.parameters.parameter  # current_scope changes at run time


@pytest.mark.parametrize("path", REFUSED)
def test_a_refused_path_says_what_to_use(path: str) -> None:
    with pytest.raises(ModuleNotFoundError) as refusal:
        importlib.import_module(f"nnl.{path}")
    assert str(refusal.value) == f"no module nnl.{path}: {REFUSED[path]}"
    if "." not in path:
        with pytest.raises(AttributeError, match=f"no module nnl.{path}: "):
            getattr(nn, path)


def test_what_scripts_use_without_an_import_is_there() -> None:
    program = "import nnl as nn; " + "; ".join(f"nn.{name}" for name in (*LOADED, "solver.Solver"))
    subprocess.check_call([sys.executable, "-c", program])
    assert nn.solver.Solver is S.Solver


def test_an_unknown_path_is_the_usual_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="nnl.utils.rnn2"):
        importlib.import_module("nnl.utils.rnn2")


NAMES = """
_variable: Context, Variable, CommunicatorBackwardCallback
context: Context, context_scope, get_current_context, set_default_context
experimental.graph_converters: FunctionModifier, GraphConverter
experimental.mixed_precision_training: DynamicLossScalingUpdater
ext_utils: get_extension_context, import_extension_module, list_extensions
function_bases: affine, relu
graph_def: ProtoExecutor, ProtoVariable, create_graph_from_variable, graph, load, save
initializer: ConstantInitializer, random
monitor: Monitor, MonitorSeries
normalization_functions: BatchNormalizationInOutAdapter, _force_list, batch_normalization
solver: Sgd
testing: assert_allclose
utils.communicator_util: create_communicator, single_or_rankzero
utils.data_iterator: DataIterator, data_iterator_simple, sample_rng
utils.data_source: DataSource, DataSourceWithFileCache, SlicedDataSource
utils.data_source_implements: CacheDataSource, CsvDataSource, SimpleDataSource
utils.image_utils: imread, imresize
utils.learning_rate_scheduler: CosineScheduler
utils.load: load, restore_optimizer_state
utils.save: create_proto, save
_nd_array: NdArray
_init: array_classes, available_contexts, clear_memory_cache, device_synchronize, get_devices
auto_forward: auto_forward, get_auto_forward, set_auto_forward
communicator: MultiProcessDataParallelCommunicator
config: nnabla_config, nnl_config
core.graph_def: ProtoGraph, create_graph_from_variable
core.module: Module
core.modules: ConvBn, ResUnit, complete_dims, get_conv_same_pad
core.sequential: Sequential
dtypes: np_dtpye_to_int, int_to_np_dtype
experimental.parametric_function_class.affine: Affine, Linear
experimental.parametric_function_class.batch_normalization: BatchNorm2d, BatchNormalization
experimental.parametric_function_class.convolution: Conv2d, Convolution
experimental.parametric_function_class.deconvolution: Deconv2d, Deconvolution
experimental.parametric_function_class.embed: Embed
experimental.parametric_function_class.module: Module
experimental.viewers: SimpleGraph
grad: grad
lms: SwapInOutScheduler
numpy_compat_functions: dot
recompute: get_global_recompute, recompute, recompute_fn, set_global_recompute
utils.audio_utils: auload, auread, auresize, ausave, auwrite, minmax_auto_scale, set_backend
utils.converter: convert_files, dump_files, extensions, formats, nnb_template
utils.data_source_loader: download, get_data_home
utils.function_profile: profile
utils.nnabla_pb2: NNablaProtoBuf, Network, Parameter
utils.progress: configure_progress, progress
utils.qnn: FunctionsRankRecorder, PrecisionMode, QATConfig, QATScheduler, QATTensorRTConfig
utils.rnn: PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence
variable: Context, Variable
"""


@pytest.mark.parametrize("line", NAMES.split("\n")[1:-1])
def test_names_that_scripts_import_are_there(line: str) -> None:
    path, names = line.split(": ")
    module = importlib.import_module(f"nnl.{path}")
    assert [n for n in names.split(", ") if not hasattr(module, n)] == []


def test_nnl_imports_none_of_the_rare_modules() -> None:
    program = "import sys, nnl; print(*[m for m in sys.modules if m.startswith('nnl.nnabla.')])"
    out = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert out.split() == ["nnl.nnabla.paths"]


def test_array_preference_orders_the_classes() -> None:
    first = nn.array_classes()
    try:
        nn.prefer_cached_array(False)
        assert nn.array_classes() == first[::-1]
    finally:
        nn.reset_array_preference()
    assert nn.array_classes() == first and nn.available_contexts[0] == "cpu"


def test_extensions_that_are_listed_can_be_used() -> None:
    from nnl.ext_utils import get_extension_context, list_extensions

    assert {"cpu", "numpy"} <= set(list_extensions())
    for name in list_extensions():
        assert isinstance(get_extension_context(name), nn.Context)


def test_cuda_without_a_gpu_has_nothing_to_clear_or_to_wait_for() -> None:
    from nnl_ext.cuda import StreamEventHandler, clear_memory_cache

    clear_memory_cache()
    handler = StreamEventHandler(0)
    handler.event_synchronize()
    handler.add_default_stream_event()
    handler.event_synchronize()


def test_config_is_what_the_data_caches_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnl.config import nnabla_config
    from nnl.data.settings import settings

    monkeypatch.setattr(settings, "file_cache_rows", 7)
    assert nnabla_config.get("DATA_ITERATOR", "data_source_file_cache_size") == "7"
    nnabla_config.set("DATA_ITERATOR", "data_source_file_cache_size", "many")
    with pytest.raises(ValueError, match="data_source_file_cache_size of .* is 'many', wanted an"):
        _ = settings.file_cache_rows


def test_config_file_overrides_the_defaults(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nnl.data.settings import read_config

    file = tmp_path / "settings.conf"
    file.write_text("[DATA_ITERATOR]\ncache_file_format = .h5\n")
    monkeypatch.setenv("NNL_CONFIG_FILE_PATH", str(file))
    assert read_config().get("DATA_ITERATOR", "cache_file_format") == ".h5"
    assert read_config().get("MISC", "nnp_param_format") == ".h5"


def test_messages_can_be_made_and_written() -> None:
    from nnl.utils import nnabla_pb2

    proto = nnabla_pb2.NNablaProtoBuf()
    proto.network.add(name="net")
    again = nnabla_pb2.NNablaProtoBuf()
    again.ParseFromString(proto.SerializeToString())
    assert again.network[0].name == "net" and "Solver" in dir(nnabla_pb2)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = nnabla_pb2.Nothing


def test_progress_goes_to_a_file_and_a_callback(tmp_path, monkeypatch) -> None:
    from nnl.utils import progress

    monkeypatch.setattr(progress, "state_file_name", "")
    monkeypatch.setattr(progress, "state_callback", None)
    monkeypatch.setattr(progress, "_LEAST_SECONDS", -1.0)
    said: list = []
    progress.configure_progress(str(tmp_path / "state"), lambda *a: said.append(a))
    assert (tmp_path / "state").read_text() == ""
    progress.progress("Training", 0.125)
    assert (tmp_path / "state").read_text() == "Training (12.50%)"
    assert said == [(None, 0.0), ("Training", 0.125)]


def test_profile_counts_and_prints_calls(capsys: pytest.CaptureFixture) -> None:
    from nnl.utils.function_profile import profile

    @profile(condition=lambda n: n > 0, print_freq=2)
    def count(n: int) -> int:
        return sum(range(n))

    assert [count(n) for n in (0, 3, 4)] == [0, 3, 6]
    out = capsys.readouterr().out
    assert out.count("--- Function Profiling ---") == 1 and "function count" in out
    assert count.profiler.ncalls == 0


def test_scheduler_of_memory_trains_as_without_it() -> None:
    from nnl.lms import SwapInOutScheduler

    x, w = nn.Variable((64, 32)), nn.Variable((32, 32), need_grad=True)
    x.d = np.random.default_rng(0).normal(size=x.shape)
    gradients = []
    for size in (1e9, 1e4):
        w.d = np.eye(32) * 0.5
        h = x
        for _ in range(4):
            h = F.affine(F.sin(h), w)
        loss = F.sum(h)
        scheduler = SwapInOutScheduler(nn.get_current_context(), nn.get_current_context(), size)
        with scheduler:
            loss.forward(clear_no_need_grad=True, function_pre_hook=scheduler.function_pre_hook)
            w.grad.zero()
            loss.backward(clear_buffer=True)
        gradients.append(w.g.copy())
        (session,) = loss.sessions.values()
        gradients.append(session.plans["train"].plan.nbytes)
    assert gradients[3] < gradients[1]
    np.testing.assert_allclose(gradients[2], gradients[0], rtol=1e-5)


def test_bottleneck_unit_and_its_parameters() -> None:
    from nnl.core.modules import ResUnit, complete_dims

    unit = ResUnit(8, stride=2)
    y = unit(nn.Variable((2, 4, 6, 6)))
    assert y.shape == (2, 8, 3, 3)
    assert unit.get_parameters()["@conv2/conv/W"].shape == (2, 2, 3, 3)
    with pytest.raises(nn.core.arrays.spec.ShapeError, match=r"s is \(1, 2\), wanted 3 sizes"):
        complete_dims((1, 2), 3)


def test_layers_with_parameters_as_attributes_are_saved_and_loaded(tmp_path) -> None:
    import nnl.experimental.parametric_function_classes as PC

    class Net(PC.Module):
        def __init__(self) -> None:
            self.embed = PC.Embed(9, 4)
            self.conv = PC.Conv2d(1, 4, (3, 3), group=1)
            self.up = PC.Deconv2d(4, 6, (2, 2))
            self.bn = PC.BatchNorm2d(6)
            self.fc = PC.Affine(6 * 9 * 3, 5)

        def __call__(self, t: nn.Variable, test: bool = False) -> nn.Variable:
            h = F.reshape(self.embed(t), (2, 1, 10, 4))
            return self.fc(F.relu(self.bn(self.up(self.conv(h)), test)))

    t = nn.Variable((2, 10))
    t.d = np.arange(20).reshape(2, 10) % 9
    net = Net()
    names = ["embed/W", "conv/W", "conv/b", "up/W", "up/b", "bn/beta", "bn/gamma", "fc/W", "fc/b"]
    assert list(net.get_parameters()) == names
    assert list(net.get_parameters(grad_only=False))[7:9] == ["bn/mean", "bn/var"]
    y = net(t, test=True)
    y.forward()
    net.save_parameters(str(tmp_path / "net.h5"))
    other = Net()
    other.load_parameters(str(tmp_path / "net.h5"))
    z = other(t, test=True)
    z.forward()
    np.testing.assert_array_equal(y.d, z.d)
    other.extra = PC.Linear(1, 1)
    with pytest.raises(ValueError, match="has no parameter 'extra/W'"):
        other.load_parameters(str(tmp_path / "net.h5"))


# ---- helpers of normalization functions ----


def test_lists_of_axes() -> None:
    import nnl.normalization_functions as N

    assert N._force_list(2) == [2] and N._force_list((1, 2)) == (1, 2)
    assert N._get_axes_excluding(4, -1) == [0, 1, 2]
    assert N._get_axes_excluding(4, [0, -2]) == [1, 3]
    assert N._check_batch_axis_and_force_list(3, 0) == [0]
    for bad in (3, -1):
        with pytest.raises(ValueError, match=f"axis is {bad}, wanted 0 to 2"):
            N._check_batch_axis_and_force_list(3, [0, bad])


def test_parameters_of_normalizations() -> None:
    import nnl.normalization_functions as N

    nn.clear_parameters()
    x = nn.Variable((2, 3, 4))
    x.d = 2
    beta, gamma = N._init_beta_gamma(
        (1, 3, 1), True, {"gamma": np.full((1, 3, 1), 3.0)}, False, False
    )
    assert not beta.need_grad and list(nn.get_parameters()) == ["beta", "gamma"]
    assert N._init_beta_gamma((1, 3, 1), False, {}, True, True) == (None, None)
    y = N._apply_affine(x, gamma, beta)
    y.forward()
    assert (y.d == 6).all() and N._apply_affine(x) is x
    dummies = N._create_bn_dummy_vars(x, 1, None, gamma, None, None)
    assert [v.shape for v in dummies] == [(1, 3, 1)] * 4 and dummies[1] is gamma
    with pytest.raises(
        nn.core.arrays.spec.ShapeError, match=r"gamma has the shape \(1, 3, 1\), wanted"
    ):
        N._create_bn_dummy_vars(x, 2, None, gamma, None, None)


def test_axes_are_brought_together_and_back() -> None:
    from nnl.normalization_functions import BatchNormalizationInOutAdapter

    x = nn.Variable((2, 3, 4, 5))
    x.d = np.arange(120).reshape(x.shape)
    adapter = BatchNormalizationInOutAdapter(4, [1, 3])
    y = adapter(x)
    z = adapter.inv(y)
    nn.forward_all([y, z])
    np.testing.assert_array_equal(y.d, x.d.transpose(0, 2, 1, 3).reshape(2, 4, 15))
    np.testing.assert_array_equal(z.d, x.d)
    with pytest.raises(nn.core.arrays.spec.ShapeError, match="wanted that of the first call"):
        adapter(nn.Variable((2, 3, 4, 6)))
    with pytest.raises(ValueError, match="wanted several"):
        BatchNormalizationInOutAdapter(4, [1])
