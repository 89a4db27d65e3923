"""The vLLM backend: its worker's real code against a package that computes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fake_vllm
from ryarn.backends import Generated, Prompt
from ryarn.backends.config import VllmConfig
from ryarn.backends.reading import Reader
from ryarn.backends.vllm import Engine, VllmBackend, check_installed, lora_rank
from ryarn.errors import UserError

END = 7


class NumberTokenizer:
    """Writes token ids as numbers."""

    chat_template = None

    def decode(self, ids, skip_special_tokens=False):
        return " ".join(map(str, ids))


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a backend on the fake engine; what it may be told goes into its environment."""
    for key, value in fake_vllm.install(tmp_path).items():
        monkeypatch.setenv(key, value)
    model = tmp_path / "model"
    model.mkdir()
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    config = {"rope_parameters": rope, "head_dim": 8, "max_position_embeddings": 64}
    (model / "config.json").write_text(json.dumps(config))
    started = []

    def call(trouble=None, engine=None, **settings):
        monkeypatch.setenv("FAKE_VLLM", json.dumps(trouble or {}))
        engine = engine or Engine(str(model), 64, "float32")
        backend = VllmBackend(VllmConfig(**settings), engine, [0, 3], tmp_path / "run" / "vllm.log")
        backend.read_with(Reader(NumberTokenizer(), {END, 9}), {9, END})
        started.append(backend)
        return SimpleNamespace(backend=backend, process=backend._process, folder=tmp_path)

    yield call
    for backend in started:
        backend.close()


def prompts(*lengths):
    return [
        Prompt(f"row-{length}", (), np.arange(100, 100 + length, dtype=np.int32))
        for length in lengths
    ]


def test_every_row_is_answered_and_read_up_to_its_end(start):
    run = start()
    answers = dict(run.backend.generate(prompts(5, 12, 8), 20))
    assert answers["row-12"] == Generated("109 109 110 111", "stop")
    assert answers["row-5"] == Generated("102 102 103 104", "stop")
    assert list(answers) == ["row-5", "row-8", "row-12"]


def test_an_answer_that_spends_its_budget_is_cut(start):
    [(_, answer)] = start().backend.generate(prompts(5), 2)
    assert answer == Generated("102 102", "length")


def test_nothing_is_left_to_the_settings_that_a_model_ships(start):
    run = start()
    list(run.backend.generate(prompts(5, 12), 20))
    [arguments] = fake_vllm.log(run.folder, "arguments")
    assert arguments == {
        "model": str(run.folder / "model"),
        "dtype": "float32",
        "max_model_len": 64,
        "tensor_parallel_size": 1,
        "seed": 0,
        "generation_config": "vllm",
    }
    asked = fake_vllm.log(run.folder, "request")
    assert [request["tokens"] for request in asked] == [12, 5]
    assert asked[0]["lora"] is None
    assert asked[0]["params"] == {
        "temperature": 0,
        "seed": 0,
        "max_tokens": 20,
        "stop_token_ids": [END, 9],
        "detokenize": False,
        "output_kind": 2,
    }


def test_an_adapter_goes_along_with_every_row(start, tmp_path):
    engine = Engine(str(tmp_path / "model"), 64, "float32", tmp_path / "adapter", rank=12)
    run = start(engine=engine, tensor_parallel=2, options={"enforce_eager": True})
    list(run.backend.generate(prompts(5, 12), 20))
    [arguments] = fake_vllm.log(tmp_path, "arguments")
    assert arguments["enable_lora"] is True
    assert arguments["max_lora_rank"] == 16
    assert (arguments["tensor_parallel_size"], arguments["enforce_eager"]) == (2, True)
    asked = fake_vllm.log(tmp_path, "request")
    assert [request["lora"] for request in asked] == 2 * [str(tmp_path / "adapter")]


def test_the_live_rope_is_told(start):
    ropes = start().backend.ropes
    assert len(ropes) == 2  # a list a worker
    [module] = ropes[0]
    assert module["size"] == 64
    assert module["paths"] == [f"model.layers.{n}.self_attn.rotary_emb" for n in range(2)]
    assert module["rows"][0] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert module["rows"][1][0] == pytest.approx(np.cos(3))


def test_the_engine_ends_with_the_last_answer(start):
    run = start()
    list(run.backend.generate(prompts(5), 20))
    assert run.process.poll() == 0


def test_an_engine_that_does_not_start_says_why(start, tmp_path):
    with pytest.raises(UserError, match=r"vLLM ended \(ValueError: no such model here\)") as caught:
        start({"start": "no such model here"})
    assert str(tmp_path / "run" / "vllm.log") in str(caught.value)
    assert "vLLM talks on stdout" in (tmp_path / "run" / "vllm.log").read_text()


def test_what_was_answered_before_it_died_is_kept(start):
    answers = start({"survives": 2}).backend.generate(prompts(5, 12, 8), 20)
    assert [next(answers)[0], next(answers)[0]] == ["row-5", "row-8"]
    with pytest.raises(UserError, match=r"CUDA out of memory.*it goes on where it was"):
        next(answers)


def test_the_root_cause_is_named_not_what_it_brought_down(start, tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(
        "(EngineCore pid=1) ERROR 11-30 08:34:05 [core.py:1] ValueError: needs 9.0 GiB of cache\n"
        "(EngineCore pid=1) ERROR 11-30 08:34:05 [core.py:1] more of it\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed: {}\n"
    )
    from ryarn.backends.vllm import _last_words

    assert _last_words(log) == "ValueError: needs 9.0 GiB of cache"


def test_a_python_without_vllm_is_refused():
    with pytest.raises(UserError, match="has no vLLM; pip install vllm there"):
        check_installed(VllmConfig())
    with pytest.raises(
        UserError, match=r"evaluate.backend.python = '/nowhere/python' can't be run"
    ):
        check_installed(VllmConfig(python="/nowhere/python"))


def test_ranks_are_rounded_up_to_what_vllm_knows():
    assert [lora_rank(rank) for rank in (1, 8, 9, 64, 257)] == [8, 8, 16, 64, 320]
    with pytest.raises(UserError, match=r"rank 513.*export it merged"):
        lora_rank(513)


def test_the_worker_imports_nothing_that_lies_beside_it():
    folder = Path(fake_vllm.__file__).parents[1] / "src/ryarn/backends/engine"
    # The folder comes first on the engine's path: a file named like a package would hide it.
    assert {path.name for path in folder.glob("*.py")} == {"__init__.py", "vllm_worker.py"}
    assert "ryarn." not in "\n".join(
        line for line in (folder / "vllm_worker.py").read_text().splitlines() if "import" in line
    )
