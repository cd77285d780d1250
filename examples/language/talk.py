# SPDX-License-Identifier: Apache-2.0
"""Talk to a language model: a folder of Hugging Face's form, such as tune.py writes.

python examples/language/talk.py "What does math.sqrt do?"
python examples/language/talk.py --adapter FOLDER --base FOLDER
"""

import argparse
from pathlib import Path

from nnl import models

HERE = Path(__file__).parent / "out"


def answer(model, messages, **how):
    """Say the answer to a conversation as it is written; the conversation with it."""
    prompt = model.text.encode(model.text.conversation(messages), special=False)
    said = []
    for token in model.stream(prompt, **how):
        said.append(token)
        text = model.text.decode(said)
        print(text[len(model.text.decode(said[:-1])) :], end="", flush=True)
    print()
    return [*messages, {"role": "assistant", "content": model.text.decode(said)}]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="*", help="asked one after the other; else from the keys")
    parser.add_argument("--base", type=Path, default=HERE / "tuned")
    parser.add_argument("--adapter", type=Path, help="a folder that tune.py --lora has written")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()

    model = models.from_huggingface(options.base)
    if options.adapter:
        model.load_adapter(options.adapter)
    how = {name: getattr(options, name) for name in ("max_tokens", "temperature", "seed")}
    messages = []
    for question in options.question or iter(lambda: input("> "), ""):
        messages.append({"role": "user", "content": question})
        messages = answer(model, messages, **how)


if __name__ == "__main__":
    main()
