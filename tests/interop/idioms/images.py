# SPDX-License-Identifier: Apache-2.0
"""Networks of images: classification, segmentation, stereo, super-resolution, capsules."""

SCRIPTS = {}

SCRIPTS["classification"] = """
import os, tempfile
from nnabla.ext_utils import get_extension_context
from nnabla.logger import logger
from nnabla.monitor import Monitor, MonitorSeries, MonitorTimeElapsed
from nnabla.utils.data_iterator import data_iterator_simple
from nnabla.utils.data_source_loader import get_data_home
assert isinstance(get_data_home(), str)
logger.setLevel("ERROR")
nn.set_default_context(get_extension_context("cpu", device_id="0", type_config="float"))

def load(i):
    return uniform(i, 1, 12, 12) * 255, np.array([i % 4])

def network(image, test=False):
    h = F.relu(F.max_pooling(PF.convolution(image / 255.0, 8, (3, 3), name="c1"), (2, 2)))
    with nn.parameter_scope("bn"):
        h = PF.batch_normalization(h, batch_stat=not test)
    return PF.affine(F.elu(h), 4, name="fc")

image, label = nn.Variable((8, 1, 12, 12)), nn.Variable((8, 1))
pred = network(image)
pred.persistent = True
loss = F.mean(F.softmax_cross_entropy(pred, label))
error = F.mean(F.top_n_error(network(image, test=True), label))
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
folder = tempfile.mkdtemp()
monitor = Monitor(folder)
monitor_loss = MonitorSeries("Training loss", monitor, interval=2, verbose=False)
monitor_time = MonitorTimeElapsed("Training time", monitor, interval=2, verbose=False)
with data_iterator_simple(load, 32, 8, shuffle=False, with_file_cache=False) as data:
    for i in range(6):
        image.d, label.d = data.next()
        loss.forward(clear_no_need_grad=True)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.weight_decay(1e-4)
        solver.update()
        loss.data.cast(np.float32, nn.get_current_context())
        monitor_loss.add(i, loss.d.copy())
        monitor_time.add(i)
        error.forward(clear_buffer=True)
with open(os.path.join(folder, "Training-loss.series.txt")) as f:
    outputs["loss"] = np.array([float(line.split()[1]) for line in f])
outputs["error"], outputs["pred"] = error.d.copy(), pred.d.copy()
nn.save_parameters(os.path.join(folder, "params.h5"))
nn.clear_parameters()
nn.load_parameters(os.path.join(folder, "params.h5"))
again = network(image, test=True)
again.forward()
outputs["again"] = again.d.copy()
"""

SCRIPTS["resnet with floats for maps"] = """
def unit(x, scope, dn=False):
    C = x.shape[1]
    with nn.parameter_scope(scope):
        with nn.parameter_scope("conv1"):
            h = F.elu(PF.batch_normalization(PF.convolution(x, C / 2, (1, 1), with_bias=False)))
        with nn.parameter_scope("conv2"):
            h = PF.convolution(h, C / 2, (3, 3), pad=(1, 1), with_bias=False)
            h = F.elu(PF.batch_normalization(h))
        with nn.parameter_scope("conv3"):
            h = PF.batch_normalization(PF.convolution(h, C, (1, 1), with_bias=False))
    h = F.elu(F.add2(h, x, inplace=True))
    return F.max_pooling(h, kernel=(2, 2), stride=(2, 2)) if dn else h

x, t = nn.Variable((4, 1, 16, 32 / 2)), nn.Variable((4, 1))
with nn.parameter_scope("conv1"):
    h = PF.convolution(x, 16, kernel=(3, 3), pad=(1, 1), with_bias=False)
    h = F.elu(PF.batch_normalization(h))
for i in range(2):
    h = unit(h, "r%d" % i, dn=True)
h = F.average_pooling(h, kernel=h.shape[2:])
y = PF.affine(F.reshape(h, (4, h.size / 4)), 10)
loss = F.mean(F.softmax_cross_entropy(y, t))
solver = S.Adam(1e-3)
solver.set_parameters(nn.get_parameters())

def feed(step):
    x.d, t.d = uniform(step, *x.shape), integers(step, 10, 4, 1)
train(loss, solver, feed, decay=1e-4)
"""

SCRIPTS["siamese"] = """
def embedding(x, test=False):
    h = F.elu(PF.convolution(x, 8, (3, 3), name="c"))
    h = PF.batch_normalization(F.max_pooling(h, (2, 2)), batch_stat=not test)
    return PF.affine(h, 2, name="fc")
x0, x1, t = nn.Variable((6, 1, 8, 8)), nn.Variable((6, 1, 8, 8)), nn.Variable((6,))
e0, e1 = embedding(x0), embedding(x1)
dd = F.sum(F.squared_error(e0, e1), axis=1)
d = F.pow_scalar(dd + 1e-6, 0.5)
loss = F.mean(t * dd + (1 - t) * F.maximum_scalar(1.0 - d, 0) ** 2)
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
def feed(step):
    x0.d, x1.d = uniform(step, *x0.shape), uniform(40 + step, *x0.shape)
    t.d = integers(step, 2, 6)
train(loss, solver, feed, decay=1e-4)
"""

SCRIPTS["reduced precision"] = """
def block(x, kind):
    with nn.parameter_scope(kind):
        if kind == "bincon":
            h = PF.binary_connect_convolution(x, 8, (3, 3), pad=(1, 1))
        elif kind == "binw":
            h = PF.binary_weight_convolution(x, 8, (3, 3), pad=(1, 1))
        elif kind == "fixed":
            h = PF.fixed_point_quantized_convolution(x, 8, (3, 3), pad=(1, 1), n_w=8, delta_w=2**-6)
        else:
            h = PF.pow2_quantized_convolution(x, 8, (3, 3), pad=(1, 1), n_w=8, m_w=1)
        return F.relu(PF.batch_normalization(h))
x, t = nn.Variable((4, 2, 8, 8)), nn.Variable((4, 1))
h = x
for kind in ("bincon", "binw", "fixed", "pow2"):
    h = block(h, kind)
h = F.fixed_point_quantize(F.average_pooling(h, (4, 4)), sign=True, n=8, delta=2**-4)
loss = F.mean(F.softmax_cross_entropy(PF.binary_connect_affine(h, 3), t))
solver = S.Sgd(0.01)
solver.set_parameters(nn.get_parameters())
def feed(step):
    x.d, t.d = uniform(step, *x.shape), integers(step, 3, 4, 1)
train(loss, solver, feed)
"""

SCRIPTS["capsules"] = """
def squash(s):
    n2 = F.sum(s ** 2, axis=-1, keepdims=True)
    return s * (n2 / (1.0 + n2) / F.pow_scalar(n2 + 1e-6, 0.5))
B, ci, di, cj, dj = 2, 8, 4, 3, 6
x, t = nn.Variable((B, 1, 9, 9)), nn.Variable((B, 1))
h = F.relu(PF.convolution(x, 8, (3, 3), name="a"))
h = PF.convolution(h, 8, (3, 3), stride=(2, 2), name="b")
u = squash(F.reshape(F.transpose(h, (0, 2, 3, 1))[:, :2, :2], (B, ci, di)))
W = nn.parameter.get_parameter_or_create("W", (1, ci, cj, di, dj), lambda shape: uniform(5, *shape))
ub = F.broadcast(F.reshape(u, (B, ci, 1, 1, di)), (B, ci, cj, 1, di))
u_hat = F.reshape(F.batch_matmul(ub, F.broadcast(W, (B, ci, cj, di, dj))), (B, ci, cj, dj))
stopped = F.identity(u_hat)
stopped.need_grad = False
b = F.constant(0, (B, ci, cj, 1))
for k in range(3):
    c = F.softmax(b, axis=2)
    uk = stopped if k < 2 else u_hat
    v = squash(F.sum(c * uk, axis=1, keepdims=True))
    if k < 2:
        b = b + F.sum(v * uk, axis=3, keepdims=True)
length = F.reshape(F.pow_scalar(F.sum(v ** 2, axis=-1) + 1e-6, 0.5), (B, cj))
hot = F.one_hot(t, (cj,))
loss = hot * F.relu(0.9 - length) ** 2 + 0.5 * (1 - hot) * F.relu(length - 0.1) ** 2
loss = F.mean(F.sum(loss, axis=1))
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
def feed(step):
    x.d, t.d = uniform(step, *x.shape), integers(step, cj, B, 1)
train(loss, solver, feed)
"""

SCRIPTS["super-resolution"] = """
def residual(x, name):
    with nn.parameter_scope(name):
        h = PF.prelu(PF.convolution(x, 8, (3, 3), pad=(1, 1), name="a"))
        return x + PF.convolution(h, 8, (3, 3), pad=(1, 1), name="b") * 0.2
def shuffle(x, r):
    b, c, h, w = x.shape
    y = F.reshape(x, (b, c / r / r, r, r, h, w))
    return F.reshape(F.transpose(y, (0, 1, 4, 2, 5, 3)), (b, c / r**2, h * r, w * r))
low, high = nn.Variable((2, 3, 6, 6)), nn.Variable((2, 3, 12, 12))
h = PF.convolution(low, 8, (3, 3), pad=(1, 1), name="in")
for i in range(2):
    h = residual(h, "res%d" % i)
h = shuffle(PF.convolution(h, 32, (3, 3), pad=(1, 1), name="up"), 2)
y = PF.convolution(h, 3, (1, 1), name="out")
loss = F.mean(F.absolute_error(y, high)) + F.mean((y[:, :, 1:] - y[:, :, :-1]) ** 2)
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
def feed(step):
    low.d, high.d = uniform(step, *low.shape), uniform(30 + step, *high.shape)
train(loss, solver, feed)
"""

SCRIPTS["segmentation"] = """
def aspp(x, rates):
    hs = []
    for r in rates:
        with nn.parameter_scope("rate%d" % r):
            h = PF.convolution(x, 4, (3, 3), pad=(r, r), dilation=(r, r), with_bias=False)
            hs.append(F.relu(PF.batch_normalization(h)))
    with nn.parameter_scope("pool"):
        h = PF.convolution(F.average_pooling(x, x.shape[2:]), 4, (1, 1))
        hs.append(F.interpolate(h, output_size=x.shape[2:], mode="linear"))
    return F.concatenate(*hs, axis=1)
x, t, valid = nn.Variable((2, 3, 12, 12)), nn.Variable((2, 1, 12, 12)), nn.Variable((2, 1, 12, 12))
h = PF.depthwise_convolution(x, (3, 3), pad=(1, 1), stride=(2, 2))
h = F.relu(PF.batch_normalization(PF.convolution(h, 8, (1, 1), name="point")))
y = PF.convolution(aspp(h, (1, 2)), 4, (1, 1), name="logits")
y = F.interpolate(y, output_size=(12, 12), mode="linear")
ce = F.softmax_cross_entropy(y, t, axis=1)
loss = F.sum(ce * valid) / F.sum(valid)
solver = S.Momentum(0.01, 0.9)
solver.set_parameters(nn.get_parameters())
def feed(step):
    x.d, t.d = uniform(step, *x.shape), integers(step, 4, *t.shape)
    valid.d = integers(30 + step, 2, *t.shape)
    solver.set_learning_rate(0.01 * (1 - step / 6) ** 0.9)
train(loss, solver, feed, decay=1e-4)
"""

SCRIPTS["stereo with volumes"] = """
left, right, t = nn.Variable((1, 2, 8, 10)), nn.Variable((1, 2, 8, 10)), nn.Variable((1, 1, 8, 10))
def features(x):
    return PF.convolution(x, 4, (3, 3), pad=(1, 1), name="f")
l, r, D = features(left), features(right), 4
slices = []
for d in range(D):
    moved = F.pad(r[:, :, :, : 10 - d], (d, 0), "constant", 0) if d else r
    slices.append(F.concatenate(l, moved, axis=1))
volume = F.stack(*slices, axis=2)
h = F.relu(PF.batch_normalization(PF.convolution(volume, 4, (3, 3, 3), pad=(1, 1, 1), name="v")))
cost = F.reshape(PF.convolution(h, 1, (3, 3, 3), pad=(1, 1, 1), name="cost"), (1, D, 8, 10))
p = F.softmax(-cost, axis=1)
disparity = F.sum(p * F.reshape(F.arange(0, D), (1, D, 1, 1)), axis=1, keepdims=True)
loss = F.mean(F.huber_loss(disparity, t))
solver = S.Adam(1e-2)
solver.set_parameters(nn.get_parameters())
def feed(step):
    left.d, right.d = uniform(step, *left.shape), uniform(20 + step, *left.shape)
    t.d = integers(step, D, *t.shape)
train(loss, solver, feed)
"""

SCRIPTS["distillation and mixup"] = """
def net(x, n, name, test=False):
    with nn.parameter_scope(name):
        h = F.relu(PF.batch_normalization(PF.affine(x, n), batch_stat=not test))
        return PF.affine(h, 3, name="out")
xa, xb, ta, tb = nn.Variable((6, 5)), nn.Variable((6, 5)), nn.Variable((6, 1)), nn.Variable((6, 1))
lam = nn.Variable((6, 1))
x = lam * xa + (1 - lam) * xb
label = lam * F.one_hot(ta, (3,)) + (1 - lam) * F.one_hot(tb, (3,))
label = label * 0.9 + 0.1 / 3
teacher = net(x, 16, "teacher", test=True)
teacher.need_grad = False
student = net(x, 4, "student")
hard = F.mean(F.categorical_cross_entropy(F.softmax(student), ta))
soft = -F.mean(F.sum(F.softmax(teacher / 2) * F.log_softmax(student / 2), axis=1))
smooth = -F.mean(F.sum(label * F.log_softmax(student), axis=1))
loss = hard + 4 * soft + smooth
solver = S.Nesterov(0.05)
with nn.parameter_scope("student"):
    solver.set_parameters(nn.get_parameters())
def feed(step):
    xa.d, xb.d, lam.d = uniform(step, 6, 5), uniform(20 + step, 6, 5), np.abs(uniform(step, 6, 1))
    ta.d, tb.d = integers(step, 3, 6, 1), integers(20 + step, 3, 6, 1)
train(loss, solver, feed)
"""
