"""DPO: chosen and rejected answers at the same positions, in the policy and in the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

from integrations.inside import Pass, watch
from ryarn import ExtensionCallback, UserError, extend, make_method
from ryarn.rope.remap import DrawStats
from ryarn.tiny import build

PAIRS = Dataset.from_list(
    [
        {
            "prompt": [{"role": "user", "content": f"What is north of room {n}?"}],
            "chosen": [{"role": "assistant", "content": f"Room {n + 1}."}],
            "rejected": [{"role": "assistant", "content": f"It may be room {n - 1}."}],
        }
        for n in range(8)
    ]
)


def trainer_of(folder: Path, *, adapter: bool = True, **changes: Any) -> tuple[Any, Any]:
    model, tokenizer = build("llama")
    extension = extend(model, make_method("randomized-yarn", factor=4, spans=[4096, 16384]), seed=1)
    options: dict[str, Any] = {"per_device_train_batch_size": 2, "max_steps": 2, **changes}
    trainer = DPOTrainer(
        model=model,
        args=DPOConfig(
            output_dir=str(folder),
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            bf16=False,
            use_cpu=True,
            activation_checkpointing=False,
            **options,
        ),
        train_dataset=PAIRS,
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")
        if adapter
        else None,
        callbacks=[ExtensionCallback(extension)],
    )
    return trainer, extension


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> list[Pass]:
    trainer, extension = trainer_of(tmp_path_factory.mktemp("dpo"), gradient_accumulation_steps=2)
    with watch(extension) as seen:
        trainer.train()
    return seen


def split(seen: list[Pass]) -> tuple[list[Pass], list[Pass]]:
    return [p for p in seen if p.gradients], [p for p in seen if not p.gradients]


def test_a_pair_has_the_same_positions_in_its_prompt_and_beyond(passes: list[Pass]) -> None:
    policy, _ = split(passes)
    assert len(policy) == 4  # two steps of two micro-batches
    for seen in policy:
        chosen, rejected = seen.positions.chunk(2)
        real = (seen.mask[: len(chosen)] * seen.mask[len(chosen) :]).bool()
        assert torch.equal(chosen[real], rejected[real])
        assert not torch.equal(chosen[0][real[0]], chosen[1][real[1]][: int(real[0].sum())])


def test_the_reference_reads_at_the_positions_of_the_policy(passes: list[Pass]) -> None:
    policy, reference = split(passes)
    assert len(policy) == len(reference)
    for one, other in zip(policy, reference, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.positions, other.positions)


def test_positions_go_beyond_the_window_and_change_with_the_step(passes: list[Pass]) -> None:
    policy, _ = split(passes)
    assert max(int(seen.positions.max()) for seen in policy) > 4096
    assert len({seen.positions.max().item() for seen in policy}) == len(policy)


def test_the_first_loss_is_that_of_no_preference(tmp_path: Path) -> None:
    """LoRA starts at zero, so policy and reference agree: log 2, unless their positions differ."""
    trainer, _ = trainer_of(tmp_path, max_steps=1)
    trainer.train()
    first = trainer.state.log_history[0]
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert first["positions/documents"] == 8


def test_references_taken_before_training_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set precompute_ref_log_probs = false"):
        trainer_of(tmp_path, precompute_ref_log_probs=True)


def test_a_model_without_an_adapter_is_refused(tmp_path: Path) -> None:
    trainer, _ = trainer_of(tmp_path)
    trainer.callback_handler.model = trainer.model.get_base_model()
    del trainer.callback_handler.model.peft_config
    with pytest.raises(UserError, match="give no ref_model"):
        trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)


def test_a_reference_model_beside_the_adapter_is_seen_in_the_first_step(tmp_path: Path) -> None:
    trainer, extension = trainer_of(tmp_path)
    trainer.ref_model = build("llama")[0].eval()
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(trainer.ref_model)
    with pytest.raises(UserError, match="4 answers were read by the policy and 0 by the reference"):
        trainer.train()
    assert isinstance(extension.stats, DrawStats)


@pytest.mark.parametrize("rows", [2, 3])
def test_rows_that_are_no_pairs_are_refused(rows: int) -> None:
    model, _ = build("llama")
    extension = extend(model, make_method("randomized-yarn", factor=4, spans=[4096]))
    extension.pair_rows()
    extension.set_progress(0, 1)
    model.train()
    # Two rows of two documents each, or three rows of one.
    ordinary = torch.tensor([[0, 1, 2, 0, 1, 2] if rows == 2 else [0, 1, 2, 3, 4, 5]])
    with pytest.raises(UserError, match=f"a preference batch of {rows} rows holds"):
        model(
            input_ids=torch.arange(6).repeat(rows, 1) + 60,
            position_ids=ordinary.repeat(rows, 1),
            use_cache=False,
        )
