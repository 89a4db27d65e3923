"""transformers' Trainer and TRL's SFTTrainer: positions and scaling, watched from inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from peft import LoraConfig
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from integrations.inside import report, watch
from ryarn import ExtensionCallback, extend, make_method
from ryarn.tiny import build

STEPS, SEED = 2, 5
COMMON: dict[str, Any] = {
    "max_steps": STEPS,
    "gradient_accumulation_steps": 2,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
}


def setting(name: str) -> tuple[Any, Any, Any, Dataset]:
    model, tokenizer = build("llama")
    texts = [f"Room {n} is north of room {n + 1}." + " Yes." * (n % 3) for n in range(16)]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    dataset = Dataset.from_list([{"input_ids": row, "labels": row} for row in rows])
    method = make_method(name, factor=4, spans=[4096, 16384])
    return model, tokenizer, extend(model, method, seed=SEED), dataset


def transformers_trainer(folder: Path) -> tuple[Any, Any]:
    model, tokenizer, extension, dataset = setting("randomized-yarn")
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=4, seed=SEED, **COMMON
        ),
        train_dataset=dataset,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
        callbacks=[ExtensionCallback(extension)],
    )
    return trainer, extension


def trl_trainer(folder: Path, name: str = "randomized-yarn", **changes: Any) -> tuple[Any, Any]:
    model, tokenizer, extension, dataset = setting(name)
    options = {"per_device_train_batch_size": 4, "activation_checkpointing": False, **changes}
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(output_dir=str(folder), bf16=False, seed=SEED, **COMMON, **options),
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[ExtensionCallback(extension)],
    )
    return trainer, extension


PACKED = {"packing": True, "max_length": 256, "per_device_train_batch_size": 1}


@pytest.mark.parametrize("kind", ["transformers", "trl packed"])
def test_every_document_is_at_the_positions_of_its_draw(kind: str, tmp_path: Path) -> None:
    if kind == "transformers":
        trainer, extension = transformers_trainer(tmp_path)
    else:
        trainer, extension = trl_trainer(tmp_path, **(PACKED if "packed" in kind else {}))
    with watch(extension) as seen:
        trainer.train()
    found = report(extension, seen, STEPS, SEED)
    assert found["steps"] == [0, 1]
    assert found["documents"] == found["as_drawn"] >= 8
    assert 4096 < found["largest"] < 16384
    assert found["yarn"]
    assert found["factor"] == 4
    if "packed" in kind:
        assert min(found["per_pass"]) > 1


def test_trl_keeps_the_sentences_of_packed_documents_whole(tmp_path: Path) -> None:
    trainer, extension = trl_trainer(tmp_path, "sentence-yarn", **PACKED)
    with watch(extension) as seen:
        trainer.train()
    found = report(extension, seen, STEPS, SEED)
    assert min(found["per_pass"]) > 1
    assert found["largest"] > 1024
    assert found["jumps_after"] == [trainer.processing_class.convert_tokens_to_ids(".")]
