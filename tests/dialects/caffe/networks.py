# SPDX-License-Identifier: Apache-2.0
"""Networks as prototxt, written from the papers."""


class Prototxt:
    """A prototxt, layer by layer; each call gives the name of the top, which is the layer's."""

    def __init__(self, name, *inputs, filler='type: "constant"'):
        self.text, self.filler = f'name: "{name}"\n', filler
        for top, shape in inputs:
            dims = " ".join(f"dim: {n}" for n in shape)
            self.text += f'layer {{ name: "{top}" type: "Input" top: "{top}" '
            self.text += f"input_param {{ shape {{ {dims} }} }} }}\n"

    def add(self, type, name, *bottoms, top=None, more=""):
        b = " ".join(f'bottom: "{x}"' for x in bottoms)
        top = name if top is None else top
        self.text += f'layer {{ name: "{name}" type: "{type}" {b} top: "{top}" {more} }}\n'
        return top

    def conv(self, name, x, n, k, s=1, p=0, relu=True, bias=True, more="", type="Convolution"):
        at = f"num_output: {n} kernel_size: {k} stride: {s} pad: {p} {more}"
        at += f" weight_filler {{ {self.filler} }}" + ("" if bias else " bias_term: false")
        y = self.add(type, name, x, more=f"convolution_param {{ {at} }}")
        return self.add("ReLU", f"{name}/relu", y, top=y) if relu else y

    def fc(self, name, x, n, relu=True, drop=False):
        at = f"num_output: {n} weight_filler {{ {self.filler} }}"
        y = self.add("InnerProduct", name, x, more=f"inner_product_param {{ {at} }}")
        y = self.add("ReLU", f"{name}/relu", y, top=y) if relu else y
        return self.add("Dropout", f"{name}/drop", y, top=y) if drop else y

    def pool(self, name, x, k=3, s=2, p=0, how="MAX"):
        at = f"pool: {how} " + (
            f"kernel_size: {k} stride: {s} pad: {p}" if k else "global_pooling: true"
        )
        return self.add("Pooling", name, x, more=f"pooling_param {{ {at} }}")

    def norm(self, name, x, relu=True):
        y = self.add("BatchNorm", f"{name}/bn", x, top=x)
        self.add("Scale", f"{name}/scale", y, top=y, more="scale_param { bias_term: true }")
        return self.add("ReLU", f"{name}/relu", y, top=y) if relu else y

    def lrn(self, name, x, size=5):
        return self.add(
            "LRN", name, x, more=f"lrn_param {{ local_size: {size} alpha: 0.0001 beta: 0.75 }}"
        )

    def loss(self, x, label="label"):
        self.add("Accuracy", "accuracy", x, label, more="include { phase: TEST }")
        return self.add("SoftmaxWithLoss", "loss", x, label)


def images(n, c, size, labels=False, **more):
    return [("data", (n, c, size, size))] + ([("label", (n,))] if labels else [])


def lenet(n=64, filler='type: "xavier"'):
    p = Prototxt("LeNet", *images(n, 1, 28, True), filler=filler)
    x = p.pool("pool1", p.conv("conv1", "data", 20, 5, relu=False), 2)
    x = p.pool("pool2", p.conv("conv2", x, 50, 5, relu=False), 2)
    p.loss(p.fc("ip2", p.fc("ip1", x, 500), 10, relu=False))
    return p.text


def cifar10_quick(n=100):
    """Krizhevsky's, of three convolutions; relu after the first pooling."""
    p = Prototxt("CIFAR10_quick", *images(n, 3, 32, True), filler='type: "xavier"')
    x = p.pool("pool1", p.conv("conv1", "data", 32, 5, p=2, relu=False))
    x = p.add("ReLU", "relu1", x, top=x)
    x = p.pool("pool2", p.conv("conv2", x, 32, 5, p=2), how="AVE")
    x = p.pool("pool3", p.conv("conv3", x, 64, 5, p=2), how="AVE")
    p.loss(p.fc("ip2", p.fc("ip1", x, 64, relu=False), 10, relu=False))
    return p.text


def alexnet():
    """Krizhevsky, Sutskever and Hinton 2012: convolutions 2, 4 and 5 in two groups."""
    p = Prototxt("AlexNet", *images(1, 3, 227))
    x = p.pool("pool1", p.lrn("norm1", p.conv("conv1", "data", 96, 11, 4)))
    x = p.pool("pool2", p.lrn("norm2", p.conv("conv2", x, 256, 5, p=2, more="group: 2")))
    x = p.conv("conv4", p.conv("conv3", x, 384, 3, p=1), 384, 3, p=1, more="group: 2")
    x = p.pool("pool5", p.conv("conv5", x, 256, 3, p=1, more="group: 2"))
    x = p.fc("fc7", p.fc("fc6", x, 4096, drop=True), 4096, drop=True)
    p.add("Softmax", "prob", p.fc("fc8", x, 1000, relu=False))
    return p.text


def _vgg(p, pad=1):
    x, pools = "data", []
    for block, (n, times) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for i in range(1, times + 1):
            first = pad if block == i == 1 else 1
            x = p.conv(f"conv{block}_{i}", x, n, 3, p=first)
        x = p.pool(f"pool{block}", x, 2)
        pools.append(x)
    return pools


def vgg16():
    """Simonyan and Zisserman 2014, configuration D."""
    p = Prototxt("VGG16", *images(1, 3, 224))
    x = p.fc("fc7", p.fc("fc6", _vgg(p)[-1], 4096, drop=True), 4096, drop=True)
    p.add("Softmax", "prob", p.fc("fc8", x, 1000, relu=False))
    return p.text


def fcn(stride, size=64):
    """Shelhamer, Long and Darrell 2016: FCN-32s, -16s or -8s for 21 classes."""
    p = Prototxt(f"FCN{stride}s", *images(1, 3, size))
    pools = _vgg(p, 100)
    x = p.conv("fc7", p.conv("fc6", pools[-1], 4096, 7), 4096, 1)
    x = p.conv("score_fr", x, 21, 1, relu=False)
    up, skips = 32, [(pools[3], 5, "pool4"), (pools[2], 9, "pool3")][: {32: 0, 16: 1, 8: 2}[stride]]
    for pool, offset, name in skips:
        x = p.conv(f"up_{name}", x, 21, 4, 2, relu=False, bias=False, type="Deconvolution")
        score = p.conv(f"score_{name}", pool, 21, 1, relu=False)
        more = f"crop_param {{ axis: 2 offset: {offset} }}"
        x = p.add("Eltwise", f"fuse_{name}", x, p.add("Crop", f"crop_{name}", score, x, more=more))
        up //= 2
    x = p.conv("upscore", x, 21, 2 * up, up, relu=False, bias=False, type="Deconvolution")
    p.add(
        "Crop",
        "score",
        x,
        "data",
        more=f"crop_param {{ axis: 2 offset: { {32: 19, 16: 27, 8: 31}[stride] } }}",
    )
    return p.text


def googlenet(n=10):
    """Szegedy et al. 2014, table 1, without the two auxiliary classifiers."""
    p = Prototxt("GoogleNet", *images(n, 3, 224), filler='type: "xavier"')
    x = p.lrn("norm1", p.pool("pool1", p.conv("conv1", "data", 64, 7, 2, 3)))
    x = p.conv("conv2", p.conv("conv2_reduce", x, 64, 1), 192, 3, p=1)
    x = p.pool("pool2", p.lrn("norm2", x))
    table = {
        "3a": (64, 96, 128, 16, 32, 32),
        "3b": (128, 128, 192, 32, 96, 64),
        "4a": (192, 96, 208, 16, 48, 64),
        "4b": (160, 112, 224, 24, 64, 64),
        "4c": (128, 128, 256, 24, 64, 64),
        "4d": (112, 144, 288, 32, 64, 64),
        "4e": (256, 160, 320, 32, 128, 128),
        "5a": (256, 160, 320, 32, 128, 128),
        "5b": (384, 192, 384, 48, 128, 128),
    }
    for name, (one, r3, three, r5, five, proj) in table.items():
        parts = [
            p.conv(f"{name}/1", x, one, 1),
            p.conv(f"{name}/3", p.conv(f"{name}/3r", x, r3, 1), three, 3, p=1),
            p.conv(f"{name}/5", p.conv(f"{name}/5r", x, r5, 1), five, 5, p=2),
            p.conv(f"{name}/p", p.pool(f"{name}/pool", x, 3, 1, 1), proj, 1),
        ]
        x = p.add("Concat", f"{name}/out", *parts)
        x = p.pool(f"{name}/max", x) if name in ("3b", "4e") else x
    x = p.add(
        "Dropout",
        "drop",
        p.pool("pool5", x, 7, 1, how="AVE"),
        more="dropout_param { dropout_ratio: 0.4 }",
    )
    p.add("Softmax", "prob", p.fc("fc", x, 1000, relu=False))
    return p.text


def resnet(depth, n=1, size=224, classes=1000, labels=False, filler='type: "constant"'):
    """He et al. 2015, of 18 or 50 layers."""
    p = Prototxt(f"ResNet{depth}", *images(n, 3, size, labels), filler=filler)
    x = p.norm("conv1", p.conv("conv1", "data", 64, 7, 2, 3, relu=False, bias=False))
    x = p.pool("pool1", x)
    deep = depth >= 50
    for stage, times in enumerate((3, 4, 6, 3) if deep else (2, 2, 2, 2), 2):
        width = 64 * 2 ** (stage - 2)
        for i in range(times):
            name, s = f"res{stage}{'abcdef'[i]}", 2 if i == 0 and stage > 2 else 1
            shapes = (
                ((1, s, 0, width), (3, 1, 1, width), (1, 1, 0, 4 * width))
                if deep
                else ((3, s, 1, width), (3, 1, 1, width))
            )
            y = x
            for j, (k, stride, pad, out) in enumerate(shapes):
                y = p.conv(f"{name}_{j}", y, out, k, stride, pad, relu=False, bias=False)
                y = p.norm(f"{name}_{j}", y, relu=j < len(shapes) - 1)
            if i == 0 and (deep or s == 2):
                x = p.conv(f"{name}_s", x, shapes[-1][3], 1, s, relu=False, bias=False)
                x = p.norm(f"{name}_s", x, relu=False)
            x = p.add("Eltwise", name, x, y)
            x = p.add("ReLU", f"{name}/relu", x, top=x)
    x = p.fc("fc", p.pool("pool5", x, 0, how="AVE"), classes, relu=False)
    p.loss(x) if labels else p.add("Softmax", "prob", x)
    return p.text


def squeezenet():
    """Iandola et al. 2016, version 1.0."""
    p = Prototxt("SqueezeNet", *images(1, 3, 227))
    x = p.pool("pool1", p.conv("conv1", "data", 96, 7, 2))
    for i, n in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        s = p.conv(f"fire{i}/squeeze", x, n, 1)
        x = p.add(
            "Concat",
            f"fire{i}",
            p.conv(f"fire{i}/1", s, 4 * n, 1),
            p.conv(f"fire{i}/3", s, 4 * n, 3, p=1),
        )
        x = p.pool(f"pool{i}", x) if i in (4, 8) else x
    x = p.add("Dropout", "drop9", x, top=x)
    p.add("Softmax", "prob", p.pool("pool10", p.conv("conv10", x, 1000, 1), 0, how="AVE"))
    return p.text


def ga3c(actions=6):
    """Babaeizadeh et al. 2016: the network of A3C, a policy and a value."""
    p = Prototxt("GA3C", *images(32, 4, 84))
    x = p.conv("conv2", p.conv("conv1", "data", 16, 8, 4), 32, 4, 2)
    x = p.fc("fc", x, 256)
    p.add("Softmax", "policy", p.fc("logits", x, actions, relu=False))
    p.fc("value", x, 1, relu=False)
    return p.text
