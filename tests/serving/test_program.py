# SPDX-License-Identifier: Apache-2.0
"""A file of programs behind OpenAI's interface, and what it says of text."""

import json

import openai
import pytest

import nnl as nn
import nnl.functions as F
from nnl import models
from nnl.cli.main import main
from nnl.cli.services.serve import opened
from nnl.models.huggingface.stored import StoredText, conversation, turns_of
from nnl.models.huggingface.text import Text
from nnl.serving.metrics import Metrics
from nnl.serving.openai import Server
from nnl.serving.scheduler import Scheduler
from tests.models.texts import SIZES, write_folder
from tests.serving.toy import running

PROMPTS = ["the cat", "Größe und Wärme, 日本語", "3 × 4 =", "the dog sat beside it.", "🙂"]
TALK = [
    {"role": "system", "content": " be short "},
    {"role": "user", "content": "Größe?"},
    {"role": "assistant", "content": "3 "},
    {"role": "user", "content": " and <|im_end|>?"},
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A network with a tokenizer, and files of it for one text, two and three."""
    folder = tmp_path_factory.mktemp("model")
    with nn.parameter_scope("written"):
        write_folder(folder)
    with nn.parameter_scope("served"):
        model = models.from_huggingface(folder)
    paths = {}
    for batch in (1, 2, 3):
        paths[batch] = folder / f"served{batch}.nnlp"
        model.save_program(paths[batch], batch, capacity=60, chunk=8)
    return model, paths


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_clients_get_what_the_network_writes(saved, batch):
    model, paths = saved
    found, rows, ends = opened(str(paths[batch]), None, None)
    assert (rows.batch, rows.capacity, list(ends)) == (batch, 60, [2])
    scheduler = Scheduler(rows, ends, 16)
    ask = {"model": "served", "max_tokens": 12, "temperature": 0}
    with (
        running(Server("served", found, scheduler, Metrics())) as address,
        openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as client,
    ):
        for _ in range(2):  # also beginnings that are known
            answer = client.completions.create(prompt=PROMPTS, **ask)
            assert [c.text for c in answer.choices] == model.generate(PROMPTS, 12)
        answer = client.chat.completions.create(messages=TALK[:2], **ask)
        assert answer.choices[0].message.content == model.chat(TALK[:2], 12)
        events = client.completions.create(prompt=PROMPTS[1], stream=True, **ask)
        assert "".join(e.choices[0].text for e in events) == model.generate(PROMPTS[1], 12)
        with pytest.raises(openai.BadRequestError, match="- this model gives no vectors"):
            client.embeddings.create(model="served", input="a")
        with pytest.raises(openai.BadRequestError, match="wanted 1 to 59"):
            client.completions.create(prompt=[5] * 60, **ask)


def test_what_is_saved_again_still_knows_text(saved, tmp_path):
    model, paths = saved
    nn.load_program(paths[3]).save(tmp_path / "again.nnlp")
    text = StoredText(nn.load_program(tmp_path / "again.nnlp").language, "reader")
    assert text.encode(PROMPTS[1]) == model.text.encode(PROMPTS[1])
    assert text.conversation(TALK) == model.text.conversation(TALK)


def test_files_that_cannot_be_served_are_told(saved, tmp_path, capsys):
    x = nn.Variable((2, 3))
    nn.save_program(tmp_path / "other.nnlp", {"y": x + 1}, {"x": x})
    given = {"tokens": x, "before": nn.Variable((2,)), "counts": nn.Variable((2,))}
    closed = {"scores": x + F.reshape(given["before"] + given["counts"], (2, 1))}
    nn.save_program(tmp_path / "closed.nnlp", programs={"read": (closed, given)})
    with nn.parameter_scope("silent"):
        models.from_config(SIZES).save_program(tmp_path / "silent.nnlp", capacity=8, chunk=4)
    path = saved[1][1]
    file = nn.load_program(path)
    for name, said in (("none", b"{}"), ("half", b'{"tokenizer": {'), ("odd", b"[3]")):
        file.language = said
        file.save(tmp_path / f"{name}.nnlp")
    for name, text in (
        ("other", "has no program 'read' of before, counts, tokens at any size: it is not"),
        ("closed", "has no program 'read' of before, counts, tokens at any size: it is not"),
        ("silent", "has no tokenizer: save_program writes that of the folder"),
        ("none", "damaged: nnl.language is no text's: KeyError('tokenizer')"),
        ("half", "damaged: nnl.language is no text's"),
        ("odd", "damaged: nnl.language is no text's"),
    ):
        assert main(["serve", str(tmp_path / f"{name}.nnlp")]) != 0
        assert text in capsys.readouterr().err
    assert main(["serve", str(path), "--batch", "3"]) != 0
    assert "--batch is what save_program was told" in capsys.readouterr().err


LLAMA3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\nToday: 1 May\n\n{{ s }}<|eot_id|>"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CHATML = (  # as Qwen 2.5 and SmolLM2 have it
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
LLAMA2 = (  # the system's words are inside the user's turn
    "{% for m in messages %}{% if m.role == 'user' %}[INST] "
    "{% if loop.index0 == 1 and messages[0].role == 'system' %}<<SYS>>{{ messages[0].content }}"
    "<</SYS>>{% endif %}{{ m.content }} [/INST]{% elif m.role == 'assistant' %}{{ m.content }}"
    "{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("template, system", [
    (LLAMA3, True), (CHATML, True), (LLAMA2, True), (GEMMA, False), (MISTRAL, False), (None, True),
])  # fmt: skip
def test_turns_say_what_the_template_says(tmp_path, template, system):
    with nn.parameter_scope("turns"):
        write_folder(tmp_path)
    if template:
        (tmp_path / "chat_template.jinja").write_text(template)
    text = Text(tmp_path, "reader")
    turns = json.loads(json.dumps(turns_of(text)))
    assert ("system" in turns) == system
    for talk in (TALK, TALK[:2], TALK[1:], TALK[3:]):
        if system or talk[0]["role"] != "system":
            assert conversation(turns, talk) == text.conversation(talk)


@pytest.mark.parametrize("template", [
    "{% for m in messages %}{{ loop.index }}: {{ m.content }} {% endfor %}",
    "{{ messages | length }}",
    "{% for %}",
])  # fmt: skip
def test_templates_of_another_form_have_no_turns(tmp_path, template):
    with nn.parameter_scope("turns"):
        write_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    assert turns_of(Text(tmp_path, "reader")) is None
