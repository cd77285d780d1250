# SPDX-License-Identifier: Apache-2.0
"""Training steps of networks that make images, beside PyTorch's eager ones.

    OMP_NUM_THREADS=1 python benchmarks/generative.py [--rounds 9] [--only NAME] [--json FILE]

The same networks from the same parameters in one process and one thread, Adam in both, in turns;
milliseconds of processor time, medians. The losses of the first step must agree. R1, WGAN-GP and
the lengths of paths are second-order: gradients of gradients.

--fid N trains a small DDPM on digits in both for N steps, from the same parameters, on the same
batches and noise, and prints the FID of 320 images from the same noises (25 steps of DDIM) against
held out digits for three seeds, by the 32 features of examples/generative/features.py.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import processor, versions
from torch.nn import functional as T

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl.models import dcgan_discriminator, dcgan_generator
from nnl.models import generative as G
from nnl.training.generative import (
    NoiseSchedule,
    adversarial_losses,
    gradient_penalty,
    path_length,
    r1_penalty,
)

RATE = 1e-4
STYLES = G.StyleGAN2(32, 64, 4, base=1024, most=64)
DIGITS = G.DiffusionUNet(
    (16, 32), ("", "self"), inputs=1, outputs=1, groups=4, blocks=1, asymmetric=False
)
UNET = G.DiffusionUNet((32, 64, 64), ("", "self", ""), groups=8, blocks=1, asymmetric=False)
TAPS = torch.outer(torch.tensor([1.0, 3, 3, 1]), torch.tensor([1.0, 3, 3, 1]))[None, None] / 64
P: dict[str, Any] = {}  # parameters of PyTorch by our names


def conv(h, name, stride=1, pad=None, scale=1.0, f=T.conv2d):
    w = P[f"{name}/weight"]
    pad = w.shape[2] // 2 if pad is None else pad
    return f(h, w * scale if scale != 1 else w, P.get(f"{name}/bias"), stride=stride, padding=pad)


def linear(h, name):
    return T.linear(h, P[f"{name}/weight"], P.get(f"{name}/bias"))


def logistic(fake, real=None):
    if real is None:
        return T.softplus(-fake).mean()
    return T.softplus(fake).mean() + T.softplus(-real).mean()


# ESRGAN
def enlarge(h):
    def dense(h, at):
        parts = [h]
        for i in range(1, 5):
            parts.append(T.leaky_relu(conv(torch.cat(parts, 1), f"{at}/conv{i}"), 0.2))
        return h + 0.2 * conv(torch.cat(parts, 1), f"{at}/conv5")

    first = h = conv(h, "g/conv_first")
    for i in range(4):
        y = h
        for j in (1, 2, 3):
            y = dense(y, f"g/body/{i}/rdb{j}")
        h = h + 0.2 * y
    h = first + conv(h, "g/conv_body")
    for i in (1, 2):
        h = T.leaky_relu(conv(T.interpolate(h, scale_factor=2), f"g/conv_up{i}"), 0.2)
    return conv(T.leaky_relu(conv(h, "g/conv_hr"), 0.2), "g/conv_last")


def esrgan(rng):
    arrays = rng.random((4, 3, 16, 16)), rng.random((4, 3, 64, 64))

    def ours(x, y):
        with nn.parameter_scope("g"):
            made = G.rrdb_net(x, 32, 4, 16)
        yield "g", F.mean(F.abs(made - y))

    def theirs(x, y):
        yield "g", (enlarge(x) - y).abs().mean()

    return arrays, ours, theirs


# DCGAN, and a gradient penalty of its discriminator's layers
def layer(h, name, f, **settings):
    return f(h, P[f"{name}/{'deconv' if f is T.conv_transpose2d else 'conv'}/W"], **settings)


def normed(h, name):
    shift, scale = (P[f"{name}/bn/{p}"].reshape(-1) for p in ("beta", "gamma"))
    return T.batch_norm(h, None, None, scale, shift, training=True, eps=1e-5)


def paint(z):
    h = z[:, :, None, None]
    for i in range(1, 5):
        stride, pad = (1, 0) if i == 1 else (2, 1)
        h = layer(h, f"g/deconv{i}", T.conv_transpose2d, stride=stride, padding=pad)
        h = T.relu(normed(h, f"g/deconv{i}"))
    return torch.tanh(layer(h, "g/deconv5", T.conv_transpose2d, stride=2, padding=1))


def judge(h):
    for i in range(1, 5):
        h = layer(h, f"d/conv{i}", T.conv2d, stride=2, padding=1)
        h = T.leaky_relu(normed(h, f"d/conv{i}") if i > 1 else h, 0.2)
    return layer(h, "d/conv5", T.conv2d).reshape(len(h), 1)


def dcgan(rng):
    arrays = rng.random((16, 3, 64, 64)) * 2 - 1, rng.normal(size=(16, 64))

    def made(z):
        with nn.parameter_scope("g"):
            return dcgan_generator(z, 32)

    def judged(x):
        with nn.parameter_scope("d"):
            return dcgan_discriminator(x, 32)

    def ours(x, z):
        fake = made(z)
        yield "d", adversarial_losses("logistic", judged(F.unlink(fake)), judged(x))
        yield "g", adversarial_losses("logistic", judged(fake))

    def theirs(x, z):
        fake = paint(z)
        yield "d", logistic(judge(fake.detach()), judge(x))
        yield "g", logistic(judge(fake))

    return arrays, ours, theirs


def patches(h):
    h = T.leaky_relu(conv(h, "d/first", 2, 1), 0.2)
    for i in range(1, 4):
        h = conv(h, f"d/layer{i}", 2 if i < 3 else 1, 1)
        h = T.leaky_relu(T.instance_norm(h, eps=1e-5), 0.2)
    return conv(h, "d/last", 1, 1)


def wgan_gp(rng):
    arrays = [rng.random((8, 3, 64, 64)) * 2 - 1 for _ in range(2)]

    def judged(x):
        with nn.parameter_scope("d"):
            return G.patch_discriminator(x, 32, norm="instance")

    def ours(x, fake):
        loss = adversarial_losses("wasserstein", judged(fake), judged(x))
        yield (
            "d",
            loss + 10.0 * gradient_penalty(lambda h: F.mean(judged(h), axis=(1, 2, 3)), x, fake),
        )

    def theirs(x, fake):
        loss = patches(fake).mean() - patches(x).mean()
        share = torch.rand(len(x), 1, 1, 1)
        between = (x * share + fake * (1 - share)).requires_grad_()
        scores = patches(between).mean((1, 2, 3)).sum()
        (g,) = torch.autograd.grad(scores, between, create_graph=True)
        yield "d", loss + 10 * ((g.square().sum((1, 2, 3)) + 1e-12).sqrt() - 1).square().mean()

    return arrays, ours, theirs


# DDPM
def unet(x, t, c=UNET):
    def norm(h, name):
        return T.group_norm(h, c.groups, P[f"n/{name}/weight"], P[f"n/{name}/bias"], c.eps)

    def residual(h, name):
        y = conv(T.silu(norm(h, f"{name}/norm1")), f"n/{name}/conv1")
        y = y + linear(T.silu(time), f"n/{name}/time_emb_proj")[:, :, None, None]
        y = conv(T.silu(norm(y, f"{name}/norm2")), f"n/{name}/conv2")
        return y + (conv(h, f"n/{name}/conv_shortcut") if y.shape != h.shape else h)

    def attention(h, name):
        rows = norm(h, f"{name}/group_norm").flatten(2).transpose(1, 2)
        q, k, v = (linear(rows, f"n/{name}/to_{p}")[:, None] for p in "qkv")
        y = linear(T.scaled_dot_product_attention(q, k, v)[:, 0], f"n/{name}/to_out/0")
        return h + y.transpose(1, 2).reshape(h.shape)

    half = c.channels[0] // 2
    rates = torch.exp(torch.arange(half) * (-math.log(10000) / (half - c.shift)))
    time = torch.cat([torch.sin(t[:, None] * rates), torch.cos(t[:, None] * rates)], 1)
    time = linear(T.silu(linear(time, "n/time_embedding/linear_1")), "n/time_embedding/linear_2")
    h = conv(x, "n/conv_in")
    skipped, last = [h], len(c.channels) - 1
    for i, kind in enumerate(c.attention):
        h = residual(h, f"down_blocks/{i}/resnets/0")
        h = attention(h, f"down_blocks/{i}/attentions/0") if kind else h
        skipped.append(h)
        if i < last:
            h = conv(h, f"n/down_blocks/{i}/downsamplers/0/conv", 2, 1)
            skipped.append(h)
    h = attention(residual(h, "mid_block/resnets/0"), "mid_block/attentions/0")
    h = residual(h, "mid_block/resnets/1")
    for i, kind in enumerate(reversed(c.attention)):
        for j in range(2):
            h = residual(torch.cat([h, skipped.pop()], 1), f"up_blocks/{i}/resnets/{j}")
            h = attention(h, f"up_blocks/{i}/attentions/{j}") if kind else h
        if i < last:
            h = conv(T.interpolate(h, scale_factor=2), f"n/up_blocks/{i}/upsamplers/0/conv")
    return conv(T.silu(norm(h, "conv_norm_out")), "n/conv_out")


def ddpm(rng):
    arrays = *(rng.normal(size=(4, 3, 64, 64)) for _ in range(2)), rng.integers(0, 1000, 4)

    def ours(x, noise, t):
        with nn.parameter_scope("n"):
            yield "n", F.mean((G.diffusion_unet(x, t, UNET) - noise) ** 2)

    def theirs(x, noise, t):
        yield "n", T.mse_loss(unet(x, t), noise)

    return arrays, ours, theirs


# StyleGAN2
def active(h):
    return T.leaky_relu(h, 0.2) * 2**0.5


def smooth(h, f=T.conv2d, gain=1.0, **settings):
    b, c, *size = h.shape
    y = f(h.reshape(b * c, 1, *size), TAPS * gain, **settings)
    return y.reshape(b, c, *y.shape[2:])


def even(h, name, pace=1.0):
    w = P[f"{name}/weight"]
    return T.linear(h, w * (pace / w.shape[1] ** 0.5), P[f"{name}/bias"] * pace)


def styled(h, style, name, up=False):
    w, scale = P[f"{name}/weight"], even(style, f"{name}/affine")
    length = (scale.square() @ w.square().sum((2, 3)).T + 1e-8).rsqrt()
    h = h * scale[:, :, None, None]
    if up:
        h = smooth(T.conv_transpose2d(h, w.transpose(0, 1), stride=2), gain=4.0, padding=1)
    else:
        h = T.conv2d(h, w, padding=1)
    h = h * length[:, :, None, None] + P[f"{name}/noise_const"] * P[f"{name}/noise_strength"]
    return active(h + P[f"{name}/bias"][:, None, None])


def synthesize(w):
    h = P["g/synthesis/b4/const"].expand(len(w), -1, -1, -1)
    image, place = None, 0
    for size in STYLES.sizes:
        at = f"g/synthesis/b{size}"
        for name in ("conv0", "conv1") if size > 4 else ("conv1",):
            h, place = styled(h, w[:, place], f"{at}/{name}", name == "conv0"), place + 1
        k, scale = P[f"{at}/torgb/weight"], even(w[:, place], f"{at}/torgb/affine")
        scale = scale[:, :, None, None] / k.shape[1] ** 0.5
        made = T.conv2d(h * scale, k, P[f"{at}/torgb/bias"])
        if image is not None:
            made = made + smooth(image, T.conv_transpose2d, 4.0, padding=1, stride=2)
        image = made
    return image


def discriminate(x):
    def even_conv(h, name, **settings):
        return conv(h, f"d/{name}", scale=1 / P[f"d/{name}/weight"][0].numel() ** 0.5, **settings)

    h = active(even_conv(x, f"b{STYLES.resolution}/fromrgb"))
    for n in reversed(STYLES.sizes[1:]):
        side = even_conv(smooth(h, padding=1, stride=2), f"b{n}/skip") * 0.5**0.5
        h = active(even_conv(h, f"b{n}/conv0"))
        h = active(even_conv(smooth(h, padding=2), f"b{n}/conv1", stride=2, pad=0)) * 0.5**0.5
        h = side + h
    y = h.reshape(4, -1, *h.shape[1:])
    y = ((y - y.mean(0)).square().mean(0) + 1e-8).sqrt().mean((1, 2, 3))
    h = torch.cat([h, y.repeat(4)[:, None, None, None].expand(-1, 1, 4, 4)], 1)
    h = active(even_conv(h, "b4/conv")).flatten(1)
    return even(active(even(h, "d/b4/fc")), "d/b4/out")


def stylegan2(rng):
    arrays = rng.normal(size=(8, 3, 32, 32)), rng.normal(size=(8, STYLES.styles, STYLES.latent))

    def made(w):
        with nn.parameter_scope("g"):
            return G.stylegan2_synthesis(w, STYLES, "const")

    def judged(x):
        with nn.parameter_scope("d"):
            return G.stylegan2_discriminator(x, STYLES)

    def ours(x, w):
        fake = made(w)
        yield "d", adversarial_losses("logistic", judged(F.unlink(fake)), judged(x))
        yield "g", adversarial_losses("logistic", judged(fake))

    def theirs(x, w):
        fake = synthesize(w)
        yield "d", logistic(discriminate(fake.detach()), discriminate(x))
        yield "g", logistic(discriminate(fake))

    return arrays, ours, theirs, made, judged


def stylegan2_r1(rng):
    (x, _), *_, judged = stylegan2(rng)

    def ours(x):
        x.need_grad = True
        yield "d", r1_penalty(judged(x), x)

    def theirs(x):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(discriminate(x).sum(), x, create_graph=True)
        yield "d", g.square().sum() / len(x)

    return (x,), ours, theirs


def stylegan2_paths(rng):
    (x, w), _, _, made, _ = stylegan2(rng)
    mean = nn.Variable((1,))
    theirs_mean = torch.zeros(1)

    def ours(w):
        w.need_grad = True
        yield "g", path_length(made(w), w, mean)

    def theirs(w):
        w = w.detach().requires_grad_()
        image = synthesize(w)
        noise = torch.randn_like(image) / image.shape[2]
        (g,) = torch.autograd.grad((image * noise).sum(), w, create_graph=True)
        lengths = (g.square().sum((1, 2)) / w.shape[1] + 1e-12).sqrt()
        theirs_mean.lerp_(lengths.detach().mean(), 0.01)
        yield "g", (lengths - theirs_mean).square().mean()

    return (w,), ours, theirs


ROWS = {
    f.__name__: f for f in (dcgan, ddpm, esrgan, stylegan2, wgan_gp, stylegan2_r1, stylegan2_paths)
}


def copied():
    """Our parameters, of which PyTorch's are made."""
    found = nn.get_parameters(grad_only=False)
    P.clear()
    P.update({k: torch.tensor(v.d.copy(), requires_grad=v.need_grad) for k, v in found.items()})
    return found


def distances(steps, seed):
    """FID of digits that both networks make after the same steps."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "examples" / "generative"))
    from features import scores
    from pictures import digits

    nn.clear_parameters()
    nn.seed(seed)
    images, rng = digits(8)[0], np.random.default_rng(seed)
    schedule = NoiseSchedule("cosine")

    @nn.compile
    def ours(x, t):
        with nn.parameter_scope("n"):
            return G.diffusion_unet(x, t, DIGITS)

    def given(*arrays):
        return [nn.Variable.from_numpy_array(a.astype(np.float32)) for a in arrays]

    ours(*given(images[:1], np.zeros(1)))
    found = copied()
    solver, optimizer = S.Adam(2e-3), torch.optim.Adam(P.values(), 2e-3)
    solver.set_parameters(found)

    @nn.compile
    def step(x, t, noise):
        with nn.parameter_scope("n"):
            loss = F.mean((G.diffusion_unet(x, t, DIGITS) - noise) ** 2)
        solver.zero_grad()
        loss.backward(clear_buffer=True)
        solver.update()

    for _ in range(steps):
        x, t = images[rng.integers(len(images), size=64)], rng.integers(0, 1000, 64)
        noise = rng.normal(size=x.shape)
        arrays = [a.astype(np.float32) for a in (schedule.noisy(x, noise, t), t, noise)]
        step(*given(*arrays))
        x, t, noise = map(torch.tensor, arrays)
        optimizer.zero_grad()
        T.mse_loss(unet(x, t, DIGITS), noise).backward()
        optimizer.step()

    def theirs(x, t):
        with torch.no_grad():
            return unet(torch.tensor(x).float(), torch.tensor(t).float(), DIGITS).numpy()

    noise = rng.normal(size=(320, 1, 8, 8)).astype(np.float32)
    predict = {"nnl": lambda x, t: ours(*given(x, t)).d.copy(), "torch": theirs}
    made = {who: schedule.sample(f, noise, 25) for who, f in predict.items()}
    return {who: round(scores(images)["FID"], 2) for who, images in made.items()}


def measured(name, rounds):
    """Milliseconds of a step, ours and PyTorch's, and the first losses of both."""
    nn.clear_parameters()
    nn.seed(0)
    torch.manual_seed(0)
    arrays, ours, theirs, *_ = ROWS[name](np.random.default_rng(0))
    arrays = [np.asarray(a, np.float32) for a in arrays]
    given = [nn.Variable.from_numpy_array(a) for a in arrays]
    with nn.auto_forward(False):
        scopes = [scope for scope, _ in ours(*given)]
    found = copied()
    solvers, optimizers = {}, {}
    for scope in scopes:
        mine = {k: v for k, v in found.items() if k.startswith(f"{scope}/") and v.need_grad}
        solvers[scope] = S.Adam(RATE)
        solvers[scope].set_parameters(mine)
        optimizers[scope] = torch.optim.Adam([P[k] for k in mine], RATE)

    @nn.compile
    def step(*x):
        losses = []
        for scope, loss in ours(*x):
            solvers[scope].zero_grad()
            loss.backward(clear_buffer=True)
            solvers[scope].update()
            losses.append(loss)
        return losses

    def eager(*x):
        losses = []
        for scope, loss in theirs(*x):
            optimizers[scope].zero_grad()
            loss.backward()
            optimizers[scope].step()
            losses.append(loss.detach())
        return losses

    tensors = [torch.tensor(a) for a in arrays]
    times = {"nnl": [], "torch": []}
    runs = {"nnl": lambda: step(*given), "torch": lambda: eager(*tensors)}
    losses = {who: [float(getattr(v, "d", v)) for v in run()] for who, run in runs.items()}
    for _ in range(2 + rounds):
        for who, run in runs.items():
            begin = time.process_time()
            run()
            times[who].append((time.process_time() - begin) * 1e3)
    ms = {who: round(float(np.median(t[2:])), 2) for who, t in times.items()}
    return ms | {"ratio": round(ms["nnl"] / ms["torch"], 2), "losses": losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--json", help="a file for the results")
    parser.add_argument("--fid", type=int, metavar="N", help="steps of the DDPM on digits, alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for seed in range(3) if options.fid else ():
        rows[name := f"FID after {options.fid} steps, seed {seed}"] = distances(options.fid, seed)
        print(name, rows[name], flush=True)
    for name in [] if options.fid else [options.only] if options.only else ROWS:
        rows[name] = measured(name, options.rounds)
        print(name, rows[name], flush=True)
    if options.json:
        found = {"processor": processor(), "versions": versions(), "rows": rows}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
