"""`ryarn evaluate` with vLLM: which export it takes, what must be live in it, what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fake_vllm
from export_runs import make_run
from ryarn.export import export
from ryarn.runs import read_json
from tiny_run import command, write_recipe

ADAPTED = {"factor": 2, "spans": [128, 256]}
"""The method of the recipe."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its exports."""
    folder = tmp_path_factory.mktemp("made")
    run = make_run(folder / "run", "tiny:llama", **ADAPTED)
    with pytest.MonkeyPatch.context() as patch:
        # Whether the exports are right is asked elsewhere, in a new process each.
        patch.setattr("ryarn.export.stage.check", lambda *_: [])
        export(run, folder / "merged")
        export(run, folder / "apart", form="unmerged")
    return folder


@pytest.fixture
def run(made, tmp_path, monkeypatch, capsys):
    """Runs the command on the fake engine; gives its exit code and stderr."""
    for key, value in fake_vllm.install(tmp_path).items():
        monkeypatch.setenv(key, value)
    recipe = write_recipe(tmp_path)
    # vLLM is found by its name alone, and the fake one is not installed in this Python.
    monkeypatch.setattr("ryarn.backends.vllm.check_installed", lambda _: None)

    def call(*overrides, trouble=None, model: Any = made / "merged"):
        monkeypatch.setenv("FAKE_VLLM", json.dumps(trouble or {}))
        section = {"name": "vllm", "model": model and str(model)}
        backend = f"evaluate.backend={json.dumps(section)}"
        code = command(monkeypatch, "evaluate", recipe, backend, *overrides)
        return code, capsys.readouterr().err

    return call


def manifest(folder: Path) -> dict[str, Any]:
    return read_json(folder / "run" / "evaluation" / "manifest.json")


def test_a_merged_export_is_evaluated(run, made, tmp_path):
    assert run()[0] == 0
    summary = read_json(tmp_path / "run" / "evaluation" / "summary.json")
    assert (summary["rows"], summary["scored"]) == (12, 12)
    written, request = manifest(tmp_path), read_json(made / "merged/ryarn_export.json")["request"]
    assert written["backend"] == "vllm"
    assert (written["form"], written["adapter"]) == ("merged", request["adapter"])
    assert (written["train_factor"], written["eval_factor"]) == (2, 2)
    assert (written["original_length"], written["window"]) == (4096, 8192)
    assert written["rope"] == "the engine's live cos and sin, compared with those of the method"
    assert "torch" in written["engine"]
    [arguments] = fake_vllm.log(tmp_path, "arguments")
    assert arguments["model"] == str(made / "merged")
    assert (arguments["max_model_len"], arguments["dtype"]) == (8192, "float32")
    assert "hf_overrides" not in arguments


def test_an_unmerged_export_goes_as_base_and_adapter(run, made, tmp_path):
    assert run(model=made / "apart")[0] == 0
    [arguments] = fake_vllm.log(tmp_path, "arguments")
    assert arguments["model"] == str(made / "apart" / "base")
    assert arguments["max_lora_rank"] == 8
    lora = {request["lora"] for request in fake_vllm.log(tmp_path, "request")}
    assert lora == {str(made / "apart" / "adapter")}


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ({"factor": 2}, "another RoPE than was trained"),
        ({"attention": 1.02}, "attention factor 1.0907, not 1.0693"),
        ({"rows": 4096}, "ends at 4096, before position 4096"),
        ({"blind": True}, "nobody can tell which RoPE answers"),
    ],
)
def test_an_engine_with_another_rope_is_refused_before_the_first_row(
    run, tmp_path, trouble, sentence
):
    code, said = run(trouble=trouble)
    assert code == 2
    assert sentence in said
    assert not (tmp_path / "run" / "evaluation").exists()
    assert fake_vllm.log(tmp_path, "request") == []


def test_the_exports_that_do_not_fit_are_refused_before_the_engine_starts(run, made, tmp_path):
    cases: list[tuple[list[str], Any, str]] = [
        ([], None, "evaluate.backend.model is missing: vLLM runs an export; make one with `ryarn"),
        ([], tmp_path, "no ryarn_export.json there; give a folder that ryarn export made"),
        (["method.eval_factor=4"], made / "merged", "serves s' = 2, the recipe says 4.0"),
        (["method.name=trained-yarn"], made / "merged", "with method 'randomized-yarn', the recip"),
        (["method.name=zero-shot"], made / "merged", "trains nothing, so there is no export"),
        (["evaluate.window=8193"], made / "merged", "up to the window of this model's yarn RoPE"),
        (["method.name=zero-shot"], None, "'tiny:llama' is no model in safetensors"),
    ]
    for overrides, model, sentence in cases:
        code, said = run(*overrides, model=model)
        assert (code, sentence in said) == (2, True), said
    assert not (tmp_path / "fake.log").exists()


def test_an_export_of_another_adapter_than_the_runs_is_refused(run, tmp_path):
    make_run(tmp_path / "run", "tiny:llama", scale=2.0, **ADAPTED)
    code, said = run()
    assert (code, "was exported from another adapter than" in said) == (2, True), said


def test_gguf_is_for_another_engine(run, tmp_path):
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "ryarn_export.json").write_text('{"request": {"form": "q8_0"}}')
    code, said = run(model=tmp_path / "gguf")
    assert (code, "holds GGUF for llama.cpp" in said) == (2, True)


def test_a_base_gets_the_yarn_of_its_method(run, tmp_path):
    zero = ["method.name=zero-shot+yarn", "model.name=miniature", "method.factor=8"]
    assert run(*zero, model=None)[0] == 0
    [arguments] = fake_vllm.log(tmp_path, "arguments")
    assert arguments["model"].endswith("demo/miniature")
    overrides = arguments["hf_overrides"]
    assert overrides["max_position_embeddings"] == arguments["max_model_len"] == 8 * 256
    assert overrides["rope_parameters"]["factor"] == 8
    assert overrides["rope_parameters"]["original_max_position_embeddings"] == 256
    assert manifest(tmp_path)["form"] is None


def test_a_base_without_yarn_may_be_asked_beyond_its_window(run, tmp_path):
    zero = ["method.name=zero-shot", "model.name=miniature"]
    assert run(*zero, "evaluate.window=1000", model=None)[0] == 0
    [arguments] = fake_vllm.log(tmp_path, "arguments")
    assert arguments["hf_overrides"] == {"max_position_embeddings": 1000}
    assert arguments["max_model_len"] == 1000


def test_a_comparison_and_a_search_train_what_they_ask(made, tmp_path):
    from ryarn.compare.grid import load_grid
    from ryarn.errors import UserError

    text = (Path(__file__).parents[1] / "recipes" / "demo.yaml").read_text()
    (tmp_path / "grid.yaml").write_text(text)
    override = f"evaluate.backend={{name: vllm, model: {made / 'merged'}}}"
    with pytest.raises(UserError, match=r"evaluate.backend = 'vllm' does not go with a comparison"):
        load_grid(tmp_path / "grid.yaml", [override])
