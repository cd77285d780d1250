# SPDX-License-Identifier: Apache-2.0
"""Networks of diffusion models against those of diffusers, from folders that it has written."""

import json
import re

import numpy as np
import pytest

import nnl as nn
from nnl.core.arrays.spec import ShapeError
from nnl.core.parameters.parameter import without_values
from nnl.models import generative as G

UNET = {
    "sample_size": 16,
    "block_out_channels": (8, 16, 16),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    "norm_num_groups": 4,
    "attention_head_dim": 8,
    "layers_per_block": 1,
    "in_channels": 2,
    "out_channels": 3,
}
TEXT = {
    **UNET,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"),
    "attention_head_dim": 2,
    "cross_attention_dim": 12,
}
CODER = {
    "block_out_channels": (8, 16),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 4,
    "layers_per_block": 2,
    "latent_channels": 3,
    "sample_size": 16,
}
rng = np.random.default_rng(0)


def draw(*shape):
    return rng.normal(size=shape).astype(np.float32)


def written(kind, settings, folder):
    """A network of diffusers whose weights all matter, and its folder."""
    diffusers = pytest.importorskip("diffusers")
    import torch

    torch.manual_seed(0)
    model = getattr(diffusers, kind)(**settings).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (p.mean() if p.ndim == 1 else 0))
    model.save_pretrained(folder)
    return model


def torch_of(array):
    import torch

    return torch.tensor(array)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("UNet2DModel", UNET),
        ("UNet2DModel", {**UNET, "attention_head_dim": None, "downsample_padding": 0}),
        ("UNet2DModel", {**UNET, "num_class_embeds": 5, "flip_sin_to_cos": False, "freq_shift": 1}),
        ("UNet2DConditionModel", TEXT),
        ("UNet2DConditionModel", {**TEXT, "use_linear_projection": True}),
    ],
)
def test_unet_gives_what_that_of_diffusers_gives(kind, settings, tmp_path):
    import inspect

    theirs = written(kind, settings, tmp_path)
    config = G.from_diffusers(tmp_path)
    x, t, context = draw(2, 2, 16, 16), np.array([3, 700]), draw(2, 7, 12)
    call, more = {}, {}
    if config.classes:
        labels = np.array([4, 0])
        call["class_labels"] = torch_of(labels)
        more["labels"] = nn.Variable.from_numpy_array(labels)
    if config.context:
        call["encoder_hidden_states"] = torch_of(context)
        more["context"] = nn.Variable.from_numpy_array(context)
    assert {*call} <= {*inspect.signature(theirs.forward).parameters}
    want = theirs(torch_of(x), torch_of(t), **call).sample.detach().numpy()
    with nn.auto_forward():
        given = (nn.Variable.from_numpy_array(a) for a in (x, t.astype(np.float32)))
        y = G.diffusion_unet(*given, config, **more)
    np.testing.assert_allclose(y.d, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["AutoencoderKL", "VQModel"])
def test_autoencoder_gives_what_that_of_diffusers_gives(kind, tmp_path):
    theirs = written(kind, CODER, tmp_path)
    config = G.from_diffusers(tmp_path)
    assert config.codes == (256 if kind == "VQModel" else 0)
    x = draw(2, 3, 16, 16)
    with nn.auto_forward():
        made = G.encode(nn.Variable.from_numpy_array(x), config)
        z = made[0] if kind == "AutoencoderKL" else G.quantize_vectors(made, config)[0]
        y = G.decode(z, config).d
    if kind == "AutoencoderKL":
        spread = theirs.encode(torch_of(x)).latent_dist
        np.testing.assert_allclose(made[1].d, spread.logvar.detach().numpy(), rtol=2e-3, atol=2e-3)
        latent, want = spread.mean, theirs.decode(spread.mean).sample
    else:
        latent, loss, _ = theirs.quantize(theirs.encode(torch_of(x)).latents)
        want = theirs.decode(theirs.encode(torch_of(x)).latents).sample
        with nn.auto_forward():
            found = G.quantize_vectors(nn.Variable.from_numpy_array(made.d), config)[2]
        # theirs weighs the other half by beta, as their older versions did
        assert 0.2 < float(found.d) / float(loss) < 4.1
    np.testing.assert_allclose(z.d, latent.detach().numpy(), rtol=2e-3, atol=2e-3)
    want = want.detach().numpy()
    np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3 * np.abs(want).max())


def damage(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"_class_name": "Other"}, ValueError, "config.json is of a 'Other', wanted one of UNet2D"),
        ({"act_fn": "relu"}, ValueError, "config.json has act_fn 'relu', wanted 'silu'"),
        (
            {"up_block_types": ["UpBlock2D"]},
            ValueError,
            r"no usable .*up_block_types \['UpBlock2D'",
        ),
        ({"down_block_types": ["Odd"] * 3}, ValueError, "has no usable 'Odd'"),
        ({"in_channels": 3}, ShapeError, r"'conv_in.weight' of the shape \(8, 2, 3, 3\), wanted"),
        ({"layers_per_block": 2}, ShapeError, r"'up_blocks.1.resnets.1.conv1.weight' of the shape"),
        ({"num_train_timesteps": 9, "block_out_channels": [8]}, ValueError, "has no usable"),
        ({"num_class_embeds": 9}, ValueError, "safetensors has no 'class_embedding.weight'"),
        ({"norm_num_groups": "x"}, ValueError, "num_groups is 'x', wanted an int"),
    ],
)
def test_another_network_or_file_is_refused_and_changes_nothing(change, error, text, tmp_path):
    written("UNet2DModel", UNET, tmp_path)
    damage(tmp_path, **change)
    with pytest.raises(error, match=text):
        G.from_diffusers(tmp_path)
    assert not nn.get_parameters()


def test_missing_and_damaged_weights_are_named(tmp_path):
    written("UNet2DModel", UNET, tmp_path)
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"from_diffusers: {re.escape(str(path))}"):
        G.from_diffusers(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="there is no .*model.safetensors"):
        G.from_diffusers(tmp_path)


def count(build):
    with without_values():
        build()
    return sum(v.size for v in nn.get_parameters().values())


STABLE = G.DiffusionUNet(
    (320, 640, 1280, 1280),
    ("cross", "cross", "cross", ""),
    "cross",
    heads=(8,) * 4,
    inputs=4,
    outputs=4,
    context=768,
)


# Ho et al., table and code: 35.7 million on CIFAR-10; model cards of Stable Diffusion 1.5 and its
# autoencoder; DiT: as the code of Peebles and Xie prints it
COUNTS = {
    "ddpm": (
        lambda: G.diffusion_unet(
            nn.Variable((1, 3, 32, 32)), nn.Variable((1,)), G.DiffusionUNet(heads=(1,) * 4)
        ),
        35_746_307,
    ),
    "stable diffusion": (
        lambda: G.diffusion_unet(
            nn.Variable((1, 4, 8, 8)), nn.Variable((1,)), STABLE, None, nn.Variable((1, 77, 768))
        ),
        859_520_964,
    ),
    "autoencoder": (
        lambda: (
            G.encode(nn.Variable((1, 3, 8, 8)), G.Autoencoder()),
            G.decode(nn.Variable((1, 4, 1, 1)), G.Autoencoder()),
        ),
        83_653_863,
    ),
    # theirs counts the positions as well, which do not learn
    "dit-xl": (lambda: dit_of(G.DiT(1152, 28, 16)), 675_129_632 - 256 * 1152),
}


def dit_of(config):
    return G.dit(nn.Variable((1, 4, 32, 32)), nn.Variable((1,)), nn.Variable((1,)), config)


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count_is_the_published_one(name):
    build, published = COUNTS[name]
    assert count(build) == published


def test_small_transformer_has_the_33_million_parameters_of_the_table():
    assert round(count(lambda: dit_of(G.DiT())) / 1e6) == 33
