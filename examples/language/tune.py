# SPDX-License-Identifier: Apache-2.0
"""Teach a language model to answer: fine-tune it on conversations, whole or by adapters.

    python examples/language/tune.py            all weights of what train.py has made
    python examples/language/tune.py --lora 16  adapters alone, in a file that peft reads
    python examples/language/tune.py --base FOLDER --data FILES     another model, other samples

Samples are lines of JSON or tables of Parquet: {"messages": [...]}, {"prompt": ..., "completion":
...} or {"text": ...}. Killed, it goes on where it was. The questions that train.py writes ask what
functions of Python do; how many of those that it has learned it answers word for word is printed.
Measured with --batch-size 4, after train.py:

    all weights, 86 s of a processor            loss 1.644, word for word: 2 of 70
    --lora 16 --learning-rate 4e-3, 80 s        loss 3.218, word for word: 0 of 70

More --steps learn more of them by heart.
"""

import argparse
import json
from pathlib import Path

from learn import add_options, learn

import nnl as nn
from nnl import models

HERE = Path(__file__).parent / "out"


def right(model, path, most):
    """How many of the questions in a file are answered word for word, of how many."""
    talks = [json.loads(line)["messages"] for line in path.open()]
    talks = talks[:: max(1, len(talks) // most)]
    prompts = [model.text.conversation(talk[:-1]) for talk in talks]
    prompts = [model.text.encode(prompt, special=False) for prompt in prompts]
    answers = map(model.text.decode, model.generate(prompts, max_tokens=60))
    return sum(a == talk[-1]["content"] for a, talk in zip(answers, talks, strict=True)), len(talks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=HERE / "base")
    parser.add_argument("--data", nargs="+", default=[str(HERE / "questions.jsonl")])
    parser.add_argument("--out", type=Path, default=HERE / "tuned")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="0: all weights")
    add_options(parser, batch_size=8, steps=300, learning_rate=1e-3, weight_decay=0.0)
    options = parser.parse_args()

    nn.seed(options.seed)
    model = models.from_huggingface(options.base)
    options.length = min(options.length, model.config.longest)
    parameters = model.parameters()
    if options.lora:
        parameters = model.lora(options.lora, 2 * options.lora, "all-linear")
    options.out.mkdir(parents=True, exist_ok=True)
    loss = learn(model, options.data, parameters, options)
    (model.save_adapter if options.lora else model.to_huggingface)(options.out)
    (options.out / "checkpoint.safetensors").unlink(missing_ok=True)
    size = sum(v.size for v in parameters.values())
    print(f"loss {loss:.3f}, {size:,} parameters: {options.out}")
    questions = Path(options.data[0])
    if questions.name == "questions.jsonl":
        print("answered word for word: {} of {}".format(*right(model, questions, 64)))


if __name__ == "__main__":
    main()
