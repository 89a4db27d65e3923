"""YaRN keys set in a copy of an existing GGUF file, every weight as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ryarn.errors import UserError
from ryarn.export import set_yarn_keys
from tiny_run import command


def make_file(
    path: Path, architecture: str = "llama", tensors: tuple[str, ...] = (), **extra: Any
) -> Path:
    """A GGUF file with tensors of several types and keys of several kinds."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(8192)
    writer.add_rope_freq_base(100000.0)
    writer.add_token_list(["a", "<|end|>", "é\u2581"])
    writer.add_token_types([1, 3, 1])
    writer.add_eos_token_id(1)
    writer.add_array("general.languages", ["en", "de"])
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_uint64("some.count", 2**40)
    for key, value in extra.items():
        getattr(writer, f"add_{key}")(value)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 64)).astype(np.float32)
    writer.add_tensor("token_embd.weight", weights)
    writer.add_tensor("blk.0.attn_q.weight", weights.astype(np.float16))
    packed = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_up.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", weights[0, :5])
    for name in tensors:
        writer.add_tensor(name, weights[0])
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    return path


def keys(path: Path) -> dict[str, Any]:
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


def types(path: Path) -> dict[str, list[int]]:
    return {key: field.types for key, field in gguf.GGUFReader(path).fields.items()}


def blobs(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        tensor.name: (tensor.tensor_type.name, tensor.shape.tolist(), tensor.data.tobytes())
        for tensor in gguf.GGUFReader(path).tensors
    }


def test_yarn_is_set_and_all_else_stays(tmp_path: Path) -> None:
    source = make_file(tmp_path / "in.gguf")
    before = source.read_bytes()
    done = set_yarn_keys(source, 4, tmp_path / "new" / "out.gguf")
    assert (done.original_length, done.window, done.before) == (8192, 32768, None)
    old, new = keys(source), keys(done.path)
    assert new["llama.context_length"] == 32768
    scaling = {k: v for k, v in new.items() if k.startswith("llama.rope.scaling.")}
    assert scaling == {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 8192,
        "llama.rope.scaling.yarn_ext_factor": 1.0,
        "llama.rope.scaling.attn_factor": 1.0,
    }
    same = [key for key in old if key not in ("llama.context_length", "GGUF.kv_count")]
    assert {key: new[key] for key in same} == {key: old[key] for key in same}
    assert set(new) - set(old) == set(scaling)
    assert {key: types(done.path)[key] for key in same} == {k: types(source)[k] for k in same}
    assert list(blobs(done.path).items()) == list(blobs(source).items())
    assert source.read_bytes() == before
    assert sorted(path.name for path in done.path.parent.iterdir()) == ["Modelfile", "out.gguf"]
    assert (done.path.parent / "Modelfile").read_text().splitlines()[-2:] == [
        "PARAMETER num_ctx 32768",
        'PARAMETER stop "<|end|>"',
    ]


def test_yarn_is_replaced_not_stacked_and_its_attention_factor_kept(tmp_path: Path) -> None:
    source = make_file(
        tmp_path / "in.gguf",
        rope_scaling_type=gguf.RopeScalingType.YARN,
        rope_scaling_factor=2.0,
        rope_scaling_orig_ctx_len=4096,
        rope_scaling_attn_factors=1.25,
        rope_scaling_finetuned=True,
    )
    done = set_yarn_keys(source, 8, tmp_path / "out.gguf")
    assert (done.original_length, done.window, done.before) == (4096, 32768, 2.0)
    new = keys(done.path)
    assert new["llama.rope.scaling.factor"] == 8
    assert new["llama.rope.scaling.original_context_length"] == 4096
    assert new["llama.rope.scaling.attn_factor"] == 1.25
    assert "llama.rope.scaling.finetuned" not in new


def test_another_alignment_is_kept(tmp_path: Path) -> None:
    source = make_file(tmp_path / "in.gguf", custom_alignment=64)
    done = set_yarn_keys(source, 2, tmp_path / "out.gguf")
    assert gguf.GGUFReader(done.path).alignment == 64
    assert blobs(done.path) == blobs(source)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"architecture": "gemma3"}, "architecture 'gemma3'"),
        ({"rope_scaling_type": gguf.RopeScalingType.LONGROPE}, "already scaled"),
        ({"rope_scaling_factor": 2.0}, "already scaled"),
        ({"tensors": ("rope_freqs.weight",)}, "already scaled"),
        ({"uint16": None}, "one of several parts"),
    ],
)
def test_what_yarn_does_not_go_onto_is_refused(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    if "uint16" in settings:
        source = split_part(tmp_path / "in.gguf")
    else:
        source = make_file(tmp_path / "in.gguf", **settings)
    with pytest.raises(UserError, match=said):
        set_yarn_keys(source, 4, tmp_path / "out.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf"]


def split_part(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_uint16("split.count", 2)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    return path


def test_bad_files_and_names_are_refused(tmp_path: Path) -> None:
    source = make_file(tmp_path / "in.gguf")
    (tmp_path / "text.gguf").write_text("no GGUF at all, but some text that is long enough")
    with pytest.raises(UserError, match="no GGUF file"):
        set_yarn_keys(tmp_path / "text.gguf", 4, tmp_path / "out.gguf")
    with pytest.raises(UserError, match="no such file"):
        set_yarn_keys(tmp_path / "none.gguf", 4, tmp_path / "out.gguf")
    with pytest.raises(UserError, match="exists"):
        set_yarn_keys(source, 4, source)
    with pytest.raises(UserError, match=r"the ending .gguf"):
        set_yarn_keys(source, 4, tmp_path / "out")
    with pytest.raises(UserError, match=r"--factor 0\.5"):
        set_yarn_keys(source, 0.5, tmp_path / "out.gguf")
    with pytest.raises(UserError, match="round differently"):
        set_yarn_keys(source, 1.00001, tmp_path / "out.gguf")


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = make_file(tmp_path / "in.gguf"), tmp_path / "out.gguf"
    assert command(monkeypatch, "export", "--gguf-from", source, "--factor", 4, "--to", out) == 0
    assert f"{out}: YaRN factor 4 on 8192 tokens, context 32768" in capsys.readouterr().out
