# SPDX-License-Identifier: Apache-2.0
"""A tokenizer that is trained on the spot, a chat template, and a folder that has both."""

import json

import tokenizers as t

from nnl import models

SIZES = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}
TEXTS = [
    "the cat sat on the mat, and the dog sat beside it.",
    "Größe und Wärme: 3 × 4 = 12 €, 日本語 and 🙂 too",
]
CHAT = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ raise_exception('no tools') }}{% endif %}\n"
    "<{{ m.role }}>{{ m.content | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)


def tokenizer():
    """A byte-pair tokenizer of 320 tokens."""
    trainer = t.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=t.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found = t.Tokenizer(t.models.BPE())
    found.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = t.decoders.ByteLevel()
    found.train_from_iterator(TEXTS, trainer)
    return found


def write_folder(path, **more):
    """A small language model with a tokenizer and a template."""
    models.from_config({**SIZES, **more}).to_huggingface(path)
    tokenizer().save(str(path / "tokenizer.json"))
    special = {"pad_token": "<pad>", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (path / "tokenizer_config.json").write_text(json.dumps(special))
    (path / "chat_template.jinja").write_text(CHAT)
