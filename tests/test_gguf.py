"""GGUF exports: keys, tokenizer and weights, read back through transformers' own reader."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import ryarn
from export_runs import SHAPES, WINDOW, make_base, make_run
from ryarn.errors import SelfTestError, UserError
from ryarn.export import check as check_module
from ryarn.export import export, gguf_write, probe
from ryarn.export.check import ANSWER, REFERENCE
from ryarn.export.gguf_keys import check_model, check_type
from ryarn.export.gguf_tokenizer import pre_tokenizer, read_words
from ryarn.export.gguf_write import interleave
from ryarn.export.served import Served

SERVED = Served(256, 4.0, 1024, 5000.0, 16, 32, 1, True, 0.1 * float(np.log(4)) + 1, False, "yarn")


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        check_module,
        "ask_new_process",
        lambda folder: probe.main(folder, folder / REFERENCE, folder / ANSWER),
    )


def exported(folder: Path, shape: str, tokenizer: PreTrainedTokenizerBase, stored: str) -> Path:
    """A GGUF file of a tiny run, in a folder of its own."""
    settings = {**SHAPES[shape].settings, "attention_bias": False}
    base = make_base(folder / "base", replace(SHAPES[shape], settings=settings), tokenizer)
    out = export(make_run(folder / "run", base), folder / "out", form=stored)
    return next(out.folder.glob("*.gguf"))


def keys(path: Path) -> dict[str, Any]:
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize("shape", ["llama", "llama-untied", "qwen2", "qwen3"])
def test_a_file_read_back_is_the_adapter_run(
    shape: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = exported(tmp_path, shape, tokenizer, "f32")
    model = probe.load_gguf(path)
    adapter, _ = ryarn.load(tmp_path / "run", dtype="float32")
    tokens = torch.arange(3 * WINDOW)[None] * 7 % 300
    with torch.no_grad():
        mine, theirs = (run(tokens).logits for run in (model, adapter))
    assert mine.std() > 1
    assert torch.allclose(mine, theirs, atol=1e-2)
    assert (mine - theirs).square().mean().sqrt() < 1e-4


@pytest.mark.parametrize(
    ("stored", "kind", "low", "high"), [("f16", "F16", 1e-4, 1e-2), ("q8_0", "Q8_0", 1e-2, 0.2)]
)
def test_matrices_are_packed_and_vectors_are_not(
    stored: str,
    kind: str,
    low: float,
    high: float,
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    base = make_base(tmp_path / "base", SHAPES["qwen2"], tokenizer)
    out = export(make_run(tmp_path / "run", base), tmp_path / "out", form=stored)
    assert low < max(row.difference for row in out.rows) < high
    tensors = gguf.GGUFReader(next(out.folder.glob("*.gguf"))).tensors
    assert {tensor.tensor_type.name for tensor in tensors if len(tensor.shape) == 2} == {kind}
    assert {tensor.tensor_type.name for tensor in tensors if len(tensor.shape) == 1} == {"F32"}
    assert any("attn_q.bias" in tensor.name for tensor in tensors)


def test_q8_0_leaves_rows_that_it_cannot_pack(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    shape = replace(SHAPES["llama"], settings={"intermediate_size": 80})
    base = make_base(tmp_path / "base", shape, tokenizer)
    out = export(make_run(tmp_path / "run", base), tmp_path / "out", form="q8_0").folder
    tensors = gguf.GGUFReader(next(out.glob("*.gguf"))).tensors
    kinds = {tensor.name.split(".", 2)[-1]: tensor.tensor_type.name for tensor in tensors}
    assert (kinds["ffn_down.weight"], kinds["ffn_up.weight"]) == ("F16", "Q8_0")


def test_the_keys_say_the_model_and_yarn(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    path = exported(tmp_path, "llama", tokenizer, "f32")
    said = keys(path)
    expected = {
        "general.architecture": "llama",
        "general.file_type": 0,
        "llama.context_length": 4 * WINDOW,
        "llama.rope.freq_base": 5000.0,
        "llama.rope.dimension_count": 16,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": WINDOW,
        "llama.rope.scaling.yarn_ext_factor": 1.0,
        "llama.rope.scaling.attn_factor": 1.0,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 16,
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.vocab_size": len(tokenizer),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.padding_token_id": tokenizer.pad_token_id,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": tokenizer.chat_template,
    }
    assert {key: said.get(key) for key in expected} == expected
    assert "output.weight" not in {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    modelfile = path.with_name("Modelfile").read_text().splitlines()
    assert modelfile[0] == f"FROM ./{path.name}"
    assert f"PARAMETER num_ctx {4 * WINDOW}" in modelfile
    assert 'PARAMETER stop "<|im_end|>"' in modelfile


def test_a_run_without_yarn_has_no_yarn_keys(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    base = make_base(tmp_path / "base", SHAPES["llama"], tokenizer)
    run = make_run(tmp_path / "run", base, name="lora")
    said = keys(next(export(run, tmp_path / "out", form="f32").folder.glob("*.gguf")))
    assert said["llama.context_length"] == WINDOW
    assert not any("rope.scaling" in key for key in said)


def test_the_tokenizer_reads_back(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    path = exported(tmp_path, "llama", tokenizer, "f32")
    again = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = "<|im_start|>user\nWhere is Mary? She went to the kitchen 12 times.<|im_end|>"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.eos_token == tokenizer.eos_token
    assert again.chat_template == tokenizer.chat_template
    kinds = keys(path)["tokenizer.ggml.token_type"]
    assert kinds[tokenizer.eos_token_id] == gguf.TokenType.CONTROL
    assert kinds[tokenizer("a")["input_ids"][0]] == gguf.TokenType.NORMAL


def test_olmo3_is_written_with_its_sliding_layers(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    base = make_base(tmp_path / "base", SHAPES["olmo3"], tokenizer)
    out = export(make_run(tmp_path / "run", base), tmp_path / "out", form="f16")
    assert out.rows == ()
    path = next(out.folder.glob("*.gguf"))
    said = keys(path)
    assert said["general.architecture"] == "olmo2"
    assert said["olmo2.attention.sliding_window"] == 64
    assert said["olmo2.attention.sliding_window_pattern"] == [True, True, True, False]
    assert said["olmo2.rope.scaling.factor"] == 4
    assert said["olmo2.rope.freq_base_swa"] == 500000
    assert "output.weight" in {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    assert "were not compared" in (out.folder / "README.md").read_text()


def test_a_file_that_only_we_read_is_read_back(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_base(tmp_path / "base", SHAPES["olmo3"], tokenizer)
    values = gguf_write._values

    def spoiled(name: str, *rest: Any) -> Any:
        return values(name, *rest) * np.float32(1.02 if name == "blk.3.attn_k.weight" else 1)

    monkeypatch.setattr(gguf_write, "_values", spoiled)
    with pytest.raises(SelfTestError, match=r"blk.3.attn_k.weight"):
        export(make_run(tmp_path / "run", base), tmp_path / "out", form="f32")


def test_an_attention_factor_that_a_file_multiplies_counts(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Served, "attention_multiplier", 1.5)
    with pytest.raises(SelfTestError, match="another attention factor"):
        exported(tmp_path, "llama", tokenizer, "f32")


def test_rows_are_interleaved_a_head_at_a_time() -> None:
    rows = torch.arange(8)[:, None]
    assert interleave(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


# What llama.cpp can't say.


def config(**settings: Any) -> Any:
    given = {"model_type": "llama", "hidden_act": "silu", "head_dim": 16, **settings}
    return SimpleNamespace(**given)


def test_what_llama_cpp_computes_otherwise_is_refused() -> None:
    check_model(config(), SERVED)
    check_model(config(), replace(SERVED, factor=None, beta_fast=16))
    for served, said in (
        (replace(SERVED, beta_fast=16), "beta_fast = 16"),
        (replace(SERVED, truncate=False), "truncate = False"),
        (replace(SERVED, rotary_size=8), "8 of 16 dimensions"),
        (replace(SERVED, factor=None, rope_type="llama3"), "'llama3' RoPE"),
    ):
        with pytest.raises(UserError, match=said):
            check_model(config(), served)
    for settings, said in (
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"use_sliding_window": True}, "without its sliding window"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
    ):
        with pytest.raises(UserError, match=said):
            check_model(config(**settings), SERVED)
    with pytest.raises(UserError, match="no GGUF for model type 'gemma3'"):
        check_type("gemma3")


def spec(*parts: dict[str, Any], **model: Any) -> dict[str, Any]:
    sequence = {"type": "Sequence", "pretokenizers": list(parts)}
    kept = {"type": "BPE", "merges": [["a", "b"]], **model}
    return {"model": kept, "pre_tokenizer": sequence, "normalizer": None}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
RAW = {**BYTES, "use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(numbers: str) -> dict[str, Any]:
    """How Llama 3 and Qwen 2 split text, written as in their own files but for the numbers."""
    pattern = (
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" + numbers + "|"
        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    )
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (spec(BYTES), "gpt-2"),
        (spec(DIGITS, BYTES), "smollm"),
        (spec(split("\\p{N}"), RAW), "qwen2"),
        (spec(split("\\p{N}{1,3}"), RAW, ignore_merges=True), "llama-bpe"),
        (spec(split("\\p{N}{1,3}"), RAW), "dbrx"),
        ({**spec(split("\\p{N}"), RAW), "normalizer": {"type": "NFC"}}, "qwen2"),
    ],
)
def test_known_ways_to_split_text_have_their_name(given: dict[str, Any], name: str) -> None:
    assert pre_tokenizer(given) == name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (spec(split("\\p{N}{2}"), RAW), "Split then ByteLevel"),
        (spec(split("\\p{N}"), RAW, ignore_merges=True), "no known name"),
        (spec(split("\\p{N}"), BYTES), "no known name"),
        (spec(RAW), "no known name"),
        (spec(DIGITS, RAW), "no known name"),
        (spec({**BYTES, "add_prefix_space": True}), "add_prefix_space"),
        (spec(BYTES, byte_fallback=True), "no byte-level BPE"),
        (spec(BYTES, type="Unigram"), "no byte-level BPE"),
        (spec(BYTES, merges=[]), "no merges"),
        ({**spec(BYTES), "normalizer": {"type": "Lowercase"}}, "'Lowercase'"),
    ],
)
def test_other_ways_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        pre_tokenizer(given)


def test_a_refusal_comes_before_the_weights(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "tiny:llama")
    with pytest.raises(UserError, match="no merges"):
        export(run, tmp_path / "out", form="f16")
    assert not (tmp_path / "out.partial").exists()


def test_a_base_from_gguf_keeps_its_tokens_and_splits_as_in_training(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    first = exported(tmp_path, "llama", tokenizer, "f32")
    words = read_words(tokenizer, first)
    assert (words.split, words.note) == ("gpt-2", None)
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "llama")
    words = replace(words, split="smollm")
    words.add_keys(writer, 0)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    other = keys(tmp_path / "other.gguf")
    before = {key: value for key, value in keys(first).items() if key.startswith("tokenizer.")}
    assert {key: other[key] for key in before} == {**before, "tokenizer.ggml.pre": "smollm"}
    again = read_words(tokenizer, tmp_path / "other.gguf")
    assert again.split == "gpt-2"
    assert "'smollm'" in str(again.note)
    odd = copy.deepcopy(tokenizer)
    odd.backend_tokenizer.pre_tokenizer = None
    assert read_words(odd, tmp_path / "other.gguf").split == "smollm"


def test_a_base_from_gguf_is_exported(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    first = exported(tmp_path, "qwen2", tokenizer, "f32")
    plain = first.rename(tmp_path / "plain.gguf")
    run = make_run(tmp_path / "again", plain)
    for form in ("merged", "unmerged", "f32"):
        out = export(run, tmp_path / f"out-{form}", form=form)
        assert all(row.difference < 1e-4 for row in out.rows)
