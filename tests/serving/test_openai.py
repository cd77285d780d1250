# SPDX-License-Identifier: Apache-2.0
"""OpenAI's interface, asked by OpenAI's own client and by clients that send nonsense."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import openai
import pytest

from nnl.serving.openai import Limits
from tests.serving.toy import Model, Rows, running, server


@pytest.fixture(scope="module")
def address():
    with running(server()) as found:
        yield found


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as found:
        yield found


def test_completions(client):
    answer = client.completions.create(model="letters", prompt="ab", max_tokens=3)
    assert answer.choices[0].text == "cde" and answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 3)
    answer = client.completions.create(model="letters", prompt=["w", [0, 1]], max_tokens=5, n=2)
    assert [c.text for c in answer.choices] == ["xy", "xy", "cdefg", "cdefg"]
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 3
    answer = client.completions.create(
        model="letters", prompt="a", stop=["de", "g"], temperature=0, seed=1, top_p=0.5,
        extra_body={"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1},
    )  # fmt: skip
    assert answer.choices[0].text == "bc" and answer.choices[0].finish_reason == "stop"


def test_streams(client):
    options = {"include_usage": True}
    events = list(client.completions.create(
        model="letters", prompt="a", max_tokens=4, stream=True, stream_options=options
    ))  # fmt: skip
    assert "".join(c.text for e in events for c in e.choices) == "bcde"
    assert events[-2].choices[0].finish_reason == "length"
    assert events[-1].usage.completion_tokens == 4
    talk = [{"role": "user", "content": "m"}]
    events = list(client.chat.completions.create(
        model="letters", messages=talk, max_tokens=3, stream=True
    ))  # fmt: skip
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(e.choices[0].delta.content or "" for e in events) == "nop"
    assert events[-1].choices[0].finish_reason == "length"


def test_chat(client):
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    answer = client.chat.completions.create(
        model="letters", messages=[{"role": "user", "content": parts}], max_completion_tokens=2
    )
    assert answer.choices[0].message.content == "de"
    assert answer.choices[0].message.role == "assistant"
    with pytest.raises(openai.BadRequestError, match="the last message is not the user's"):
        client.chat.completions.create(
            model="letters", messages=[{"role": "system", "content": "a"}]
        )


def test_embeddings_and_models(client):
    answer = client.embeddings.create(model="letters", input=["abc", "b"])  # asks for base64
    assert [e.embedding for e in answer.data] == [[3, 0], [1, 1]]
    answer = client.embeddings.create(model="letters", input="abc", encoding_format="float")
    assert answer.data[0].embedding == [3, 0] and answer.usage.prompt_tokens == 3
    assert [m.id for m in client.models.list()] == ["letters"]
    assert client.models.retrieve("letters").owned_by == "nnl"
    with pytest.raises(openai.NotFoundError, match="no model 'numbers'"):
        client.models.retrieve("numbers")
    with pytest.raises(openai.NotFoundError, match="no model 'numbers', only 'letters'"):
        client.completions.create(model="numbers", prompt="a")


def post(address, route, body, **headers):
    """(status, JSON) of a request whose body is as it is."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(address + route, raw, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


@pytest.mark.parametrize("route, body, param, text", [
    ("completions", b"", None, "the body is no JSON"),
    ("completions", b"[" * 10**5, None, "the body is no JSON"),
    ("completions", b"[]", None, "the body is list, wanted an object"),
    ("completions", {}, "prompt", "prompt is missing"),
    ("completions", {"prompt": ""}, "prompt", 'prompt holds "", wanted a text or tokens'),
    ("completions", {"prompt": []}, "prompt", "prompt is [], wanted"),
    ("completions", {"prompt": ["a", 3.5]}, "prompt", "prompt holds 3.5"),
    ("completions", {"prompt": [99]}, "prompt", "prompt has the token 99, wanted 0 to 25"),
    ("completions", {"prompt": "a" * 64}, "prompt", "the prompt has 64 tokens, wanted 1 to 63"),
    ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens is 0, wanted 1"),
    ("completions", {"prompt": "a", "max_tokens": "9"}, "max_tokens", 'is "9", wanted a whole'),
    ("completions", {"prompt": "a", "max_tokens": True}, "max_tokens", "is true, wanted a whole"),
    ("completions", {"prompt": "a", "temperature": -1}, "temperature", "is -1, wanted at least 0"),
    ("completions", {"prompt": "a", "top_p": 0}, "top_p", "top_p is 0, wanted more than 0"),
    ("completions", {"prompt": "a", "n": 99}, "n", "n is 99, wanted 1 to 16"),
    ("completions", {"prompt": "a", "stop": [1]}, "stop", "stop is [1], wanted up to 16 texts"),
    ("completions", {"prompt": "a", "stream": 1}, "stream", "stream is 1, wanted true or false"),
    ("completions", {"prompt": "a", "logprobs": 3}, "logprobs", "logprobs is not supported"),
    ("completions", {"prompt": "a", "seed": -1}, "seed", "seed is -1, wanted 0 to"),
    ("chat/completions", {}, "messages", "messages is missing or empty"),
    ("chat/completions", {"messages": [3]}, "messages", "messages[0] is 3, wanted an object"),
    ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages", "messages[0] has a content that is no text"),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, "tools",
     "tools is not supported"),
    ("embeddings", {}, "input", "input is missing"),
    ("embeddings", {"input": "a", "encoding_format": "x"}, "encoding_format", "is 'x', wanted"),
    ("embeddings", {"input": "a", "dimensions": 2}, "dimensions", "dimensions is not supported"),
])  # fmt: skip
def test_nonsense_is_told(address, route, body, param, text):
    status, answer = post(address, f"/v1/{route}", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param and text in answer["error"]["message"]


def test_other_routes_and_large_bodies(address):
    assert post(address, "/v1/nothing", {})[1]["error"]["message"] == "there is no POST /v1/nothing"
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(address + "/v1/completions")
    with running(server(limits=Limits(body=100))) as small:
        status, answer = post(small, "/v1/completions", {"prompt": "a" * 200})
        assert status == 413 and "more than 100 bytes" in answer["error"]["message"]


def test_the_key():
    with running(server(limits=Limits(key="sesame"))) as closed:
        ask = {"model": "letters", "prompt": "a", "max_tokens": 1}
        with openai.OpenAI(base_url=closed + "/v1", api_key="sesame", max_retries=0) as client:
            assert client.completions.create(**ask).choices[0].text == "b"
            with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
                client.with_options(api_key="wrong").completions.create(**ask)
        for header in ({}, {"Authorization": "Bearer \u00e4"}):
            assert post(closed, "/v1/completions", ask, **header)[0] == 401
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(closed + "/v1/models")
        assert json.load(urllib.request.urlopen(closed + "/health"))["status"] == "ok"


def test_who_leaves_frees_the_row_and_who_finds_no_room_is_told():
    rows = Rows(1, 10**6, pause=0.01)
    made = server(rows, waiting=1)
    with running(made) as address:
        body = json.dumps({"prompt": "a", "max_tokens": 10**5, "stream": True})
        streams = []
        for _ in range(2):
            c = http.client.HTTPConnection(address.removeprefix("http://"))
            c.request("POST", "/v1/completions", body)
            streams.append((c, c.getresponse()))
        assert streams[0][1].readline().startswith(b"data: ")
        status, answer = post(address, "/v1/completions", {"prompt": "a"})
        assert status == 429 and answer["error"]["message"] == "1 texts wait already"
        plain = http.client.HTTPConnection(address.removeprefix("http://"))
        for c, response in streams:
            response.close()
            c.close()
        until(lambda: made.scheduler.load == (0, 0))
        plain.request("POST", "/v1/completions", body.replace("true", "false"))
        until(lambda: made.scheduler.load == (1, 0))
        plain.close()  # without waiting for the answer
        until(lambda: made.scheduler.load == (0, 0))
        assert post(address, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


def until(holds):
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_failures_are_answers():
    rows = Rows()
    rows.broken = True
    with running(server(rows)) as address:
        status, answer = post(address, "/v1/completions", {"prompt": "a"})
        assert status == 500 and answer["error"] == {
            "message": "broken", "type": "server_error", "param": None, "code": None,
        }  # fmt: skip
        request = urllib.request.Request(
            address + "/v1/completions", json.dumps({"prompt": "a", "stream": True}).encode()
        )
        events = urllib.request.urlopen(request).read()
        assert b'"message": "broken"' in events and events.endswith(b"data: [DONE]\n\n")


def test_clients_at_once_and_metrics():
    with running(server(Rows(4, pause=0.001), waiting=100)) as address:
        found = {}

        def ask(i):
            prompt = {"prompt": "abcdefghijklmnopqrst"[i % 20], "max_tokens": 1 + i % 5}
            found[i] = post(address, "/v1/completions", prompt)[1]["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(40)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        letters = "abcdefghijklmnopqrstuvwxy"
        assert found == {i: letters[i % 20 + 1 : i % 20 + 2 + i % 5] for i in range(40)}
        text = urllib.request.urlopen(address + "/metrics").read().decode()
        assert 'nnl_requests_total{route="/v1/completions",status="200"} 40.0' in text
        assert "nnl_first_token_seconds_count 40.0" in text
        assert "nnl_texts_running 0.0" in text


def test_attention(address):
    class Looks(Model):
        def attention(self, tokens):
            weights = np.zeros((2, 3, len(tokens), len(tokens)), np.float32)
            weights[1, 2] = np.tri(len(tokens)) / np.arange(1, len(tokens) + 1)[:, None]
            return tokens, weights

    made = server()
    made.model = Looks()

    def ask(address, **given):
        request = urllib.request.Request(address + "/v1/attention", json.dumps(given).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def refused(address, **given):
        with pytest.raises(urllib.error.HTTPError) as e:
            ask(address, **given)
        with e.value as answer:
            return json.load(answer)["error"]["message"]

    with running(made) as looks:
        found = ask(looks, prompt="abc", layer=1, head=2)
        assert (found["tokens"], found["layers"], found["heads"]) == (["a", "b", "c"], 2, 3)
        assert found["weights"] == [[1, 0, 0], [0.5, 0.5, 0], [0.3333, 0.3333, 0.3333]]
        talk = [{"role": "user", "content": "ab"}]
        assert ask(looks, messages=talk)["weights"] == [[0, 0], [0, 0]]
        assert "head is 3, wanted 0 to 2" in refused(looks, prompt="abc", head=3)
        assert "the text has 600 tokens, wanted up to 512" in refused(looks, prompt="ab" * 300)
        with urllib.request.urlopen(looks + "/v1/models") as answer:
            (model,) = json.load(answer)["data"]
        assert model["attention"] and model["chat"] and model["completions"]
    assert "serve the folder that they were made from" in refused(address, prompt="abc")
