"""Randomized YaRN in TRL's `DPOTrainer` with LoRA: the four lines marked `# ryarn`.

    python examples/trl_dpo.py runs/dpo

It runs in seconds on a tiny random-weight model. The chosen and the rejected answer to a prompt get
the same positions, and so does the reference pass, which is the same model with its adapter off.
"""

from __future__ import annotations

import sys

from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

from ryarn import ExtensionCallback, extend, make_method  # ryarn
from ryarn.tiny import build

model, tokenizer = build("llama")
dataset = Dataset.from_list(
    [
        {
            "prompt": [{"role": "user", "content": f"What is north of room {n}?"}],
            "chosen": [{"role": "assistant", "content": f"Room {n + 1}."}],
            "rejected": [{"role": "assistant", "content": f"It may be room {n - 1}."}],
        }
        for n in range(32)
    ]
)

# Rows of some 60 tokens; spans beyond the window (4096 here) are what the factor 4 is for.
method = make_method("randomized-yarn", factor=4, spans=[4096, 8192, 16384])  # ryarn
extension = extend(model, method)  # ryarn

trainer = DPOTrainer(
    model=model,
    args=DPOConfig(
        output_dir=sys.argv[1],
        per_device_train_batch_size=4,
        num_train_epochs=3,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        bf16=False,  # the tiny model is float32; leave this out for a real one
    ),
    train_dataset=dataset,
    processing_class=tokenizer,
    peft_config=LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"),
    callbacks=[ExtensionCallback(extension)],  # ryarn
)
trainer.train()
trainer.save_model()

for entry in trainer.state.log_history:
    if "loss" in entry:
        print(
            f"step {entry['step']:>2}  loss {entry['loss']:.6f}  span {entry['positions/span']:>5}"
            f"  largest position {entry['positions/max']:>5}"
        )
