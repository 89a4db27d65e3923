"""The trained adapter: its layers, what it loads as, on which base, by which contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from ryarn import callback, load, tiny
from ryarn.errors import UserError
from ryarn.recipe import Recipe
from ryarn.train import train
from tiny_run import make_recipe, run_info, weights

LINEAR = [
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
]


@pytest.mark.parametrize("family", ["llama", "olmo3"])
def test_lora_is_on_every_linear_layer_and_on_nothing_else(tmp_path: Path, family: str) -> None:
    recipe = make_recipe(tmp_path, f"model.name=tiny:{family}", "train.max_steps=1")
    train(recipe)
    config = json.loads((recipe.output / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (16, 32, 0.1)
    assert config["modules_to_save"] is None
    layers = 4 if family == "olmo3" else 2
    assert set(weights(recipe.output / "adapter")) == {
        f"base_model.model.model.layers.{layer}.{linear}.lora_{part}.weight"
        for layer in range(layers)
        for linear in LINEAR
        for part in "AB"
    }
    shapes = weights(recipe.output / "adapter").values()
    assert run_info(recipe)["trainable_parameters"] == sum(w.numel() for w in shapes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    recipe = make_recipe(
        tmp_path_factory.mktemp("trained"), "method.eval_factor=4", "train.epochs=4"
    )
    train(recipe)
    return recipe


def test_an_adapter_loads_as_it_was_trained(tmp_path: Path, monkeypatch: Any) -> None:
    kept: list[Any] = []
    end = callback.ExtensionCallback.on_train_end

    def keep(self: Any, *args: Any, model: Any = None, **kwargs: Any) -> None:
        kept.append(model)
        end(self, *args, model=model, **kwargs)

    monkeypatch.setattr(callback.ExtensionCallback, "on_train_end", keep)
    recipe = make_recipe(tmp_path, "train.learning_rate=1e-2")
    train(recipe)
    tokens = torch.arange(200)[None] % 97 + 1
    with torch.inference_mode():
        mine = kept[0].eval()(tokens).logits
        model, tokenizer = load(recipe.output, dtype="float32")
        theirs = model(tokens).logits
        plain = tiny.build("llama")[0].eval()(tokens).logits
        bare = PeftModel.from_pretrained(tiny.build("llama")[0], str(recipe.output / "adapter"))
        without_yarn = bare.eval()(tokens).logits
    assert not model.training
    assert tokenizer.chat_template
    torch.testing.assert_close(theirs, mine, atol=1e-6, rtol=0)
    assert (plain - mine).abs().max() > 1e-2
    assert (without_yarn - mine).abs().max() > 1e-4


def test_inference_has_its_own_factor(trained: Recipe) -> None:
    model, _ = load(trained.output / "adapter")
    assert model.config.rope_parameters["factor"] == 4
    assert model.config.max_position_embeddings == 4 * tiny.WINDOW


def test_the_contract_lies_beside_the_adapter(trained: Recipe) -> None:
    folders = [
        trained.output / "adapter",
        *(trained.output / "checkpoints").glob("checkpoint-*"),
    ]
    assert len(folders) == 2
    for folder in folders:
        contract = json.loads((folder / "ryarn.json").read_text())
        assert contract["method"] == "randomized-yarn"
        assert (contract["train_factor"], contract["eval_factor"]) == (2, 4)
        assert contract["spans"] == [128, 256]
        assert contract["sampler"] == "uniform-subset"
        assert contract["layers"] == ["rotary_emb"]
        assert contract["base"]["original_length"] == tiny.WINDOW
        assert contract["base"]["name"] == "tiny:llama"
        assert set(contract["versions"]) >= {"ryarn", "torch", "transformers", "peft", "trl"}


def other_base(change: str, folder: Path) -> str:
    """A base that the adapter was not trained on; its name or folder."""
    if change == "family":
        return "tiny:qwen2"
    model, tokenizer = tiny.build("llama")
    if change == "weights":
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight += 0.1
    elif change == "theta":
        model.config.rope_parameters = {**model.config.rope_parameters, "rope_theta": 5e5}
    elif change == "window":
        model.config.max_position_embeddings = 2 * tiny.WINDOW
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("family", "model_type is 'qwen2', it was 'llama'"),
        ("weights", "fingerprint is"),
        ("theta", "theta is 500000.0, it was 10000.0"),
        ("window", "original_length is 8192, it was 4096"),
    ],
)
def test_another_base_is_refused_and_the_difference_named(
    trained: Recipe, tmp_path: Path, change: str, field: str
) -> None:
    with pytest.raises(UserError, match="does not fit the base") as caught:
        load(trained.output, base=other_base(change, tmp_path / "other"))
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_base_may_lie_elsewhere_and_in_another_dtype(trained: Recipe, tmp_path: Path) -> None:
    base = other_base("none", tmp_path / "same")
    model, _ = load(trained.output, base=base, dtype="bfloat16")
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize("text", ["{", "{}", '{"method": "lora"}', "[]"])
def test_a_broken_contract_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "ryarn.json").write_text(text)
    with pytest.raises(UserError, match="not a contract that this version of ryarn reads"):
        load(tmp_path)
    (tmp_path / "ryarn.json").unlink()
    with pytest.raises(UserError, match=r"no ryarn\.json"):
        load(tmp_path)
