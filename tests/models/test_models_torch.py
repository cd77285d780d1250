# SPDX-License-Identifier: Apache-2.0
"""nnl.models beside the same networks in PyTorch and transformers, with the same weights."""

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models as M

torch = pytest.importorskip("torch")

from benchmarks import torch_models as T  # noqa: E402
from tests.models.against_torch import (  # noqa: E402
    assert_close,
    copy_layers,
    draw_statistics,
)

# float32 with another order of summation, through some 20 to 150 layers
RTOL = 1e-4


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


NETWORKS = {
    "lenet": (lambda x: M.lenet(x), T.lenet, (2, 1, 28, 28)),
    "resnet-18": (lambda x: M.resnet(x, 18, test=True), lambda: T.resnet(18), (2, 3, 48, 40)),
    "resnet-50": (lambda x: M.resnet(x, 50, test=True), T.resnet, (1, 3, 32, 32)),
    "resnext-50": (lambda x: M.resnext(x, test=True), T.resnext, (1, 3, 32, 32)),
    "se_resnet-18": (
        lambda x: M.se_resnet(x, 18, test=True),
        lambda: T.se_resnet(18),
        (1, 3, 32, 32),
    ),
    "mobilenet_v3-large": (lambda x: M.mobilenet_v3(x, test=True), T.mobilenet_v3, (2, 3, 48, 64)),
    "mobilenet_v3-small": (
        lambda x: M.mobilenet_v3(x, "small", test=True),
        lambda: T.mobilenet_v3("small"),
        (2, 3, 48, 64),
    ),
    "efficientnet-b0": (lambda x: M.efficientnet(x, test=True), T.efficientnet_b0, (2, 3, 48, 64)),
    "dcgan-generator": (
        lambda x: M.dcgan_generator(x, 8, test=True),
        lambda: T.dcgan_generator(100, 8),
        (2, 100),
    ),
    "dcgan-discriminator": (
        lambda x: M.dcgan_discriminator(x, 8, test=True),
        lambda: T.dcgan_discriminator(8),
        (2, 3, 64, 64),
    ),
    "unet": (lambda x: M.unet(x, 2, 8, 3, test=True), lambda: T.UNet(2, 8, 3), (2, 3, 16, 24)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_those_of_pytorch(name):
    ours, theirs, shape = NETWORKS[name]
    network = theirs().eval()
    draw_statistics(network)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    y = ours(nn.Variable.from_numpy_array(x))
    copy_layers(network)
    y.forward()
    with torch.no_grad():
        assert_close(y.d, network(torch.tensor(x)), RTOL)


def test_a_training_pass_of_resnet_18_gives_the_gradients_and_statistics_of_pytorch():
    network = T.resnet(18, 10).train()
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(4, 3, 48, 48)), rng.integers(0, 10, (4, 1))
    # in float64: in float32 a ReLU near 0 may let a gradient through in one and not in the other
    with nn.context_scope(nn.Context(["cpu:double"])):
        y = M.resnet(nn.Variable.from_numpy_array(x), 18, 10)
        copy_layers(network)
        loss = F.mean(F.softmax_cross_entropy(y, nn.Variable.from_numpy_array(t)))
        loss.forward()
        loss.backward()
    scores = network.double()(torch.tensor(x))
    expected = torch.nn.functional.cross_entropy(scores, torch.tensor(t[:, 0]))
    expected.backward()
    assert_close(loss.d, expected, 1e-9)
    p = nn.get_parameters(grad_only=False)
    # 1e-6: parameters, and so their gradients and statistics, are float32
    assert_close(p["stem/conv/W"].g, network[0][0].weight.grad, 1e-6)
    assert_close(p["classifier/affine/W"].g, network[-1].weight.grad.T, 1e-6)
    assert_close(p["stem/bn/mean"].d.ravel(), network[0][1].running_mean, 1e-6)


def transformer_weights(path, module):
    """Give the parameters below `path` those of a Linear, LayerNorm, Conv1D or Embedding."""
    parameters = nn.get_parameters()
    if isinstance(module, (torch.nn.LayerNorm, torch.nn.Embedding)):
        names = {"W": module.weight}
        if isinstance(module, torch.nn.LayerNorm):
            names = {"gamma": module.weight, "beta": module.bias}
        arrays = {k: v.detach().numpy() for k, v in names.items()}
    else:
        w = module.weight.detach().numpy()  # of transformers' Conv1D it lies the other way round
        w = w if isinstance(module, torch.nn.Linear) else w.T
        arrays = {"W": w, "b": module.bias.detach().numpy()}
    for leaf, a in arrays.items():
        v = parameters[f"{path}/{leaf}"]
        v.d = a.reshape(v.shape)


def randomised(network):
    """Biases and scales of transformers start at 0 and 1: draw them, so that they count."""
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return network.eval()


@pytest.mark.parametrize("between", [None, 80])
def test_bert_is_that_of_transformers(between):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=between or 128,
        max_position_embeddings=16,
    )
    network = randomised(transformers.BertForMaskedLM(config))
    pooler = randomised(transformers.BertModel(config)).pooler
    rng = np.random.default_rng(0)
    tokens, segments = rng.integers(0, 60, (2, 9)), rng.integers(0, 2, (2, 9))
    keep = np.ones((2, 9), np.int64)
    keep[1, 6:] = 0
    sizes = {"vocabulary": 60, "width": 32, "layers": 2, "heads": 4, "longest": 16, "test": True}
    sizes["intermediate_size"] = between
    given = [nn.Variable.from_numpy_array(a) for a in (tokens, segments, keep)]
    sequence, summary = M.bert(*given, **sizes)
    scores = M.bert_masked_language_model(*given, **sizes)
    embeddings = network.bert.embeddings
    transformer_weights("tokens", embeddings.word_embeddings)
    transformer_weights("positions", embeddings.position_embeddings)
    transformer_weights("segments", embeddings.token_type_embeddings)
    transformer_weights("embeddings", embeddings.LayerNorm)
    for i, layer in enumerate(network.bert.encoder.layer, 1):
        scope, attention = f"layer{i}", layer.attention
        joined = torch.nn.Linear(32, 96)
        parts = attention.self.query, attention.self.key, attention.self.value
        joined.weight.data = torch.cat([p.weight for p in parts])
        joined.bias.data = torch.cat([p.bias for p in parts])
        transformer_weights(f"{scope}/attention/qkv", joined)
        transformer_weights(f"{scope}/attention/out", attention.output.dense)
        transformer_weights(f"{scope}/attention/norm", attention.output.LayerNorm)
        transformer_weights(f"{scope}/up", layer.intermediate.dense)
        transformer_weights(f"{scope}/down", layer.output.dense)
        transformer_weights(f"{scope}/feed_forward/norm", layer.output.LayerNorm)
    head = network.cls.predictions
    transformer_weights("masked/dense", head.transform.dense)
    transformer_weights("masked/norm", head.transform.LayerNorm)
    transformer_weights("summary", pooler.dense)
    nn.get_parameters()["masked/b"].d = head.bias.detach().numpy()
    nn.forward_all([sequence, summary, scores])
    a = [torch.tensor(v) for v in (tokens, segments, keep)]
    with torch.no_grad():
        states = network.bert(a[0], token_type_ids=a[1], attention_mask=a[2])[0]
        logits = network(a[0], token_type_ids=a[1], attention_mask=a[2]).logits
        assert_close(sequence.d, states, RTOL)
        assert_close(summary.d, pooler(states), RTOL)
        assert_close(scores.d, logits, RTOL)


def test_gpt2_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    network = randomised(transformers.GPT2LMHeadModel(config))
    tokens = np.random.default_rng(0).integers(0, 60, (2, 9))
    sizes = {"vocabulary": 60, "width": 32, "layers": 2, "heads": 4, "longest": 16, "test": True}
    scores = M.gpt2(nn.Variable.from_numpy_array(tokens), **sizes)
    transformer_weights("tokens", network.transformer.wte)
    transformer_weights("positions", network.transformer.wpe)
    for i, layer in enumerate(network.transformer.h, 1):
        scope = f"layer{i}"
        transformer_weights(f"{scope}/attention/norm", layer.ln_1)
        transformer_weights(f"{scope}/attention/qkv", layer.attn.c_attn)
        transformer_weights(f"{scope}/attention/out", layer.attn.c_proj)
        transformer_weights(f"{scope}/feed_forward/norm", layer.ln_2)
        transformer_weights(f"{scope}/up", layer.mlp.c_fc)
        transformer_weights(f"{scope}/down", layer.mlp.c_proj)
    transformer_weights("out", network.transformer.ln_f)
    scores.forward()
    with torch.no_grad():
        assert_close(scores.d, network(torch.tensor(tokens)).logits, RTOL)
