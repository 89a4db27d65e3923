"""A tiny base and a few rows on disk, in the layouts of other people's trainers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from ryarn.tiny import build

STEPS, SEED = 4, 3
SECTION = {"name": "randomized-yarn", "factor": 4, "spans": [4096, 8192, 16384]}


def chats() -> list[list[dict[str, str]]]:
    return [
        [
            {"role": "user", "content": f"What is north of room {n}?"},
            {"role": "assistant", "content": f"Room {n + 1}." * (1 + n % 3)},
        ]
        for n in range(48)
    ]


def make_base(folder: Path) -> Path:
    model, tokenizer = build("llama")
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder / "base"


def write_messages(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats()))
    return path


def write_yaml(path: Path, config: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(config))
    return path


def axolotl_config(folder: Path, **changes: Any) -> Path:
    config: dict[str, Any] = {
        "base_model": str(make_base(folder)),
        "plugins": ["ryarn.integrations.axolotl.RyarnPlugin"],
        "ryarn": SECTION,
        "datasets": [
            {"path": str(write_messages(folder)), "ds_type": "json", "type": "chat_template"}
        ],
        "dataset_prepared_path": str(folder / "prepared"),
        "output_dir": str(folder / "out"),
        "adapter": "lora",
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_target_linear": True,
        "lora_mlp_kernel": False,
        "lora_qkv_kernel": False,
        "lora_o_kernel": False,
        "sequence_len": 512,
        "sample_packing": True,
        "attn_implementation": "sdpa",
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "num_epochs": 1,
        "learning_rate": 1e-3,
        "optimizer": "adamw_torch",
        "lr_scheduler": "cosine",
        "bf16": False,
        "fp16": False,
        "tf32": False,
        "logging_steps": 1,
        "save_steps": 2,
        "dataloader_num_workers": 0,
        "seed": SEED,
    }
    return write_yaml(folder / "axolotl.yaml", config | changes)


def llamafactory_config(folder: Path, **changes: Any) -> Path:
    rows = [
        {
            "conversations": [{"from": "human", "value": question["content"]}],
            "chosen": {"from": "gpt", "value": answer["content"]},
            "rejected": {"from": "gpt", "value": "I can't say."},
        }
        for question, answer in chats()
    ]
    (folder / "pairs.json").write_text(json.dumps(rows))
    for row in rows:
        row["conversations"].append(row.pop("chosen"))  # type: ignore[attr-defined]
    (folder / "rows.json").write_text(json.dumps(rows))
    columns = {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
    files = {
        "rows": {"file_name": "rows.json", "formatting": "sharegpt"},
        "pairs": {
            "file_name": "pairs.json",
            "formatting": "sharegpt",
            "ranking": True,
            "columns": columns,
        },
    }
    (folder / "dataset_info.json").write_text(json.dumps(files))
    config: dict[str, Any] = {
        "model_name_or_path": str(make_base(folder)),
        "ryarn": SECTION,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_target": "all",
        "dataset_dir": str(folder),
        "dataset": "rows",
        "template": "empty",
        "cutoff_len": 512,
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 2,
        "report_to": "none",
        "use_cpu": True,
        "seed": SEED,
    }
    return write_yaml(folder / "llamafactory.yaml", config | changes)
