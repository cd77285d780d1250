# SPDX-License-Identifier: Apache-2.0
"""Text in and out: tokenizers, conversations, stop words, pieces of a stream."""

import pytest

from nnl import models
from nnl.models.generation.speaking import Said
from nnl.models.huggingface.text import Text
from tests.models.texts import TEXTS, write_folder

MESSAGES = [
    {"role": "system", "content": " be short "},
    {"role": "user", "content": "Größe?"},
]


@pytest.fixture
def folder(tmp_path):
    """A small model with a tokenizer and a template."""
    write_folder(tmp_path)
    return tmp_path


def test_text_becomes_tokens_and_text_again(folder):
    text = Text(folder, "reader")
    for given in TEXTS:
        tokens = text.encode(given)
        assert len(tokens) < len(given.encode()) and text.decode([1, *tokens, 2]) == given


def test_a_conversation_becomes_text(folder):
    text = Text(folder, "reader")
    want = "<s><system>be short</s>\n<user>Größe?</s>\n"
    assert text.conversation(MESSAGES, answer=False) == want
    assert text.conversation(MESSAGES) == f"{want}<assistant>"
    assert text.conversation(MESSAGES, tools=["größer"]) == f'{want}<assistant>["größer"]'


def test_answers_are_text_whole_or_in_pieces(folder):
    model = models.from_huggingface(folder)
    text = model.text
    prompts = ["the cat", "3 × 4 ="]
    tokens = model.generate([text.encode(p) for p in prompts], 10)
    assert model.generate(prompts, 10) == [text.decode(t) for t in tokens]
    assert "".join(model.stream(prompts[0], 10)) == text.decode(tokens[0])
    asked = text.encode(text.conversation(MESSAGES))
    assert model.chat(MESSAGES, 10) == text.decode(model.generate(asked, 10))


def test_a_template_can_refuse_and_can_do_no_harm(folder):
    path = folder
    with pytest.raises(ValueError, match="the chat template refuses the messages: no tools"):
        Text(path, "reader").conversation([{"role": "tool", "content": ""}])
    (path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="refuses the messages: .*unsafe"):
        Text(path, "reader").conversation(MESSAGES)
    (path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ValueError, match="refuses the messages"):
        Text(path, "reader").conversation(MESSAGES)


def test_a_damaged_tokenizer_is_named(folder):
    path = folder
    (path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ValueError, match="tokenizer.json is no tokenizer"):
        Text(path, "reader")
    (path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="there is no .*tokenizer.json"):
        Text(path, "reader")


def said(text, stop=()):
    """(what is told after each piece, the whole text), where tokens are bytes."""
    s = Said(lambda tokens: bytes(tokens).decode(errors="replace"), list(stop))
    told = []
    for byte in text.encode():
        told.append(s.add(byte))
        if s.stopped:
            break
    return told, s, s.rest()


def test_pieces_have_whole_characters():
    told, s, rest = said("a€b🙂")
    assert told == ["a", "", "", "€", "b", "", "", "", "🙂"] and (s.text, rest) == ("a€b🙂", "")


def test_stop_words_end_the_text_and_what_could_begin_one_is_held_back():
    told, s, rest = said("one\ntwo\n\nthree", ["\n\n", "xyz"])
    assert s.stopped and s.text == "one\ntwo" and rest == ""
    assert "".join(told) == "one\ntwo" and told[3] == "" and told[4] == "\nt"
    told, s, rest = said("ends with xy", ["xyz"])
    assert not s.stopped and "".join(told) == "ends with " and rest == "xy"


def test_a_stop_word_ends_one_text_of_several(folder):
    path = folder
    model = models.from_huggingface(path)
    prompts = ["the cat", "Größe"]
    whole = model.generate(prompts, 12)
    word = next(w for i in range(5, 30) if (w := whole[0][i : i + 3]) not in whole[1])
    assert model.generate(prompts, 12, stop=word) == [whole[0].split(word)[0], whole[1]]
    assert "".join(model.stream(prompts[0], 12, stop=word)) == whole[0].split(word)[0]
    assert model.generate(prompts[0], 12, stop=[word], guesser=model) == whole[0].split(word)[0]
