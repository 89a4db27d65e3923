"""The recipe's `evaluate.backend`: short and long form, what is refused, and no key anywhere."""

from __future__ import annotations

import pytest
import yaml

from ryarn.backends.config import KEY, HfConfig, OpenAIConfig
from ryarn.config import dump
from ryarn.errors import UserError
from ryarn.recipe import Recipe
from tiny_run import RECIPE, make_recipe

SERVER = {"name": "openai", "base_url": "http://localhost:8000/v1", "model": "tuned"}


def backend(folder, **keys):
    section = yaml.safe_dump({**SERVER, **keys}, default_flow_style=True)
    return make_recipe(folder, f"evaluate.backend={section}").evaluate.backend


def test_without_a_word_it_is_transformers(tmp_path):
    assert make_recipe(tmp_path).evaluate.backend == HfConfig()
    assert make_recipe(tmp_path, "evaluate.backend=hf").evaluate.backend == HfConfig()


def test_a_server_is_told_by_its_name(tmp_path):
    assert backend(tmp_path, concurrency=2, api="chat") == OpenAIConfig(
        base_url="http://localhost:8000/v1", model="tuned", api="chat", concurrency=2
    )
    assert backend(tmp_path, base_url="https://host/v1/").base_url == "https://host/v1"


def test_a_dumped_recipe_is_the_recipe(tmp_path):
    recipe = make_recipe(tmp_path, f"evaluate.backend={yaml.safe_dump(SERVER)}")
    assert Recipe.model_validate(yaml.safe_load(dump(recipe))) == recipe
    assert yaml.safe_load(dump(make_recipe(tmp_path)))["evaluate"]["backend"] == {"name": "hf"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "opena"}, "Input tag 'opena'"),
        ({"name": None}, "evaluate.backend = "),
        ({"base_url": "localhost:8000/v1"}, "give a URL such as http://localhost:8000/v1"),
        ({"base_url": "ftp://host/v1"}, "give a URL"),
        ({"base_url": "http:///v1"}, "give a URL"),
        ({"base_url": "http://host:99999/v1"}, "evaluate.backend.openai.base_url = "),
        ({"base_url": "http://h/v1/chat/completions"}, "leave out /chat/completions"),
        ({"base_url": "http://h/v1/completions/"}, "leave out /completions"),
        ({"model": ""}, "evaluate.backend.openai.model = ''"),
        ({"concurrency": 0}, "evaluate.backend.openai.concurrency = 0"),
        ({"timeout": 0}, "evaluate.backend.openai.timeout = 0"),
        ({"timeout": float("inf")}, "evaluate.backend.openai.timeout = inf"),
        ({"retries": -1}, "evaluate.backend.openai.retries = -1"),
        ({"api": "chat", "prompt": "text"}, "prompt = 'text' goes with api = 'completions'"),
        ({"retrys": 2}, "did you mean 'retries'?"),
    ],
)
def test_what_can_not_be_is_refused_in_a_sentence(tmp_path, changes, sentence):
    with pytest.raises(UserError, match=r"evaluate\.backend") as caught:
        backend(tmp_path, **changes)
    assert sentence in str(caught.value)


def test_a_backend_without_a_name_is_asked_for_it(tmp_path):
    with pytest.raises(UserError, match="say which by `name`: hf, openai or vllm"):
        make_recipe(tmp_path, "evaluate.backend={model: m}")


SECRET = "sk-0123456789"


@pytest.mark.parametrize(
    "changes",
    [
        {"api_key": SECRET},
        {"API_KEY": SECRET, "base_url": 3},
        {"key": SECRET, "name": "nonsense"},
        {"password": SECRET},
        {"auth_token": SECRET},
        {"authorization": f"Bearer {SECRET}"},
        {"base_url": f"http://me:{SECRET}@host/v1"},
        {"base_url": f"http://{SECRET}@host/v1"},
        {"base_url": f"http://host/v1?key={SECRET}"},
        {"base_url": f"http://host/v1#{SECRET}"},
    ],
)
def test_a_key_in_the_recipe_is_refused_and_not_shown(tmp_path, changes):
    with pytest.raises(UserError, match=KEY) as caught:
        backend(tmp_path, **changes)
    assert SECRET not in str(caught.value)
    assert str(caught.value).startswith("evaluate.backend")


def test_a_word_about_tokens_is_no_key(tmp_path):
    with pytest.raises(UserError, match=r"unknown key 'evaluate\.backend\.openai\.max_tokens'"):
        backend(tmp_path, max_tokens=3)


def test_a_comparison_does_not_go_with_a_server(tmp_path):
    from ryarn.compare.grid import GridRecipe, check_cells
    from ryarn.config import build

    sections = {key: RECIPE[key] for key in ("model", "train", "evaluate")}
    grid = {
        **sections,
        "method": {"factor": 2},
        "tasks": {"own": {}},
        "methods": {"zero-shot": {}, "lora": {"evaluate": {"backend": SERVER}}},
        "seeds": [0],
        "output": str(tmp_path / "grid"),
    }
    with pytest.raises(UserError, match=r"'lora': evaluate\.backend = 'openai' does not go"):
        check_cells(build(GridRecipe, grid))
    grid["methods"]["lora"] = {"evaluate": {"backend": "hf"}}
    check_cells(build(GridRecipe, grid))


def vllm(folder, **keys):
    section = yaml.safe_dump({"name": "vllm", "model": "exported", **keys}, default_flow_style=True)
    return make_recipe(folder, f"evaluate.backend={section}").evaluate.backend


def test_vllm_takes_arguments_for_room_and_speed_alone(tmp_path):
    backend = vllm(tmp_path, tensor_parallel=2, options={"gpu_memory_utilization": 0.8})
    assert (backend.model, backend.tensor_parallel) == ("exported", 2)
    answers = ("max_model_len", "hf_overrides", "enable_lora", "seed", "tensor_parallel_size")
    code = ("trust_remote_code", "worker_cls", "worker_extension_cls", "load_format")
    for other in (*answers, *code):
        with pytest.raises(UserError, match=rf"options\.{other}: .* for room and speed alone"):
            vllm(tmp_path, options={other: 1})
    with pytest.raises(UserError, match="tensor_parallel = 0"):
        vllm(tmp_path, tensor_parallel=0)
