# SPDX-License-Identifier: Apache-2.0
"""Layers of Caffe: values and gradients are those of PyTorch, for each row of a table."""

import math

import numpy as np
import pytest

import nnl.dialects.caffe as caffe
from nnl.converters.caffe.messages import parse_text
from nnl.dialects.caffe.layer import KINDS
from nnl.workspace import Workspace

torch = pytest.importorskip("torch")
f = torch.nn.functional


def net_of(layers, shapes, phase=caffe.TRAIN, more="force_backward: true"):
    text = "".join(
        f'input: "x{i}" input_shape {{ {" ".join(f"dim: {d}" for d in s)} }} '
        for i, s in enumerate(shapes)
    )
    return caffe.Net(parse_text("NetParameter", f'name: "t" {more} {text} {layers}', "test"), phase)


def layer(type, params, shapes, tops=1):
    bottoms = "".join(f'bottom: "x{i}" ' for i in range(len(shapes)))
    top = "".join(f'top: "y{i}" ' for i in range(tops))
    return f'layer {{ name: "l" type: "{type}" {bottoms} {top} {params} }}'


def conv(x, w, b, **at):
    return f.conv2d(x, w, b, **at)


def caffe_pool(x, k, s, p, largest):
    """Windows of Caffe, one by one: rounded up, clipped to the image, means by what is covered."""
    size = x.shape[2:]
    n = [math.ceil((h + 2 * p - k) / s) + 1 for h in size]
    n = [m - 1 if p and (m - 1) * s >= h + p else m for m, h in zip(n, size, strict=True)]
    rows = []
    for i in range(n[0]):
        row = []
        for j in range(n[1]):
            b = [i * s - p, j * s - p]
            e = [min(v + k, h + p) for v, h in zip(b, size, strict=True)]
            area = (e[0] - b[0]) * (e[1] - b[1])
            part = x[:, :, max(b[0], 0) : min(e[0], size[0]), max(b[1], 0) : min(e[1], size[1])]
            row.append(part.amax((2, 3)) if largest else part.sum((2, 3)) / area)
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


def lrn_within(x, n, alpha, beta):
    square = f.avg_pool2d(x * x, n, 1, n // 2, count_include_pad=True)
    return x * (1 + alpha * square) ** -beta


def batch_norm(x, mean, var, count):
    return f.batch_norm(x, None, None, None, None, True, eps=1e-3)


def mvn(x, across, variance=True):
    axes = (1, 2, 3) if across else (2, 3)
    y = x - x.mean(axes, keepdim=True)
    return y / (y.pow(2).mean(axes, keepdim=True).sqrt() + 1e-9) if variance else y


def softmax_loss(x, t, ignore=-100, divide=None):
    total = f.cross_entropy(
        x, t.reshape(t.shape[0], *x.shape[2:]).long(), reduction="sum", ignore_index=ignore
    )
    return total / (divide or max(1, int((t != ignore).sum())))


def sigmoid_loss(x, t, ignore=None, divide=None):
    each = f.binary_cross_entropy_with_logits(x, t.clamp(0), reduction="none")
    each = each if ignore is None else each * (t != ignore)
    return each.sum() / (divide or x.shape[0])


def hinge(x, t, power):
    sign = 1 - 2 * f.one_hot(t.long(), x.shape[1])
    return f.relu(1 + sign * x).pow(power).sum() / x.shape[0]


def contrastive(a, b, y, legacy=False):
    d = (a - b).pow(2).sum(1)
    far = f.relu(2 - d) if legacy else f.relu(2 - d.sqrt()).pow(2)
    return (y * d + (1 - y) * far).sum() / (2 * len(a))


def infogain(x, t, h):
    return -(h.reshape(3, 3)[t.long()] * f.log_softmax(x, 1)).sum() / len(x)


def lstm(x, cont, w_x, b, w_h):
    h = torch.zeros(x.shape[1], 3, dtype=x.dtype)
    c, ys = h, []
    for t in range(len(x)):
        k = cont[t][:, None]
        i, g, o, u = (x[t] @ w_x.T + b + (h * k) @ w_h.T).chunk(4, 1)
        c = k * g.sigmoid() * c + i.sigmoid() * u.tanh()
        h = o.sigmoid() * c.tanh()
        ys.append(h)
    return torch.stack(ys)


def rnn(x, cont, w_x, b, w_h, w_o, b_o):
    h, ys = torch.zeros(x.shape[1], 3, dtype=x.dtype), []
    for t in range(len(x)):
        h = (x[t] @ w_x.T + b + (h * cont[t][:, None]) @ w_h.T).tanh()
        ys.append((h @ w_o.T + b_o).tanh())
    return torch.stack(ys)


def spp(x):
    whole, quarters = x.amax((2, 3)), caffe_pool(x, 2, 2, 0, True).flatten(1)
    return torch.cat([whole, quarters], 1)


def smooth_l1(x, t, i, o):
    d = (x - t) * i
    near = d.abs() < 1 / 4
    return (torch.where(near, 2 * d * d, d.abs() - 1 / 8) * o).sum() / len(x)


def tile_of(y):
    return torch.cat([y] * 3, 2)


def accuracy(x, t):
    return (x.argmax(1) == t).double().mean()


def kth(x, t, k):
    return (x.topk(k, 1).indices == t[:, None].long()).any(1).double().mean()


def by_class(x, t):
    hit = x.argmax(1) == t
    return accuracy(x, t), torch.stack(
        [
            hit[t == c].double().mean() if (t == c).any() else torch.zeros((), dtype=x.dtype)
            for c in range(x.shape[1])
        ]
    )


def roi_pool(x, boxes):
    rows = []
    for image, *box in boxes.tolist():
        x1, y1, x2, y2 = (math.floor(v * 0.5 + 0.5) for v in box)
        h, w = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        bins = []
        for i in range(2):
            for j in range(2):
                ys = slice(
                    max(y1 + math.floor(i * h / 2), 0), max(y1 + math.ceil((i + 1) * h / 2), 0)
                )
                xs = slice(
                    max(x1 + math.floor(j * w / 2), 0), max(x1 + math.ceil((j + 1) * w / 2), 0)
                )
                part = x[int(image), :, ys, xs]
                bins.append(part.amax((1, 2)) if part.numel() else x.new_zeros(x.shape[1]))
        rows.append(torch.stack(bins, 1).reshape(-1, 2, 2))
    return torch.stack(rows)


def labels(n, classes, shape=None):
    return np.random.default_rng(n).integers(0, classes, shape or (n,)).astype("f")


IMAGE = (2, 4, 7, 6)
FILL = 'weight_filler { type: "xavier" } bias_filler { type: "gaussian" std: 0.5 }'
CONT = np.array([[0, 0], [1, 1], [0, 1], [1, 1]], "f")
BOXES = np.array([[0, 0, 0, 7, 9], [1, 3, 4, 11, 13], [1, 2, 2, 3, 3]], "f")
H = np.eye(3, dtype="f") + 0.25
ROWS = [
    # type, parameters, bottoms: shapes or arrays (which get no gradient), oracle
    ("ReLU", "", [IMAGE], f.relu),
    ("ReLU", "relu_param { negative_slope: 0.2 }", [IMAGE], lambda x: f.leaky_relu(x, 0.2)),
    ("ReLU6", "", [IMAGE], f.relu6),
    ("ELU", "elu_param { alpha: 0.5 }", [IMAGE], lambda x: f.elu(x, 0.5)),
    ("PReLU", "", [IMAGE], f.prelu),
    ("PReLU", "prelu_param { channel_shared: true }", [IMAGE], lambda x,
     w: f.prelu(x, w.reshape(1))),
    ("Sigmoid", "", [IMAGE], torch.sigmoid),
    ("TanH", "", [IMAGE], torch.tanh),
    ("AbsVal", "", [IMAGE], torch.abs),
    ("BNLL", "", [IMAGE], f.softplus),
    ("Swish", "swish_param { beta: 1.5 }", [IMAGE], lambda x: x * torch.sigmoid(1.5 * x)),
    ("Clip", "clip_param { min: -0.5 max: 1 }", [IMAGE], lambda x: x.clamp(-0.5, 1)),
    ("Power", "power_param { power: 3 scale: 0.5 shift: 2 }", [IMAGE], lambda x: (2 + x / 2) ** 3),
    ("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }", [IMAGE], lambda x: 2 ** (1 + x / 2)),
    ("Log", "log_param { base: 10 scale: 0.1 shift: 5 }", [IMAGE], lambda x: (5 + x / 10).log10()),
    ("Threshold", "threshold_param { threshold: 0.3 }", [IMAGE], lambda x: (x > 0.3).double()),
    ("Dropout", "dropout_param { dropout_ratio: 0 }", [IMAGE], lambda x: x * 1),
    ("Scale", "scale_param { bias_term: true }", [IMAGE], lambda x, w,
     b: x * w[:, None, None] + b[:, None, None]),
    ("Scale", "scale_param { axis: 0 }", [IMAGE, (2, 4)], lambda x, w: x * w[..., None, None]),
    ("Scale", "scale_param { axis: -1 }", [IMAGE], lambda x, w: x * w),
    ("Bias", "bias_param { axis: 1 num_axes: 2 }", [IMAGE], lambda x, b: x + b[:, :, None]),
    ("Bias", "bias_param { axis: 0 }", [IMAGE, (2,)], lambda x, b: x + b[:, None, None, None]),
    ("BatchNorm", "batch_norm_param { eps: 0.001 }", [IMAGE], batch_norm),
    ("BatchNorm", "batch_norm_param { eps: 0.001 }", [(5, 3)], batch_norm),
    ("MVN", "", [IMAGE], lambda x: mvn(x, False)),
    ("MVN", "mvn_param { across_channels: true }", [IMAGE], lambda x: mvn(x, True)),
    ("MVN", "mvn_param { normalize_variance: false }", [IMAGE], lambda x: mvn(x, False, False)),
    ("Normalize", "norm_param { across_spatial: false channel_shared: false }", [IMAGE],
     lambda x, w: f.normalize(x, dim=1) * w[:, None, None]),
    ("Normalize", "", [IMAGE], lambda x, w: x / x.flatten(1).norm(dim=1)[:, None, None, None] * w),
    ("InnerProduct", f"inner_product_param {{ num_output: 3 {FILL} }}", [IMAGE],
     lambda x, w, b: f.linear(x.flatten(1), w, b)),
    ("InnerProduct", f"inner_product_param {{ num_output: 3 axis: 2 transpose: true {FILL} }}",
     [IMAGE],
     lambda x, w, b: x.flatten(2) @ w + b),
    ("InnerProduct", "inner_product_param { num_output: 3 axis: 0 bias_term: false }", [IMAGE],
     lambda x, w: x.flatten() @ w.T),
    ("Embed", f"embed_param {{ num_output: 3 input_dim: 5 {FILL} }}", [labels(4, 5, (2, 2))],
     lambda t, w, b: w[t.long()] + b),
    ("Parameter", "parameter_param { shape { dim: 2 dim: 3 } }", [], lambda w: w * 1),
    ("Convolution",
     f"convolution_param {{ num_output: 6 kernel_size: 3 pad: 1 stride: 2 {FILL} }}", [IMAGE],
     lambda x, w, b: f.conv2d(x, w, b, 2, 1)),
    ("Convolution",
     "convolution_param { num_output: 6 kernel_h: 3 kernel_w: 2 pad_h: 2 pad_w: 0 stride_h: 1 "
     "stride_w: 3 group: 2 bias_term: false }", [IMAGE], lambda x,
     w: f.conv2d(x, w, None, (1, 3), (2, 0), groups=2)),
    ("Convolution", f"convolution_param {{ num_output: 2 kernel_size: 2 dilation: 2 {FILL} }}",
     [IMAGE],
     lambda x, w, b: f.conv2d(x, w, b, dilation=2)),
    ("Convolution", f"convolution_param {{ num_output: 2 kernel_size: 3 {FILL} }}",
     [(2, 3, 5, 4, 6)],
     lambda x, w, b: f.conv3d(x, w, b)),
    ("DepthwiseConvolution", f"convolution_param {{ num_output: 8 kernel_size: 3 {FILL} }}",
     [IMAGE],
     lambda x, w, b: f.conv2d(x, w, b, groups=4)),
    ("ConvolutionDepthwise", f"convolution_param {{ num_output: 4 kernel_size: 3 {FILL} }}",
     [IMAGE],
     lambda x, w, b: f.conv2d(x, w, b, groups=4)),
    ("Deconvolution",
     f"convolution_param {{ num_output: 6 kernel_size: 4 pad: 1 stride: 2 group: 2 {FILL} }}",
     [IMAGE], lambda x, w, b: f.conv_transpose2d(x, w, b, 2, 1, groups=2)),
    *[
        ("Pooling", f"pooling_param {{ pool: {m} kernel_size: {k} stride: {s} pad: {p} }}", [IMAGE],
         lambda x, k=k, s=s, p=p, m=m: caffe_pool(x, k, s, p, m == "MAX"))
        for m in ("MAX", "AVE")
        for k, s, p in ((2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (3, 3, 1), (5, 4, 2))
    ],
    ("Pooling", "pooling_param { pool: MAX kernel_size: 3 stride: 2 round_mode: FLOOR }", [IMAGE],
     lambda x: f.max_pool2d(x, 3, 2)),
    ("Pooling", "pooling_param { pool: AVE global_pooling: true }", [IMAGE],
     lambda x: x.mean((2, 3), keepdim=True)),
    ("SPP", "spp_param { pyramid_height: 2 }", [(2, 3, 4, 4)], spp),
    ("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.6 k: 2 }", [IMAGE],
     lambda x: f.local_response_norm(x, 3, 0.5, 0.6, 2.0)),
    ("LRN", "lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }", [IMAGE],
     lambda x: lrn_within(x, 3, 0.5, 0.75)),
    ("Im2col", "convolution_param { kernel_size: 3 stride: 2 pad: 1 }", [IMAGE],
     lambda x: f.unfold(x, 3, padding=1, stride=2).reshape(2, 36, 4, 3)),
    ("Crop", "crop_param { axis: 2 offset: 1 offset: 2 }", [IMAGE, (1, 1, 4, 3)], lambda x,
     y: x[:, :, 1:5, 2:5] + 0 * y.sum()),
    ("Interp", "interp_param { zoom_factor: 2 }", [IMAGE],
     lambda x: f.interpolate(x, (13, 11), mode="bilinear", align_corners=True)),
    ("ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.5 }",
     [IMAGE, BOXES], roi_pool),
    ("Concat", "", [IMAGE, (2, 2, 7, 6)], lambda x, y: torch.cat([x, y], 1)),
    ("Concat", "concat_param { axis: -1 }", [IMAGE, (2, 4, 7, 1)], lambda x,
     y: torch.cat([x, y], 3)),
    ("Slice", "slice_param { slice_point: 1 }", [IMAGE], lambda x: (x[:, :1] * 1, x[:, 1:] * 1)),
    ("Split", "", [IMAGE], lambda x: (x * 1, x * 1)),
    ("Eltwise", "eltwise_param { coeff: 2 coeff: -0.5 }", [IMAGE, IMAGE], lambda x,
     y: 2 * x - y / 2),
    ("Eltwise", "eltwise_param { operation: PROD }", [IMAGE] * 3, lambda x, y, z: x * y * z),
    ("Eltwise", "eltwise_param { operation: MAX }", [IMAGE] * 2, torch.maximum),
    ("Axpy", "", [(2, 4), IMAGE, IMAGE], lambda a, x, y: a[..., None, None] * x + y),
    ("Flatten", "flatten_param { axis: 1 end_axis: 2 }", [IMAGE], lambda x: x.flatten(1, 2)),
    ("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 3 } }", [IMAGE],
     lambda x: x.reshape(2, 56, 3)),
    ("Reshape", "reshape_param { shape { dim: 2 dim: 2 } axis: 1 num_axes: 1 }", [IMAGE],
     lambda x: x.reshape(2, 2, 2, 7, 6)),
    ("Permute", "permute_param { order: 0 order: 2 }", [IMAGE], lambda x: x.permute(0, 2, 1, 3)),
    ("ShuffleChannel", "shuffle_channel_param { group: 2 }", [IMAGE],
     lambda x: f.channel_shuffle(x, 2)),
    ("Tile", "tile_param { axis: 2 tiles: 3 }", [IMAGE], tile_of),
    ("Reduction", "reduction_param { operation: SUM axis: 2 coeff: 3 }", [IMAGE],
     lambda x: 3 * x.sum((2, 3))),
    ("Reduction", "reduction_param { operation: ASUM axis: 1 }", [IMAGE],
     lambda x: x.abs().sum((1, 2, 3))),
    ("Reduction", "reduction_param { operation: SUMSQ axis: -1 }", [IMAGE],
     lambda x: x.pow(2).sum(3)),
    ("Reduction", "reduction_param { operation: MEAN }", [IMAGE], lambda x: x.mean()),
    ("Softmax", "softmax_param { axis: 2 }", [IMAGE], lambda x: x.softmax(2)),
    ("ArgMax", "argmax_param { axis: 1 }", [IMAGE], lambda x: x.argmax(1, keepdim=True).double()),
    ("ArgMax", "argmax_param { top_k: 2 out_max_val: true }", [(3, 5)],
     lambda x: torch.stack([x.topk(2).indices.double(), x.topk(2).values], 1)),
    ("BatchReindex", "", [IMAGE, np.array([1, 0, 1], "f")], lambda x, i: x[i.long()]),
    ("LSTM", f"recurrent_param {{ num_output: 3 {FILL} }}", [(4, 2, 5), CONT], lstm),
    ("RNN", f"recurrent_param {{ num_output: 3 {FILL} }}", [(4, 2, 5), CONT], rnn),
    ("Accuracy", "", [(6, 4), labels(6, 4)], accuracy),
    ("Accuracy", "accuracy_param { top_k: 2 }", [(6, 4), labels(6, 4)], lambda x, t: kth(x, t, 2)),
    ("Accuracy", "", [(6, 4), labels(6, 4)], by_class),
    ("SoftmaxWithLoss", "", [(6, 4), labels(6, 4)], softmax_loss),
    ("SoftmaxWithLoss", "loss_param { ignore_label: 2 }",
     [(2, 4, 3, 3), labels(9, 4, (2, 1, 3, 3))],
     lambda x, t: softmax_loss(x, t, 2)),
    ("SoftmaxWithLoss", "loss_param { ignore_label: 2 normalization: FULL }",
     [(2, 4, 3, 3), labels(9, 4, (2, 3, 3))],
     lambda x, t: softmax_loss(x, t, 2, 18)),
    ("SoftmaxWithLoss", "loss_param { normalize: false }", [(2, 4, 3, 3), labels(9, 4, (2, 3, 3))],
     lambda x, t: softmax_loss(x, t, divide=2)),
    ("SoftmaxWithLoss", "loss_weight: 3 loss_param { normalization: NONE }", [(6, 4), labels(6, 4)],
     lambda x, t: softmax_loss(x, t, divide=1)),
    ("EuclideanLoss", "", [IMAGE, IMAGE], lambda x, y: (x - y).pow(2).sum() / 4),
    ("HingeLoss", "", [(6, 4), labels(6, 4)], lambda x, t: hinge(x, t, 1)),
    ("HingeLoss", "hinge_loss_param { norm: L2 }", [(6, 4), labels(6, 4)], lambda x,
     t: hinge(x, t, 2)),
    ("ContrastiveLoss", "contrastive_loss_param { margin: 2 }", [(6, 2), (6, 2), labels(6, 2)],
     contrastive),
    ("ContrastiveLoss", "contrastive_loss_param { margin: 2 legacy_version: true }",
     [(6, 2), (6, 2), labels(6, 2)],
     lambda a, b, y: contrastive(a, b, y, True)),
    ("SigmoidCrossEntropyLoss", "", [(6, 4), labels(24, 2, (6, 4))], sigmoid_loss),
    ("SigmoidCrossEntropyLoss", "loss_param { ignore_label: -1 normalization: VALID }",
     [(6, 4), labels(24, 3, (6, 4)) - 1], lambda x,
     t: sigmoid_loss(x, t, -1, int((t != -1).sum()))),
    ("MultinomialLogisticLoss", "", [np.full((6, 4), 0.25, "f"), labels(6, 4)],
     lambda p, t: f.nll_loss(p.log(), t.long())),
    ("InfogainLoss", "", [(6, 3), labels(6, 3), H], infogain),
    ("SmoothL1Loss", "smooth_l1_loss_param { sigma: 2 }",
     [(3, 4), np.zeros((3, 4), "f"), np.ones((3, 4), "f"),
     np.full((3, 4), 0.5, "f")], smooth_l1),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}-{r[0]}" for i, r in enumerate(ROWS)])
def test_values_and_gradients_are_those_of_pytorch(row):
    type, params, bottoms, oracle = row
    rng = np.random.default_rng(1)
    given = [b if isinstance(b, np.ndarray) else rng.normal(size=b).astype("f") for b in bottoms]
    fixed = [isinstance(b, np.ndarray) for b in bottoms]
    shapes = [x.shape for x in given]
    tops = 2 if oracle in (by_class,) or type in ("Slice", "Split") else 1
    with Workspace({}):
        net = net_of(layer(type, params, shapes, tops), shapes)
        weights = net.params.get("l", [])
        for p in weights:
            p.data[...] = rng.normal(size=p.shape)
        values = [p.data.copy() for p in weights]
        net.forward(**{f"x{i}": x for i, x in enumerate(given)})
        xs = [
            torch.tensor(x, dtype=torch.float64, requires_grad=not k)
            for x, k in zip(given, fixed, strict=True)
        ]
        ws = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in values]
        wanted = oracle(*xs, *ws)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        total = 0.0
        for i, y in enumerate(wanted):
            blob = net.blobs[f"y{i}"]
            assert blob.data.shape == tuple(y.shape)
            np.testing.assert_allclose(blob.data, y.detach().numpy(), rtol=2e-5, atol=2e-5)
            if not KINDS[type].loss:
                blob.diff[...] = rng.normal(size=y.shape)
            assert not KINDS[type].loss or blob.diff == (3 if "loss_weight" in params else 1)
            total = total + (y * torch.tensor(np.array(blob.diff))).sum()
        if not (isinstance(total, torch.Tensor) and total.requires_grad):
            return
        total.backward()
        net.clear_param_diffs()
        net.backward()
        for i, (x, k) in enumerate(zip(xs, fixed, strict=True)):
            if not k:
                np.testing.assert_allclose(
                    net.blobs[f"x{i}"].diff, x.grad.numpy(), rtol=2e-4, atol=3e-5
                )
        for w, p in zip(ws, weights, strict=True):
            if w.grad is not None and p.variable.need_grad:
                np.testing.assert_allclose(p.diff, w.grad.numpy(), rtol=2e-4, atol=1e-4)


def test_every_type_has_a_row_or_a_test_of_its_own():
    elsewhere = "Input DummyData MemoryData HDF5Data Data ImageData Python Silence PriorBox"
    elsewhere += " DetectionOutput"
    assert set(caffe.layer_type_list()) - {row[0] for row in ROWS} == set(elsewhere.split())
    assert len(caffe.layer_type_list()) >= 60
