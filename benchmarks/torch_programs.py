# SPDX-License-Identifier: Apache-2.0
"""The five programs of examples/programs that are hard to compile, in PyTorch, with the same data.

    python torch_programs.py PROGRAM STEPS [--compile]

Prints how many steps are done and in how many seconds, compiling included and importing not, as
JSON: a line each second and a last one with the losses. Compiled are the methods that hold the
networks, as PyTorch's pages advise: what reads values is outside of them.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch_models import Attention, ResidualBlock, conv_bn, feed_forward

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "programs"))

import bert_cls
import faster_rcnn
import music_transformer
import resnet50
import sdpoint


class ResNet50(nn.Module):
    """after(block, stage) follows each block."""

    def __init__(self, channels, classes, after):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, channels, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1))
        blocks, inputs = [], channels
        for stage, n in enumerate(resnet50.BLOCKS):
            for i in range(n):
                inner = channels * 2**stage
                stride = 2 if i == 0 and stage else 1
                block = ResidualBlock(inputs, inner, 4 * inner, stride, 1, True, False)
                blocks.append(nn.Sequential(block, after(stage + 1)))
                inputs = 4 * inner
        self.blocks = nn.ModuleList(blocks)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.classifier(h.mean((2, 3)))


class DropBlock(nn.Module):
    keep_prob = 1.0

    def forward(self, x):
        batch, channels, height, width = x.shape
        side = min(3, height, width)
        rows, columns = height - side + 1, width - side + 1
        gamma = (1 - self.keep_prob) / side**2 * (height * width) / (rows * columns)
        corners = (torch.rand(batch, channels, rows, columns) < gamma).float()
        keep = 1 - F.max_pool2d(F.pad(corners, (side - 1,) * 4), side, 1)
        return x * keep / keep.mean()


class Downsampling(nn.Module):
    ratio = 1.0

    def forward(self, x):
        return x if self.ratio == 1 else F.interpolate(x, scale_factor=self.ratio, mode="bilinear")


class ResNetProgram:
    compiled = ("net",)

    def __init__(self):
        self.batch, self.pixels, channels, self.classes, self.rate = resnet50.SIZES["small"]
        self.net = ResNet50(channels, self.classes, self.after)
        self.extra = [block[1] for block in self.net.blocks]
        self.solver = torch.optim.SGD(
            self.net.parameters(), self.rate, 0.9, weight_decay=1e-4, fused=True
        )
        self.steps_done = 0

    def batches(self, rng):
        return resnet50.pictures(rng, self.batch, self.pixels, self.classes)

    def step(self, image, label):
        self.steps_done += 1
        loss = F.cross_entropy(self.net(torch.from_numpy(image)), torch.from_numpy(label[:, 0]))
        self.solver.zero_grad()
        loss.backward()
        rate = self.rate * min(1, self.steps_done / resnet50.WARM_UP)
        self.solver.param_groups[0]["lr"] = rate
        self.solver.step()
        return loss


class DropBlockProgram(ResNetProgram):
    def after(self, stage):
        return DropBlock() if stage >= 3 else nn.Identity()

    def step(self, image, label):
        for layer in self.extra:
            if isinstance(layer, DropBlock):
                layer.keep_prob = 1 - min(1, self.steps_done / 1000) * 0.1
        return super().step(image, label)


class SDPointProgram(ResNetProgram):
    def __init__(self):
        super().__init__()
        self.random = random.Random(1)

    def after(self, stage):
        return Downsampling()

    def step(self, image, label):
        point = self.random.choice((2, 6, None))  # the blocks of sdpoint.POINTS
        for i, layer in enumerate(self.extra):
            layer.ratio = sdpoint.RATIO if i == point else 1.0
        return super().step(image, label)


class Bert(nn.Module):
    def __init__(self, length, vocabulary, width, layers, heads, classes):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.segments, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Sequential(Attention(width, heads, False), nn.Dropout(0.1)),
                    nn.LayerNorm(width, 1e-12),
                    nn.Sequential(*feed_forward(width, "none"), nn.Dropout(0.1)),
                    nn.LayerNorm(width, 1e-12),
                ]
            )
            for _ in range(layers)
        )
        self.summary, self.classes = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, tokens):
        h = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        h = F.dropout(self.norm(h + self.segments(torch.zeros_like(tokens))), 0.1)
        for attention, norm1, feed, norm2 in self.layers:
            h = norm1(h + attention(h))
            h = norm2(h + feed(h))
        return self.classes(F.dropout(torch.tanh(self.summary(h[:, 0])), 0.1))


class BertProgram:
    compiled = ("net",)

    def __init__(self):
        self.sizes = bert_cls.SIZES["small"]
        batch, length, vocabulary, width, layers, heads, classes, rate = self.sizes
        self.net = Bert(length, vocabulary, width, layers, heads, classes)
        self.solver = torch.optim.Adam(self.net.parameters(), rate, fused=True)
        self.scores = []

    def batches(self, rng):
        batch, length, vocabulary, *_, classes, _ = self.sizes
        return bert_cls.sentences(rng, batch, length, vocabulary, classes)

    def step(self, tokens, label):
        y, t = self.net(torch.from_numpy(tokens)), torch.from_numpy(label[:, 0])
        loss = F.cross_entropy(y, t)
        guess = y.argmax(1).numpy()
        self.scores.append(bert_cls.f1_score(t.numpy(), guess, average="macro"))
        self.solver.zero_grad()
        loss.backward()
        self.solver.step()
        return loss


class RelativeAttention(nn.Module):
    def __init__(self, heads, longest, width):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.distances = nn.Parameter(torch.randn(longest, width // heads) * 0.1)

    def forward(self, x, mask):
        batch, length, width = x.shape
        h = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = h.permute(2, 0, 3, 1, 4)
        moved = F.pad(q @ self.distances[-length:].T, (1, 0))
        moved = moved.reshape(batch, self.heads, length + 1, length)[:, :, 1:]
        scores = (q @ k.transpose(2, 3) + moved) * (width // self.heads) ** -0.5
        weights = torch.softmax(scores + mask, 3)
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape)), weights


class MusicTransformer(nn.Module):
    compiled = ("forward",)

    def __init__(self):
        super().__init__()
        self.sizes = music_transformer.SIZES["small"]
        batch, length, events, width, layers, heads, rate = self.sizes
        self.embed, self.width = nn.Embedding(events, width), width
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    RelativeAttention(heads, length, width),
                    nn.LayerNorm(width),
                    nn.Sequential(
                        nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
                    ),
                    nn.LayerNorm(width),
                ]
            )
            for _ in range(layers)
        )
        self.scores = nn.Linear(width, events)
        self.loss_value, self.history, self.looks = None, [], []
        self.solver = torch.optim.Adam(self.parameters(), rate, (0.9, 0.98), fused=True)

    def batches(self, rng):
        return music_transformer.arpeggios(rng, *self.sizes[:3])

    def forward(self, x):
        h = self.embed(x) * self.width**0.5
        mask = torch.full((x.shape[1], x.shape[1]), -1e9).triu(1)
        all_weights = []
        for attention, norm1, feed, norm2 in self.layers:
            y, weights = attention(h, mask)
            h = norm1(h + F.dropout(y, 0.1))
            h = norm2(h + F.dropout(feed(h), 0.1))
            all_weights.append(weights)
        return self.scores(h), all_weights

    def step(self, x, following):
        scores, weights = self.forward(torch.from_numpy(x))
        t = torch.from_numpy(following[:, :, 0])
        self.loss_value = F.cross_entropy(scores.transpose(1, 2), t, reduction="none")
        self.solver.zero_grad()
        self.loss_value.mean().backward()
        self.solver.step()
        loss = self.loss_value.mean().detach()
        self.history.append(loss)
        if len(self.history) % music_transformer.KEEP_EVERY == 0:
            self.looks.append(weights[-1].detach())
        return loss


def roi_align(h, boxes, size, scale, ratio):
    """As nnl's, for one image: boxes (K, 4) in pixels, the mean of ratio^2 samples for each bin."""
    n, (height, width) = size * ratio, h.shape[2:]
    at = (torch.arange(n) + 0.5) / n
    x = boxes[:, :1] * scale + (boxes[:, 2:3] - boxes[:, :1]) * scale * at
    y = boxes[:, 1:2] * scale + (boxes[:, 3:4] - boxes[:, 1:2]) * scale * at
    grid = torch.stack(torch.broadcast_tensors(x[:, None] / width, y[:, :, None] / height), -1)
    maps = h.expand(len(boxes), -1, -1, -1)
    sampled = F.grid_sample(maps, grid * 2 - 1, padding_mode="border", align_corners=False)
    return F.avg_pool2d(sampled, ratio)


class FasterRCNN(nn.Module):
    compiled = ("first_stage", "second_stage")

    def __init__(self):
        super().__init__()
        self.sizes, channels, self.classes, rate = faster_rcnn.SIZES["small"]
        anchors, top = len(faster_rcnn.SHAPES), 4 * channels
        widths = [3, channels, 2 * channels, top]
        layers = [
            conv_bn(a, b, 3, 2, act=nn.ReLU) for a, b in zip(widths, widths[1:], strict=False)
        ]
        self.features = nn.Sequential(*layers, conv_bn(top, top, 3, act=nn.ReLU))
        self.rpn = nn.Conv2d(top, top, 3, padding=1)
        self.rpn_scores, self.rpn_boxes = nn.Conv2d(top, anchors, 1), nn.Conv2d(top, 4 * anchors, 1)
        self.head = nn.Linear(top * 16, 8 * channels)
        self.kinds = nn.Linear(8 * channels, 1 + self.classes)
        self.boxes = nn.Linear(8 * channels, 4)
        self.solver = torch.optim.Adam(self.parameters(), rate, fused=True)

    def batches(self, rng):
        return faster_rcnn.pictures(rng, self.sizes, self.classes)

    def first_stage(self, image):
        h = self.features(image)
        y = F.relu(self.rpn(h))
        scores = self.rpn_scores(y).permute(0, 2, 3, 1).reshape(-1, 1)
        return h, scores, self.rpn_boxes(y).permute(0, 2, 3, 1).reshape(-1, 4)

    def second_stage(self, h, proposals):
        h = roi_align(h, proposals, 4, 1 / faster_rcnn.STRIDE, 2)
        h = F.relu(self.head(h.flatten(1)))
        return self.kinds(h), self.boxes(h)

    def step(self, image, meta, boxes, kinds):
        height, width = torch.from_numpy(meta).max(0).values.numpy().astype(int)
        anchors = faster_rcnn.anchors_of(height, width)
        h, scores, said = self.first_stage(torch.from_numpy(image))
        which, good = faster_rcnn.assigned(anchors, boxes, 0.5)
        loss = self.loss_of_boxes(said, faster_rcnn.encoded(boxes[which], anchors), good)
        loss = loss + F.binary_cross_entropy_with_logits(scores, tensor(good[:, None]))

        proposals = faster_rcnn.decoded(said.detach().numpy(), anchors)
        proposals = proposals.clip(0, (width, height, width, height))
        proposals = faster_rcnn.suppressed(proposals, scores.detach().numpy()[:, 0])
        proposals = np.concatenate([proposals, boxes])
        which, good = faster_rcnn.assigned(proposals, boxes, 0.5)
        scores, said = self.second_stage(h, tensor(proposals))
        kind = torch.from_numpy(np.where(good, kinds[which], 0))
        wanted = faster_rcnn.encoded(boxes[which], proposals)
        loss = loss + self.loss_of_boxes(said, wanted, good) + F.cross_entropy(scores, kind)
        self.solver.zero_grad()
        loss.backward()
        self.solver.step()
        return loss

    def loss_of_boxes(self, said, wanted, good):
        share = tensor(good[:, None] / max(1, good.sum()))
        # twice the usual, as nnl's
        return 2 * (F.huber_loss(said, tensor(wanted), reduction="none") * share).sum()


def tensor(array):
    return torch.from_numpy(array.astype(np.float32))


PROGRAMS = {
    "dropblock": DropBlockProgram,
    "sdpoint": SDPointProgram,
    "bert_cls": BertProgram,
    "music_transformer": MusicTransformer,
    "faster_rcnn": FasterRCNN,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("steps", type=int)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    program = PROGRAMS[args.program]()
    if args.compile:
        for name in program.compiled:
            setattr(program, name, torch.compile(getattr(program, name)))
    losses = []
    start = said = time.perf_counter()
    for i, batch in zip(range(args.steps), program.batches(np.random.default_rng(0)), strict=False):
        loss = program.step(*batch)
        if i % 10 == 9 or i == args.steps - 1:
            losses.append(float(loss.detach()))
        now = time.perf_counter()
        if now - said > 1:
            said = now
            print(json.dumps({"steps": i + 1, "seconds": now - start}), flush=True)
    seconds = time.perf_counter() - start
    print(json.dumps({"steps": args.steps, "seconds": seconds, "losses": losses}))


if __name__ == "__main__":
    main()
