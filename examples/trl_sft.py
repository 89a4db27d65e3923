"""Randomized YaRN in TRL's `SFTTrainer` with LoRA: the four lines marked `# ryarn`.

    python examples/trl_sft.py runs/sft
    python examples/trl_sft.py runs/sft --resume

It runs in seconds on a tiny random-weight model. For a real one, load it as usual and use your own
dataset; packing (`packing=True`) and padding-free batches (`padding_free=True`) work, too:

    model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
    tokenizer = AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")

The adapter's folder gets a `ryarn.json`: `ryarn.load(folder)` puts base, YaRN and adapter together.
"""

from __future__ import annotations

import sys

from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from ryarn import ExtensionCallback, extend, make_method  # ryarn
from ryarn.tiny import build

model, tokenizer = build("llama")
dataset = Dataset.from_list(
    [
        {
            "prompt": [{"role": "user", "content": f"What is north of room {n}?"}],
            "completion": [{"role": "assistant", "content": f"Room {n + 1}."}],
        }
        for n in range(32)
    ]
)

# Rows of some 40 tokens; spans beyond the window (4096 here) are what the factor 4 is for.
method = make_method("randomized-yarn", factor=4, spans=[4096, 8192, 16384])  # ryarn
extension = extend(model, method)  # ryarn

trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=sys.argv[1],
        per_device_train_batch_size=4,
        num_train_epochs=3,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=10,
        report_to="none",
        bf16=False,  # the tiny model is float32; leave this out for a real one
    ),
    train_dataset=dataset,
    processing_class=tokenizer,
    peft_config=LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"),
    callbacks=[ExtensionCallback(extension)],  # ryarn
)
trainer.train(resume_from_checkpoint="--resume" in sys.argv)
trainer.save_model()

for entry in trainer.state.log_history:
    if "loss" in entry:
        print(
            f"step {entry['step']:>2}  loss {entry['loss']:.6f}  span {entry['positions/span']:>5}"
            f"  largest position {entry['positions/max']:>5}"
        )
