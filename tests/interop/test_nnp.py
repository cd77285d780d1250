# SPDX-License-Identifier: Apache-2.0
"""Networks in NNabla's files, both ways: every function, batch sizes and settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnl.converters.nnp.messages import parse
from nnl.converters.nnp.reader import load
from nnl.converters.nnp.writer import save
from nnl.core.graph.variable import forward_all
from nnl.core.ops.op import OPS
from tests.converters.test_nnp_functions import WIDER, graph
from tests.interop.bridge import Nnabla
from tests.interop.here import IMPORTS, run_here
from tests.test_derived import each_sample, samples

pytestmark = pytest.mark.interop


# What NNabla's CPU build refuses although its files have it.
REFUSES = (
    "not supported",
    "not_implemented error in forward_impl",
    "Offset tensor must have the shape as input feature map",  # a stride in deformable convolution
    "Number of grouped channel mismatch",  # channel_last
    "Dimensions differ 0, 0, and 0",  # scalars in clip_grad_by_value
    "If batch_stat_ is false, it cannot output batch mean and variance",
    "No network is found in current graph",  # NNabla leaves Sink out of what it saves
)
# Where the data decides a shape (`count`), NNabla asks for data that a loader does not have: it
# crashes, or writes a shape with a 0 into its files.
TYPED = [
    op
    for op in OPS.values()
    if (op.nnp or op.name in WIDER)
    and hasattr(op.attrs_class, "samples")
    and "count" not in op.fields
]
CASES = [pytest.param(op, i, id=f"{op.name}-{i}") for op in TYPED for i in range(len(samples(op)))]

# Loads one network per file that nnl saved, runs it, and saves what it loaded.
EVERY = """
import glob, logging, os
logging.disable(logging.CRITICAL)
from nnabla.utils.nnp_graph import NnpLoader
from nnabla.utils.save import save
for path in sorted(glob.glob(os.path.join(FOLDER, 'ours-*.nntxt'))):
    key = os.path.basename(path)[5:-6]
    try:
        n = NnpLoader(path).get_network('n')
        for name, v in n.inputs.items():
            v.d = inputs[key + ':' + name]
        ys = {k: v for k, v in n.variables.items() if k[0] == 'y'}
        nn.forward_all(list(ys.values()))
        for k, v in ys.items():
            outputs[key + ':' + k] = v.d
        net = {'name': 'n', 'batch_size': 1, 'outputs': ys, 'names': n.inputs}
        save(os.path.join(FOLDER, 'theirs-' + key + '.nntxt'), {'networks': [net]},
             variable_batch_size=False)
    except (RuntimeError, ValueError) as e:
        outputs['error:' + key] = np.frombuffer(str(e).encode(), np.uint8)
"""


@pytest.fixture(scope="module")
def every(nnabla: Nnabla, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The folder with the files of all cases, and what NNabla answered to them at once."""
    folder = tmp_path_factory.mktemp("nnp")
    arrays = {}
    for op in TYPED:
        for i in range(len(samples(op))):
            inputs, outputs = graph(op, i)
            if all(x.size for x in inputs.values()):  # NNabla crashes on some empty arrays
                key = f"{op.name}-{i}"
                arrays.update({f"{key}:{k}": x.d.copy() for k, x in inputs.items()})
                save_graph(folder / f"ours-{key}.nntxt", inputs, outputs)
    return folder, nnabla.exec(f"FOLDER = {str(folder)!r}\n" + EVERY, arrays)


def save_graph(path: Path, inputs, outputs) -> None:
    network = {"name": "n", "batch_size": 1, "names": inputs, "outputs": outputs}
    save(path, {"networks": [network]}, variable_batch_size=False)


@each_sample(CASES)
def test_a_function_goes_to_nnabla_and_back(every, op, i):
    folder, answers = every
    key = f"{op.name}-{i}"
    inputs, outputs = graph(op, i)
    if not all(x.size for x in inputs.values()):
        pytest.skip("NNabla crashes on some empty arrays")
    values = {k: x.d.copy() for k, x in inputs.items()}
    error = answers.get(f"error:{key}")
    if error is not None:
        text = bytes(error).decode()
        assert any(r in text for r in REFUSES), text
        pytest.skip(f"NNabla's CPU build refuses this: {text.splitlines()[-1][:80]}")
    forward_all(list(outputs.values()))
    back = load(folder / f"theirs-{key}.nntxt").networks["n"].variables
    for k, x in values.items():
        back[k].variable_instance.d = x
    forward_all([back[k].variable_instance for k in outputs])
    for k, y in outputs.items():
        assert answers[f"{key}:{k}"].shape == back[k].variable_instance.shape == y.shape
        if not op.takes_rng:
            np.testing.assert_allclose(answers[f"{key}:{k}"], y.d, rtol=2e-4, atol=2e-5)
            np.testing.assert_array_equal(back[k].variable_instance.d, y.d)


BATCHED = """
x = nn.Variable((4, 6))
h = F.relu(PF.affine(x, 3, name='a'))
y = F.reshape(h * F.broadcast(F.constant(2.0, (1, 3)), (4, 3)) + F.constant(1.0, (4, 3)), (4, 3, 1))
for k, v in nn.get_parameters().items():
    v.d = inputs[k]
net = {'name': 'n', 'batch_size': 4, 'outputs': {'y': y}, 'names': {'x': x}}
save(PATH, {'networks': [net]})
"""
GRAPH = """
n = NnpLoader(PATH).get_network('n', batch_size=7)
n.inputs['x'].d = inputs['x']
n.outputs['y'].forward()
outputs['y'] = n.outputs['y'].d
"""


def test_nnabla_takes_another_batch_size_from_our_file(nnabla: Nnabla, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    shapes = {"a/affine/W": (6, 3), "a/affine/b": (3,), "x": (7, 6)}
    inputs = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    path = f"PATH = {str(tmp_path / 'm.nnp')!r}\n"
    run_here(path + BATCHED, inputs)
    imports = IMPORTS + "from nnabla.utils.nnp_graph import NnpLoader\n"
    theirs = nnabla.exec(imports + path + GRAPH, inputs)
    ours = run_here("from nnl.utils.nnp_graph import NnpLoader\n" + path + GRAPH, inputs)
    want = np.maximum(inputs["x"] @ inputs["a/affine/W"] + inputs["a/affine/b"], 0) * 2 + 1
    np.testing.assert_allclose(theirs["y"], want[..., None], rtol=1e-5)
    np.testing.assert_allclose(ours["y"], want[..., None], rtol=1e-5)


CONTENTS = """
x, z, t = nn.Variable((4, 1, 8, 8)), nn.Variable((4, 3, 3, 3)), nn.Variable((4, 1))
h = F.relu(PF.batch_normalization(PF.convolution(x, 3, (3, 3), name='c1')))
h = F.dropout(F.max_pooling(h, (2, 2)), 0.3) + z
r = F.reshape(h, (4, -1), inplace=False)
y = PF.affine(r, 5)
a, b = F.split(y, 1)[0], F.max(y * F.randn(0, 1, (1, 5)), 1)
loss = F.mean(F.softmax_cross_entropy(y, t))
solver = getattr(S, SOLVER)()
solver.set_parameters(nn.get_parameters())
data = {'name': 'd', 'uri': 'u', 'cache_dir': 'c', 'variables': ['x', 't'], 'shuffle': True,
        'batch_size': 4, 'no_image_normalization': True}
save(PATH, {
    'global_config': {'default_context': nn.Context()},
    'training_config': {'max_epoch': 3, 'iter_per_epoch': 5, 'save_best': True},
    'networks': [{'name': 'm', 'batch_size': 4, 'outputs': {'y': y, 'loss': loss, 'a': a, 'b': b},
                  'names': {'x': x, 't': t, 'mid': r}}],
    'datasets': [data],
    'optimizers': [
        {'name': 'o', 'solver': solver, 'network': 'm', 'dataset': 'd', 'weight_decay': 1e-3,
         'lr_decay': 0.9, 'lr_decay_interval': 10, 'update_interval': 2},
        {'name': 'p', 'solver': solver, 'network': 'm', 'dataset': 'd', 'weight_decay': 0,
         'lr_decay': 1, 'lr_decay_interval': 1, 'update_interval': 1,
         'data_variables': {'x': 'image', 't': 'label'}, 'loss_variables': ['loss']}],
    'monitors': [{'name': 'q', 'network': 'm', 'dataset': 'd', 'data_variables': {'x': 'image'},
                  'monitor_variables': ['y', 'mid']}],
    'executors': [
        {'name': 'e', 'network': 'm', 'data': ['x'], 'output': ['y']},
        {'name': 'f', 'network': 'm', 'data': ['x'], 'output': ['y', 'b'], 'num_evaluations': 3,
         'repeat_evaluation_type': 'std', 'no_image_normalization': True,
         'remp': {'x': 'image'}}],
}, include_params=True)
"""


def sorted_message(path: Path):
    """The message of a file with its variables and functions sorted by name: there is more than
    one order in which inputs come before outputs."""
    message = parse("NNablaProtoBuf", path.read_bytes(), True, str(path))
    for network in message.network:
        for part in (network.variable, network.function):
            part.sort(key=lambda m: m.name)
    for optimizer in message.optimizer:
        for part in (optimizer.loss_variable, optimizer.parameter_variable):
            part.sort(key=lambda m: m.variable_name)
    return message


@pytest.mark.parametrize("solver", ["Adam", "Momentum", "AdaBelief", "RMSpropGraves"])
def test_all_settings_are_written_as_nnabla_writes_them(
    nnabla: Nnabla, tmp_path: Path, solver: str
) -> None:
    ours, theirs = tmp_path / "ours.nntxt", tmp_path / "theirs.nntxt"
    run_here(f"SOLVER = {solver!r}; PATH = {str(ours)!r}\n" + CONTENTS, {})
    nnabla.exec(IMPORTS + f"SOLVER = {solver!r}; PATH = {str(theirs)!r}\n" + CONTENTS)
    a, b = sorted_message(ours), sorted_message(theirs)
    a.global_config.Clear(), b.global_config.Clear()  # the default device's name differs
    assert str(a) == str(b)
