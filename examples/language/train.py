# SPDX-License-Identifier: Apache-2.0
"""Train a small language model from nothing, on the text of Python's own manual, until it writes.

    python examples/language/train.py            four minutes of a processor's time
    python examples/language/train.py --quick    seconds: it learns which letters follow each other

Writes the text, its tokenizer, and a folder `base` of Hugging Face's form, for tune.py and talk.py.
Killed, it goes on where it was. Expected with Python 3.11 (xz needs 2.384 bits a byte, and 1.693
where it has the other texts before these, which repeat much); more --steps write better:

    loss 4.269, of texts it has not seen 1.976 bits a byte
"""

import argparse
import json
import shutil
from math import log2
from pathlib import Path

from data import END, write_files
from learn import add_options, learn

import nnl as nn
from nnl import models


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    parser.add_argument("--quick", action="store_true", help="a smaller network, fewer steps")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    add_options(parser, vocabulary=2048, batch_size=8, steps=600, learning_rate=3e-3)
    parser.set_defaults(weight_decay=0.1)
    options = parser.parse_args()
    if options.quick:
        quick = {"width": 64, "layers": 2, "vocabulary": 512, "steps": 60, "length": 64}
        for name, value in quick.items():
            if getattr(options, name) == parser.get_default(name):
                setattr(options, name, value)

    nn.seed(options.seed)
    tokenizer = write_files(options.out, options.vocabulary)
    model = models.from_config({
        "model_type": "llama", "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": options.width, "intermediate_size": 3 * options.width,
        "num_hidden_layers": options.layers, "num_attention_heads": options.width // 32,
        "max_position_embeddings": options.length, "tie_word_embeddings": True,
        "eos_token_id": tokenizer.token_to_id(END),
    })  # fmt: skip
    base = options.out / "base"
    model.to_huggingface(base)  # and back, with its tokenizer
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copyfile(options.out / name, base / name)
    nn.clear_parameters()
    model = models.from_huggingface(base)

    loss = learn(model, str(options.out / "texts.jsonl"), model.parameters(), options)
    model.to_huggingface(base)
    (options.out / "checkpoint.safetensors").unlink(missing_ok=True)

    with (options.out / "held_out.jsonl").open() as file:
        held_out = "\n\n".join(json.loads(line)["text"] for line in file)
    tokens = model.text.encode(held_out)
    bits = log2(model.perplexity(tokens)) * (len(tokens) - 1) / len(held_out.encode())
    print(f"loss {loss:.3f}, of texts it has not seen {bits:.3f} bits a byte")
    print(model.generate("The statement", 60, temperature=0.7, seed=options.seed))


if __name__ == "__main__":
    main()
