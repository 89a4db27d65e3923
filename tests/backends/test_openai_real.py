"""A real engine, `transformers serve`, gives the same greedy answers as transformers in process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from ryarn.backends import Prompt
from ryarn.backends.config import OpenAIConfig
from ryarn.backends.hf import HfBackend
from ryarn.backends.openai import OpenAIBackend
from ryarn.chat import prompt_ids
from ryarn.errors import UserError
from ryarn.tiny import build

pytestmark = pytest.mark.slow
TOKENS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model in a folder: path, model, tokenizer."""
    folder = tmp_path_factory.mktemp("served") / "tiny"
    model, tokenizer = build("llama")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


@pytest.fixture(scope="module")
def url(model):
    """Root of the API of a server in a process of its own."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = f"http://127.0.0.1:{port}"
    script = Path(sys.executable).with_name("transformers")
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, script, "serve", model[0], *options, "--dtype", "float32"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120
        while not answers(f"{root}/health"):
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.2)
        yield f"{root}/v1"
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def rows(tokenizer):
    texts = [f"Where is {'Ann ' * n}now?" for n in (1, 3, 40, 7, 120, 5)]
    found = []
    for number, text in enumerate(texts):
        messages = ({"role": "user", "content": text},)
        ids = np.array(prompt_ids(tokenizer, messages), dtype=np.int32)
        found.append(Prompt(f"row-{number}", messages, ids))
    return found


@pytest.mark.parametrize("form", [{"prompt": "text"}, {"api": "chat"}], ids=["text", "chat"])
def test_the_answers_are_those_of_transformers(model, url, form):
    folder, base, tokenizer = model
    prompts = rows(tokenizer)
    here = dict(HfBackend(base, tokenizer).generate(prompts, TOKENS))
    config = OpenAIConfig(base_url=url, model=str(folder), concurrency=2, **form)
    backend = OpenAIBackend(config, tokenizer)
    served = dict(backend.generate(prompts, TOKENS))
    assert backend.window() is None
    backend.close()
    assert served == here
    assert len({answer.text for answer in here.values()}) > 1


def test_token_ids_it_refuses_in_a_sentence(model, url):
    folder, _, tokenizer = model
    backend = OpenAIBackend(OpenAIConfig(base_url=url, model=str(folder)), tokenizer)
    with pytest.raises(UserError, match="refused the first 3 rows: HTTP 400: prompt must be a str"):
        list(backend.generate(rows(tokenizer), TOKENS))
    backend.close()
