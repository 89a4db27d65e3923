"""Randomized YaRN in a plain `transformers.Trainer`: the four lines marked `# ryarn`.

    python examples/transformers_trainer.py runs/plain
    python examples/transformers_trainer.py runs/plain --resume

It runs in seconds on a tiny random-weight model. For a real one, load it as usual:

    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")
    tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen3-0.6B")
"""

from __future__ import annotations

import sys

from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

from ryarn import ExtensionCallback, extend, make_method  # ryarn
from ryarn.tiny import build

model, tokenizer = build("llama")
sentences = [f"Room {n} is {'north' if n % 2 else 'south'} of room {n + 1}." for n in range(32)]
rows = [tokenizer(sentence)["input_ids"] for sentence in sentences]
dataset = Dataset.from_list([{"input_ids": row, "labels": row} for row in rows])

# Rows of some 30 tokens; spans beyond the window (4096 here) are what the factor 4 is for.
method = make_method("randomized-yarn", factor=4, spans=[4096, 8192, 16384])  # ryarn
extension = extend(model, method)  # ryarn

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=4,
        num_train_epochs=3,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=10,
        report_to="none",
    ),
    train_dataset=dataset,
    data_collator=DataCollatorForSeq2Seq(tokenizer),
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
