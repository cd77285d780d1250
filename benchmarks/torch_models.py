# SPDX-License-Identifier: Apache-2.0
"""The networks of nnl.models in plain PyTorch, as the benchmark measures them and tests compare.

Modules are defined in the order in which nnl makes the parameters of the same layers.
"""

import torch
from torch import nn
from torch.nn import functional as F

LAYERS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
# kernel, channels within, channels out, squeeze-and-excitation, hard swish, stride
MOBILENET_V3 = {
    "large": (
        *((3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1)),
        *((5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1)),
        *((3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1)),
        *((3, 184, 80, 0, 1, 1), (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1)),
        *((5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1)),
    ),
    "small": (
        *((3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1)),
        *((5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1), (5, 240, 40, 1, 1, 1)),
        *((5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1), (5, 288, 96, 1, 1, 2)),
        *((5, 576, 96, 1, 1, 1), (5, 576, 96, 1, 1, 1)),
    ),
}
# expansion, kernel, stride, channels, blocks of EfficientNet-B0; no scaling here
EFFICIENTNET_B0 = (
    *((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3)),
    *((6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)),
)


def conv_bn(inputs, channels, kernel, stride=1, group=1, act=None, momentum=0.1, eps=1e-5):
    layers = [
        nn.Conv2d(inputs, channels, kernel, stride, kernel // 2, groups=group, bias=False),
        nn.BatchNorm2d(channels, eps, momentum),
    ]
    return nn.Sequential(*layers, *([act(inplace=True)] if act else []))


def divisible(channels, divisor=8):
    near = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * channels else near


def lenet(num_classes=10):
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(16, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(256, 50), nn.ReLU(), nn.Linear(50, num_classes)),
    )


class SqueezeExcite(nn.Module):
    def __init__(self, channels, inner, act, gate):
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.act, self.gate = act(), gate()

    def forward(self, x):
        h = self.act(self.squeeze(F.adaptive_avg_pool2d(x, 1)))
        return x * self.gate(self.excite(h))


class ResidualBlock(nn.Module):
    def __init__(self, inputs, inner, outer, stride, group, bottleneck, excite):
        super().__init__()
        if bottleneck:
            layers = [
                conv_bn(inputs, inner, 1, act=nn.ReLU),
                conv_bn(inner, inner, 3, stride, group, nn.ReLU),
                conv_bn(inner, outer, 1),
            ]
        else:
            layers = [conv_bn(inputs, inner, 3, stride, act=nn.ReLU), conv_bn(inner, outer, 3)]
        if excite:
            layers.append(SqueezeExcite(outer, outer // 16, nn.ReLU, nn.Sigmoid))
        self.layers = nn.Sequential(*layers)
        fits = stride == 1 and inputs == outer
        self.shortcut = nn.Identity() if fits else conv_bn(inputs, outer, 1, stride)

    def forward(self, x):
        return F.relu(self.layers(x) + self.shortcut(x), inplace=True)


def resnet(depth=50, num_classes=1000, group=1, width=64, excite=False):
    bottleneck = depth >= 50
    layers = [conv_bn(3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, n in enumerate(LAYERS[depth]):
        for i in range(n):
            stride = 2 if i == 0 and stage > 0 else 1
            outer = 64 * 2**stage * (4 if bottleneck else 1)
            inner = group * width * 2**stage
            layers.append(ResidualBlock(inputs, inner, outer, stride, group, bottleneck, excite))
            inputs = outer
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes)]
    return nn.Sequential(*layers, *head)


def resnext(depth=50, num_classes=1000):
    return resnet(depth, num_classes, group=32, width=4)


def se_resnet(depth=50, num_classes=1000):
    return resnet(depth, num_classes, excite=True)


class Residual(nn.Module):
    """x added to what the layers make of it."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return x + self.layers(x)


def mobilenet_v3(size="large", num_classes=1000, dropout=0.2):
    last = {"large": 1280, "small": 1024}[size]
    norm = {"momentum": 0.01, "eps": 1e-3}
    layers = [conv_bn(3, 16, 3, 2, act=nn.Hardswish, **norm)]
    inputs = 16
    for kernel, inner, outer, excite, swish, stride in MOBILENET_V3[size]:
        act = nn.Hardswish if swish else nn.ReLU
        block = [] if inner == inputs else [conv_bn(inputs, inner, 1, act=act, **norm)]
        block.append(conv_bn(inner, inner, kernel, stride, inner, act, **norm))
        if excite:
            block.append(SqueezeExcite(inner, divisible(inner / 4), nn.ReLU, nn.Hardsigmoid))
        block = nn.Sequential(*block, conv_bn(inner, outer, 1, **norm))
        layers.append(Residual(block) if stride == 1 and inputs == outer else block)
        inputs = outer
    layers.append(conv_bn(inputs, 6 * inputs, 1, act=nn.Hardswish, **norm))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6 * inputs, last), nn.Hardswish()]
    return nn.Sequential(*layers, *head, nn.Dropout(dropout), nn.Linear(last, num_classes))


def efficientnet_b0(num_classes=1000, dropout=0.0):
    """Without dropped paths."""
    layers, inputs = [conv_bn(3, 32, 3, 2, act=nn.SiLU)], 32
    for expansion, kernel, first_stride, outer, blocks in EFFICIENTNET_B0:
        for i in range(blocks):
            stride = first_stride if i == 0 else 1
            inner = inputs * expansion
            block = [] if expansion == 1 else [conv_bn(inputs, inner, 1, act=nn.SiLU)]
            block += [
                conv_bn(inner, inner, kernel, stride, inner, nn.SiLU),
                SqueezeExcite(inner, inputs // 4, nn.SiLU, nn.Sigmoid),
                conv_bn(inner, outer, 1),
            ]
            block = nn.Sequential(*block)
            layers.append(Residual(block) if stride == 1 and inputs == outer else block)
            inputs = outer
    layers.append(conv_bn(inputs, 1280, 1, act=nn.SiLU))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, *head, nn.Linear(1280, num_classes))


def dcgan_generator(noise=100, channels=64, colors=3):
    layers, inputs = [nn.Unflatten(1, (noise, 1, 1))], noise
    for i, factor in enumerate((8, 4, 2, 1)):
        outer = factor * channels
        layers += [
            nn.ConvTranspose2d(inputs, outer, 4, 2 if i else 1, 1 if i else 0, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(True),
        ]
        inputs = outer
    return nn.Sequential(
        *layers, nn.ConvTranspose2d(inputs, colors, 4, 2, 1, bias=False), nn.Tanh()
    )


def dcgan_discriminator(channels=64, colors=3):
    layers, inputs = [], colors
    for i, factor in enumerate((1, 2, 4, 8)):
        outer = factor * channels
        layers.append(nn.Conv2d(inputs, outer, 4, 2, 1, bias=False))
        layers += [nn.BatchNorm2d(outer)] if i else []
        layers.append(nn.LeakyReLU(0.2, True))
        inputs = outer
    return nn.Sequential(*layers, nn.Conv2d(inputs, 1, 4, 1, 0, bias=False), nn.Flatten())


class UNet(nn.Module):
    def __init__(self, num_classes=2, channels=64, depth=4, colors=3):
        super().__init__()
        widths = [channels * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(
            self.twice(a, b) for a, b in zip([colors, *widths], widths, strict=False)
        )
        pairs = list(zip(widths[:-1], widths[1:], strict=True))[::-1]
        self.up = nn.ModuleList(
            nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2), self.twice(b, a)]) for a, b in pairs
        )
        self.classifier = nn.Conv2d(channels, num_classes, 1)

    @staticmethod
    def twice(inputs, outer):
        first = conv_bn(inputs, outer, 3, act=nn.ReLU)
        return nn.Sequential(first, conv_bn(outer, outer, 3, act=nn.ReLU))

    def forward(self, x):
        skipped = []
        for i, layers in enumerate(self.down):
            x = layers(F.max_pool2d(x, 2) if i else x)
            skipped.append(x)
        skipped.pop()
        for up, layers in self.up:
            x = layers(torch.cat([skipped.pop(), up(x)], 1))
        return self.classifier(x)


class RecurrentLanguageModel(nn.Module):
    """Without dropout; tokens (T, B)."""

    def __init__(self, vocabulary, cell="lstm", width=256, layers=1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = (nn.LSTM if cell == "lstm" else nn.GRU)(width, width, layers)
        self.classifier = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.classifier(self.layers(self.embedding(tokens))[0])


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        batch, length, width = x.shape
        h = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = h.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def feed_forward(width, approximate):
    return nn.Sequential(
        nn.Linear(width, 4 * width),
        nn.GELU(approximate=approximate),
        nn.Linear(4 * width, width),
    )


class BertMaskedLanguageModel(nn.Module):
    """Without dropout, padding and segments."""

    def __init__(self, vocabulary=30522, width=768, layers=12, heads=12, longest=512):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.segments, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    Attention(width, heads, False),
                    nn.LayerNorm(width, 1e-12),
                    feed_forward(width, "none"),
                    nn.LayerNorm(width, 1e-12),
                ]
            )
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, 1e-12))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens):
        where = torch.arange(tokens.shape[1])
        h = self.tokens(tokens) + self.positions(where) + self.segments(torch.zeros_like(tokens))
        h = self.norm(h)
        for attention, norm1, feed, norm2 in self.layers:
            h = norm1(h + attention(h))
            h = norm2(h + feed(h))
        return F.linear(self.head(h), self.tokens.weight, self.bias)


class GPT2(nn.Module):
    """Without dropout."""

    def __init__(self, vocabulary=50257, width=768, layers=12, heads=12, longest=1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.LayerNorm(width),
                    Attention(width, heads, True),
                    nn.LayerNorm(width),
                    feed_forward(width, "tanh"),
                ]
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        h = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for norm1, attention, norm2, feed in self.layers:
            h = h + attention(norm1(h))
            h = h + feed(norm2(h))
        return F.linear(self.norm(h), self.tokens.weight)
