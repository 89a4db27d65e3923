# ruff: noqa: E402
"""Unsloth on a machine without a GPU, and the code that it runs on one; prints JSON.

Without a GPU Unsloth trains transformers' own modules: that is watched from inside. Then its GPU
path is put over transformers' classes by its own function, as loading a model on a GPU would do.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Unsloth leaves a folder where it runs.
os.chdir(Path(sys.argv[3]).parent)

from unsloth import FastLanguageModel  # isort: skip  (it wants to be first)
import torch
from datasets import Dataset
from inside import report, watch
from transformers import AutoConfig, AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from ryarn import ExtensionCallback, UserError, extend, make_method

STEPS, SEED = 4, 3
METHOD = make_method("randomized-yarn", factor=4, spans=[4096, 8192, 16384])


def train(base: Path, rows: Path, out: Path) -> dict[str, Any]:
    model, tokenizer = FastLanguageModel.from_pretrained(
        str(base), max_seq_length=512, load_in_4bit=False, dtype=torch.float32
    )
    model = FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16, lora_dropout=0)
    extension = extend(model, METHOD, seed=SEED)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(out),
            per_device_train_batch_size=2,
            max_steps=STEPS,
            logging_steps=1,
            report_to="none",
            bf16=False,
            seed=SEED,
        ),
        train_dataset=Dataset.from_list([json.loads(line) for line in rows.open()]),
        processing_class=tokenizer,
        callbacks=[ExtensionCallback(extension)],
    )
    with watch(extension) as seen:
        trainer.train()
    return report(extension, seen, STEPS, SEED)


def refusal(base: Path) -> dict[str, str]:
    from unsloth.models.llama import FastLlamaModel

    FastLlamaModel.pre_patch()
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))
    rotary = model.get_decoder().rotary_emb
    try:
        extend(model, METHOD)
    except UserError as error:
        return {"rotary": type(rotary).__module__, "error": str(error)}
    return {"rotary": type(rotary).__module__, "error": ""}


if __name__ == "__main__":
    base, rows, out = map(Path, sys.argv[1:4])
    print(json.dumps({"trained": train(base, rows, out), "gpu_path": refusal(base)}))
