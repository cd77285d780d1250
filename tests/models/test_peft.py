# SPDX-License-Identifier: Apache-2.0
"""Adapters beside peft: its files are read, ours are read by it, and the same is learned."""

import json

import numpy as np
import pytest

import nnl as nn
import nnl.functions as F
import nnl.solvers as S
from nnl import models
from tests.models import checkpoints
from tests.models.checkpoints import torch

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.long

IDS = np.random.default_rng(0).integers(3, 60, (2, 9))
CASES = [
    ("gpt2", {}),
    ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "use_rslora": True}),
    ("llama", {"target_modules": "all-linear", "lora_alpha": 12}),
    ("llama-3", {"alpha_pattern": {"1.self_attn.q_proj": 40}, "rank_pattern": {"v_proj": 2}}),
    ("llama", {"layers_to_transform": [1]}),
    ("qwen3", {"target_modules": r".*layers\.0\.(self_attn|mlp)\.(q|up)_proj"}),
    ("gemma3", {}),
    ("phi3", {"target_modules": ["qkv_proj", "down_proj"]}),
    ("mixtral", {"target_modules": ["q_proj", "o_proj"]}),
    ("llama", {"use_dora": True, "target_modules": "all-linear", "lora_alpha": 12}),
    ("gpt2", {"use_dora": True}),
    ("qwen3", {"modules_to_save": ["lm_head", "embed_tokens", "norm"], "use_dora": True}),
    ("gpt2", {"modules_to_save": ["mlp"]}),
]  # fmt: skip


def adapted(theirs, **how):
    """Their network with adapters that all count."""
    config = peft.LoraConfig(**{"r": 4, "init_lora_weights": False, **how})
    torch.manual_seed(1)
    made = peft.get_peft_model(theirs, config)
    with torch.no_grad():  # what begins as the network has it
        for name, p in made.named_parameters():
            if p.requires_grad and "lora_A" not in name and "lora_B" not in name:
                p.mul_(1 + 0.3 * torch.rand(p.shape))
    return made.eval()


def scores(made, ids=IDS):
    y = made(nn.Variable.from_numpy_array(ids))
    y.forward()
    return y.d.copy()


@pytest.mark.parametrize(("name", "how"), CASES)
def test_adapters_of_peft_give_its_scores(name, how, tmp_path):
    theirs = checkpoints.decoder(name)
    theirs.save_pretrained(tmp_path / "base")
    theirs = adapted(theirs, task_type="CAUSAL_LM", **how)
    theirs.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        want = theirs(torch.tensor(IDS)).logits.numpy()
    made = models.from_huggingface(tmp_path / "base")
    plain = scores(made)
    made.load_adapter(tmp_path / "adapter")
    np.testing.assert_allclose(scores(made), want, atol=1e-4)
    assert np.abs(plain - want).max() > 1e-2
    prompt = IDS[0, :5].tolist()
    with torch.no_grad():
        ids = torch.tensor([prompt])
        text = theirs.generate(input_ids=ids, do_sample=False, max_new_tokens=8)[0, 5:].tolist()
    assert made.generate(prompt, 8) == text[: text.index(2) if 2 in text else 8]
    made.merge()
    np.testing.assert_allclose(scores(made), want, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("gpt2", {}),
        ("gpt2", {"targets": "all-linear", "rslora": True}),
        ("llama", {"targets": ["q_proj", "down_proj"], "alpha": 24}),
        ("qwen2_moe", {"targets": r".*self_attn\.o_proj"}),
        ("olmo2", {}),
        ("gpt2", {"targets": "all-linear", "dora": True}),
        ("llama", {"dora": True, "modules_to_save": ["embed_tokens", "lm_head"]}),
    ],
)
def test_peft_reads_what_is_saved(name, how, tmp_path):
    theirs = checkpoints.decoder(name)
    theirs.save_pretrained(tmp_path / "base")
    made = models.from_huggingface(tmp_path / "base")
    rng = np.random.default_rng(3)
    for v in made.lora(4, **how).values():
        v.d = (rng.normal(size=v.shape) * 0.3).astype(np.float32)
    made.save_adapter(tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    assert type(theirs) is peft.PeftModelForCausalLM
    with torch.no_grad():
        want = theirs(torch.tensor(IDS)).logits.numpy()
    np.testing.assert_allclose(scores(made), want, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "bert-classes", "roberta"])
def test_peft_reads_adapters_of_encoders(name, tmp_path):
    theirs = checkpoints.encoder(name)
    theirs.save_pretrained(tmp_path / "base")
    made = models.from_huggingface(tmp_path / "base")
    rng = np.random.default_rng(3)
    for v in made.lora(4).values():
        v.d = (rng.normal(size=v.shape) * 0.3).astype(np.float32)
    made.save_adapter(tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    with torch.no_grad():
        want = theirs(torch.tensor(IDS))[0].numpy()
    head = checkpoints.ENCODERS[name][3]
    y = made(nn.Variable.from_numpy_array(IDS), head=head)
    y.forward()
    np.testing.assert_allclose(y.d, want, atol=1e-4)
    theirs.save_pretrained(tmp_path / "again")
    made.load_adapter(tmp_path / "again")
    y = made(nn.Variable.from_numpy_array(IDS), head=head)
    y.forward()
    np.testing.assert_allclose(y.d, want, atol=1e-4)


def test_peft_reads_adapters_of_t5(tmp_path):
    theirs = checkpoints.t5("t5-gated")
    theirs.save_pretrained(tmp_path / "base")
    made = models.from_huggingface(tmp_path / "base")
    rng = np.random.default_rng(3)
    for v in made.lora(4).values():
        v.d = (rng.normal(size=v.shape) * 0.3).astype(np.float32)
    made.save_adapter(tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    tokens = IDS[:, :4]
    with torch.no_grad():
        given = {"input_ids": torch.tensor(IDS), "decoder_input_ids": torch.tensor(tokens)}
        want = theirs(**given).logits.numpy()
    y = made(*map(nn.Variable.from_numpy_array, (IDS, tokens)))
    y.forward()
    np.testing.assert_allclose(y.d, want, atol=1e-4)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"use_rslora": True, "lora_alpha": 12, "target_modules": "all-linear"},
        {"use_dora": True, "target_modules": "all-linear"},
        {"use_dora": True, "modules_to_save": ["lm_head", "norm"]},
    ],
)
def test_what_is_learned_is_what_peft_learns(how, tmp_path):
    theirs = checkpoints.decoder("llama")
    theirs.save_pretrained(tmp_path / "base")
    theirs = adapted(theirs, task_type="CAUSAL_LM", **how)
    theirs.save_pretrained(tmp_path / "adapter")
    made = models.from_huggingface(tmp_path / "base")
    solver = S.Sgd(0.05)
    solver.set_parameters(made.load_adapter(tmp_path / "adapter"))
    y = made(nn.Variable.from_numpy_array(IDS[:, :-1]))
    targets = nn.Variable.from_numpy_array(IDS[:, 1:].reshape(-1, 1))
    loss = F.mean(F.softmax_cross_entropy(F.reshape(y, (-1, 60)), targets))
    optimizer = torch.optim.SGD([p for p in theirs.parameters() if p.requires_grad], 0.05)
    for _ in range(5):
        loss.forward()
        solver.zero_grad()
        loss.backward()
        solver.update()
        logits = theirs(torch.tensor(IDS[:, :-1])).logits.reshape(-1, 60)
        want = torch.nn.functional.cross_entropy(logits, torch.tensor(IDS[:, 1:].reshape(-1)))
        optimizer.zero_grad()
        want.backward()
        optimizer.step()
        assert abs(float(loss.d) - float(want)) < 1e-4
    made.save_adapter(tmp_path / "learned")
    found = peft.load_peft_weights(str(tmp_path / "learned"))
    for key, value in peft.get_peft_model_state_dict(theirs).items():
        np.testing.assert_allclose(found[key].numpy(), value.detach().numpy(), atol=1e-4)
    config = json.loads((tmp_path / "learned" / "adapter_config.json").read_text())
    assert config == json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
