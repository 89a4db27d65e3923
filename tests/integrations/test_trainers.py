"""Axolotl, LLaMA-Factory and Unsloth, each in an environment of its own, watched from inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from environments import python_of, run_in
from integrations.other_runs import (
    SEED,
    STEPS,
    axolotl_config,
    llamafactory_config,
    make_base,
    write_messages,
)
from ryarn.contract import Contract
from ryarn.tiny import build

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def result(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> None:
    """Every document at exactly the positions of its address, under live YaRN."""
    assert found["documents"] == found["as_drawn"] > 0
    assert found["steps"] == list(range(STEPS))
    assert found["yarn"]
    assert found["factor"] == 4
    assert found["largest"] > 8192


SENTENCES = {"name": "sentence-yarn", "factor": 4, "spans": [16384]}


def check_sentences(found: dict[str, Any]) -> None:
    """Positions jump, and where sentences end alone: the trainer's tokenizer was read."""
    _, tokenizer = build("llama")
    closing = tokenizer.convert_tokens_to_ids([".", "?"])
    assert found["jumps_after"]
    assert set(found["jumps_after"]) <= set(closing)
    assert found["largest"] > 8192
    assert found["yarn"]


def check_saved(out: Path) -> None:
    for folder in (out, out / f"checkpoint-{STEPS}"):
        contract = Contract.load(folder)
        assert (contract.method, contract.train_factor) == ("randomized-yarn", 4)
        assert contract.spans == (4096, 8192, 16384)
        weights = load_file(folder / "adapter_model.safetensors")
        assert any(value.abs().max() > 0 for name, value in weights.items() if "lora_B" in name)


def test_axolotl_packs_and_each_document_gets_its_draw(tmp_path: Path) -> None:
    python_of("axolotl")
    script = HERE / "axolotl_probe.py"
    found = result(run_in("axolotl", script, axolotl_config(tmp_path), str(STEPS), str(SEED)))
    check(found)
    assert max(found["per_pass"]) > 1
    check_saved(tmp_path / "out")


def test_axolotl_keeps_sentences_whole(tmp_path: Path) -> None:
    python_of("axolotl")
    config = axolotl_config(tmp_path, ryarn=SENTENCES)
    found = result(run_in("axolotl", HERE / "axolotl_probe.py", config, str(STEPS), str(SEED)))
    assert max(found["per_pass"]) > 1
    check_sentences(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ryarn": {"name": "randomized-yarn", "facter": 4}}, "did you mean 'factor'?"),
        ({"ryarn": None}, "the section ryarn is missing"),
        ({"context_parallel_size": 2}, "context_parallel_size = 2: a row would be cut up"),
    ],
)
def test_axolotl_refuses_bad_keys_before_it_loads(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    python_of("axolotl")
    script = HERE / "axolotl_probe.py"
    with pytest.raises(AssertionError, match=message.replace("?", "[?]")):
        run_in("axolotl", script, axolotl_config(tmp_path, **changes), str(STEPS), str(SEED))
    assert not (tmp_path / "prepared").exists()


PACKINGS = {
    "padded": [],
    "packed": ["packing=true", "neat_packing=true"],
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_llamafactory_trains_at_drawn_positions(packing: str, tmp_path: Path) -> None:
    python_of("llamafactory")
    config = llamafactory_config(tmp_path)
    script = HERE / "llamafactory_probe.py"
    found = result(
        run_in("llamafactory", script, config, str(STEPS), str(SEED), *PACKINGS[packing])
    )
    check(found)
    if packing == "packed":
        assert found["packing"] == ["mask [2, 1, 512, 512]"]
        assert min(found["per_pass"]) > 2
    check_saved(tmp_path / "out")


@pytest.mark.parametrize("packing", PACKINGS)
def test_llamafactory_keeps_sentences_whole(packing: str, tmp_path: Path) -> None:
    python_of("llamafactory")
    config = llamafactory_config(tmp_path, ryarn=SENTENCES)
    script = HERE / "llamafactory_probe.py"
    found = result(
        run_in("llamafactory", script, config, str(STEPS), str(SEED), *PACKINGS[packing])
    )
    check_sentences(found)


def test_llamafactory_dpo_shares_positions_in_a_pair(tmp_path: Path) -> None:
    python_of("llamafactory")
    config = llamafactory_config(tmp_path, stage="dpo", dataset="pairs")
    script = HERE / "llamafactory_probe.py"
    found = result(run_in("llamafactory", script, config, str(STEPS), str(SEED)))
    assert found["yarn"]
    assert found["shared"]
    assert found["reference"]
    assert found["largest"] > 8192


def test_unsloth_without_a_gpu_trains_and_its_gpu_path_is_refused(tmp_path: Path) -> None:
    python_of("unsloth")
    base, rows = make_base(tmp_path), write_messages(tmp_path)
    found = result(run_in("unsloth", HERE / "unsloth_probe.py", base, rows, tmp_path / "out"))
    check(found["trained"])
    assert found["gpu_path"]["rotary"] == "unsloth.models.llama"
    assert "runs code of unsloth.models.llama" in found["gpu_path"]["error"]
