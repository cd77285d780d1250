# SPDX-License-Identifier: Apache-2.0
"""Text that every Python has: its own manual and the documentation of its library."""

import importlib
import inspect
import json
from pathlib import Path
from pydoc_data.topics import topics

import tokenizers as t

MODULES = (
    "builtins math cmath os os.path sys io itertools functools string random statistics json re "
    "time datetime operator collections shutil textwrap heapq bisect glob copy pathlib calendar "
    "argparse logging unittest subprocess socket threading decimal fractions csv email zipfile"
).split()
USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def documented():
    """(name, its documentation) of what the modules have."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        found[name] = inspect.getdoc(module) or ""
        for key, thing in sorted(vars(module).items()):
            if not key.startswith("_") and (inspect.isclass(thing) or inspect.isroutine(thing)):
                found[f"{name}.{key}"] = inspect.getdoc(thing) or ""
    return found


def texts():
    """Paragraphs of the manual, several to a text, and what is documented."""
    found = [f"{name}\n\n{text}" for name, text in documented().items() if len(text) > 200]
    for topic in topics.values():
        parts = topic.split("\n\n")
        found += ["\n\n".join(parts[i : i + 20]) for i in range(0, len(parts), 20)]
    return sorted(set(found))


def questions():
    """Conversations: what does a function do? The first sentence of its documentation."""
    found = {}
    for name, text in documented().items():
        first = " ".join(text.partition("\n\n")[0].split())
        if 10 < len(first) < 100 and first.endswith(".") and "->" not in first:
            question = f"What does {name.removeprefix('builtins.')} do?"
            found[question] = [
                {"role": "user", "content": question},
                {"role": "assistant", "content": first},
            ]
    return [{"messages": talk} for talk in found.values()]


def write(path, samples):
    path.write_text("".join(json.dumps(s) + "\n" for s in samples), encoding="utf-8")


def write_files(folder: Path, vocabulary: int):
    """texts.jsonl, held_out.jsonl with every twentieth of the texts, questions.jsonl, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = [{"text": text} for text in texts()]
    write(folder / "texts.jsonl", [s for i, s in enumerate(samples) if i % 20])
    write(folder / "held_out.jsonl", samples[::20])
    write(folder / "questions.jsonl", questions())
    tokenizer = t.Tokenizer(t.models.BPE())
    tokenizer.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = t.decoders.ByteLevel()
    trainer = t.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|pad|>", USER, ASSISTANT, END],
        initial_alphabet=t.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((s["text"] for s in samples), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return tokenizer
