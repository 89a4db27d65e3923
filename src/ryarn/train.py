"""`ryarn train`: LoRA fine-tuning on short rows with TRL, under a method (paper, appendix B.2)."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ryarn.chat import completion_ids, prompt_ids
from ryarn.checkpoints import check_loadable, drop_torn, loading
from ryarn.counting import counting
from ryarn.errors import UserError
from ryarn.method import Method
from ryarn.recipe import Recipe, TrainConfig, recipe_method
from ryarn.records import Example
from ryarn.runs import CHECKPOINTS, RUN, check_folder, read_json, save_recipe, write_json
from ryarn.tasks import Task
from ryarn.tasks.overlap import check_apart
from ryarn.tasks.registry import make_task


@dataclass(frozen=True)
class Rows:
    """Tokenized rows.

    Attributes:
        rows: One dict a row: `id`, `input_ids`, `labels` (-100 on the prompt).
        dropped: How many did not fit `max_length`.
        fingerprint: SHA-256 over ids and tokens, in order.
        notes: What the task found in its data, a sentence each.
    """

    rows: list[dict[str, Any]]
    dropped: int
    fingerprint: str
    notes: tuple[str, ...] = ()

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [len(row["input_ids"]) for row in self.rows]


def encode(examples: Iterable[Example], tokenizer: Any, max_length: int) -> Rows:
    """Turn examples into tokens and labels; a row that does not fit is dropped, never cut.

    Args:
        examples: The task's examples.
        tokenizer: The model's tokenizer, with a chat template.
        max_length: Longest row in tokens.
    """
    rows, dropped, digest = [], 0, hashlib.sha256()
    for example in examples:
        prompt = prompt_ids(tokenizer, example.prompt)
        completion = completion_ids(tokenizer, example.completion)
        if len(prompt) + len(completion) > max_length:
            dropped += 1
            continue
        tokens = prompt + completion
        labels = [-100] * len(prompt) + completion
        rows.append({"id": example.id, "input_ids": tokens, "labels": labels})
        digest.update(f"{example.id} {tokens}\n".encode())
    return Rows(rows, dropped, digest.hexdigest())


def train(recipe: Recipe, *, resume: bool = False, callbacks: Sequence[Any] = ()) -> Path:
    """Train one adapter.

    Args:
        recipe: What to train; everything goes into the folder `recipe.output`.
        resume: Go on from the last whole checkpoint of an interrupted run.
        callbacks: Further callbacks of the trainer, after ours.

    Returns:
        The adapter's folder.

    Raises:
        UserError: Bad input, before the model is loaded wherever it can be seen before.
        TrainingError: A loss or gradient is not finite; what was trained before is kept.
        OSError: The disk refuses; what was trained before is kept.
    """
    method = recipe_method(recipe.method)
    if not method.trains:
        raise UserError(f"method {method.name!r} trains nothing: run ryarn evaluate")
    checkpoint = check_folder(recipe, resume=resume)
    _check_loggers(recipe.train.report_to)

    from ryarn.loading import check_method
    from ryarn.models import load_model, load_skeleton, load_tokenizer
    from ryarn.train_files import finish, lacks_held_out, noting_faults

    processes = _processes()
    task = make_task(recipe.train.data)
    check_apart(recipe.train.data, recipe.evaluate.data, recipe.evaluate.split)
    tokenizer = load_tokenizer(recipe.model)
    skeleton = load_skeleton(recipe.model)
    if skeleton is not None:
        check_method(skeleton, method)
    rows = encode(_made(task, tokenizer, "train"), tokenizer, recipe.train.max_length)
    rows = replace(rows, notes=tuple(getattr(task, "notes", ())))
    held_out = _held_out(task, tokenizer, recipe.train)
    _check_rows(rows, method, recipe.train)
    if checkpoint is not None:
        check_loadable(checkpoint)
        _check_resumed(recipe, rows, processes.num_processes)
    model, tokenizer = load_model(recipe.model, tokenizer)
    check_method(model, method)
    # Every process has looked at the run folder before the first one writes into it.
    processes.wait_for_everyone()
    trainer = _make_trainer(recipe, method, model, tokenizer, rows, held_out)
    trainer.args.eval_on_start = held_out is not None and lacks_held_out(checkpoint)
    for callback in callbacks:
        trainer.add_callback(callback)
    if processes.is_main_process:
        save_recipe(recipe)
        drop_torn(recipe.output / CHECKPOINTS)
    _describe(recipe, rows, held_out, trainer, checkpoint)
    with noting_faults(recipe, trainer):
        with loading(checkpoint):
            trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        return finish(recipe, trainer)


def _processes() -> Any:
    """The processes that train together: one, or those of `accelerate launch`."""
    import torch
    from accelerate import PartialState

    from ryarn.processes import check_launched

    check_launched()
    processes = PartialState(cpu=not torch.cuda.is_available())
    gpus = torch.cuda.device_count()
    if gpus > 1 and processes.num_processes == 1:
        raise UserError(
            f"{gpus} GPUs are visible to one process: start `accelerate launch -m ryarn train ...` "
            "to use them all, or set CUDA_VISIBLE_DEVICES to one of them"
        )
    return processes


def _check_loggers(names: list[str]) -> None:
    """See that the trainer's loggers are there before anything is loaded for them."""
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    for name in names:
        try:
            for logger in get_reporting_integration_callbacks([name]):
                logger()
        except (ImportError, RuntimeError, ValueError) as error:
            raise UserError(
                f"train.report_to = {name!r}: {' '.join(str(error).split())}"
            ) from error


def _check_resumed(recipe: Recipe, rows: Rows, processes: int) -> None:
    """A resumed run must see the rows it began with, in as many processes."""
    if not (recipe.output / RUN).is_file():
        return
    run = read_json(recipe.output / RUN)
    if run["data"]["fingerprint"] != rows.fingerprint:
        raise UserError(
            f"--resume: the training rows are not those that {str(recipe.output)!r} began with "
            f"({len(rows.rows)} rows now, {run['data']['rows']} then): restore the data, or start "
            "anew in another folder"
        )
    if run["processes"] != processes:
        raise UserError(
            f"--resume: {str(recipe.output)!r} began with {run['processes']} processes, not "
            f"{processes}, and would see other rows a step: start as many again"
        )


def _made(task: Task, tokenizer: Any, split: str) -> Iterator[Example]:
    rows = task.examples(tokenizer, split)
    return counting(rows, f"making {split} rows", shown=_processes().is_main_process)


def _held_out(task: Task, tokenizer: Any, config: TrainConfig) -> Rows | None:
    if not config.held_out_rows:
        return None
    # Spread over the split: a task yields by question type and length, or a file by topic.
    there = list(_made(task, tokenizer, "held-out"))
    wanted = min(config.held_out_rows, len(there))
    examples = [there[place * len(there) // wanted] for place in range(wanted)]
    rows = encode(examples, tokenizer, config.max_length)
    if not rows.rows:
        raise UserError(
            f"train.max_length = {config.max_length}: none of {rows.dropped} held-out rows fits "
            "it; raise it or set train.held_out_rows=0"
        )
    return rows


def _check_rows(rows: Rows, method: Method, config: TrainConfig) -> None:
    if not rows.rows:
        raise UserError(
            f"train.max_length = {config.max_length}: none of {rows.dropped} rows fits it; "
            "raise it or make shorter rows"
        )
    # A label on the first token would have no token before it to be predicted from.
    bare = [row["id"] for row in rows.rows if all(label == -100 for label in row["labels"][1:])]
    if bare:
        raise UserError(
            f"train.data: {len(bare)} of {len(rows.rows)} rows have no token to learn (the first: "
            f"{', '.join(repr(key[:80]) for key in bare[:3])}): give every row an answer"
        )
    if method.curriculum is None:
        return
    first = method.curriculum.spans[0]
    too_long = sum(length > first for length in rows.lengths)
    if 2 * too_long > len(rows.rows):
        raise UserError(
            f"method.spans starts at {first}, but {too_long} of {len(rows.rows)} rows are longer "
            f"(median {statistics.median(rows.lengths):.0f} tokens) and would keep contiguous "
            "positions: raise the spans or shorten the rows"
        )


def _make_trainer(
    recipe: Recipe, method: Method, model: Any, tokenizer: Any, rows: Rows, held_out: Rows | None
) -> Any:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import set_seed

    from ryarn.callback import ExtensionCallback
    from ryarn.rope import extend
    from ryarn.sft import LabelledLogitsTrainer
    from ryarn.train_files import LogCallback

    config = recipe.train
    # LoRA's first weights are drawn before the trainer seeds itself.
    set_seed(recipe.seed)
    extension = extend(model, method, seed=recipe.seed)
    trainer = LabelledLogitsTrainer(
        rows=rows.rows,
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows.rows),
        eval_dataset=Dataset.from_list(held_out.rows) if held_out else None,
        peft_config=LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            lora_dropout=config.lora_dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
        args=_arguments(recipe, model, held_out),
    )
    # First in line, so that every logger after it sees the spans.
    trainer.callback_handler.callbacks.insert(0, ExtensionCallback(extension))
    trainer.add_callback(LogCallback(recipe.output))
    return trainer


def _arguments(recipe: Recipe, model: Any, held_out: Rows | None) -> Any:
    import torch
    from trl import SFTConfig

    config = recipe.train
    return SFTConfig(
        output_dir=str(recipe.output / CHECKPOINTS),
        max_length=None,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation,
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=config.warmup_ratio,
        weight_decay=config.weight_decay,
        bf16=next(model.parameters()).dtype == torch.bfloat16,
        use_cpu=not torch.cuda.is_available(),
        activation_checkpointing=config.gradient_checkpointing,
        eval_strategy="epoch" if held_out else "no",
        save_steps=config.save_steps,
        save_total_limit=2,
        logging_steps=config.log_steps,
        # A step whose loss is no number is not taken at all.
        logging_nan_inf_filter=False,
        report_to=config.report_to or "none",
        dataloader_num_workers=config.workers,
        # Every adapter takes part in every step.
        ddp_find_unused_parameters=False,
        seed=recipe.seed,
    )


def _describe(
    recipe: Recipe, rows: Rows, held_out: Rows | None, trainer: Any, checkpoint: Path | None
) -> None:
    """Write what the run is made from, before it begins, and say how many rows were dropped."""
    from rich.console import Console

    from ryarn.models import describe_device
    from ryarn.versions import versions

    if not trainer.is_world_process_zero():
        return
    lengths = rows.lengths
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"{len(lengths)} rows of {min(lengths)} to {max(lengths)} tokens; dropped {rows.dropped} "
        f"longer than train.max_length = {recipe.train.max_length}"
    )
    for note in rows.notes:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(note)
    rope = _description(trainer)
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"RoPE: {rope}")
    run = {
        "status": "running",
        "resumed_from": checkpoint.name if checkpoint else None,
        "seed": recipe.seed,
        "data": {
            "rows": len(lengths),
            "dropped": rows.dropped,
            "tokens": sum(lengths),
            "longest": max(lengths),
            "fingerprint": rows.fingerprint,
            "held_out_rows": len(held_out.rows) if held_out else 0,
        },
        "trainable_parameters": sum(
            p.numel() for p in trainer.model.parameters() if p.requires_grad
        ),
        "rope": rope,
        "dtype": str(trainer.model.dtype).removeprefix("torch."),
        "device": describe_device(),
        "processes": trainer.accelerator.num_processes,
        "versions": versions(),
    }
    write_json(recipe.output / RUN, run)


def _description(trainer: Any) -> str:
    """What becomes of the model's RoPE, as its extension says."""
    from ryarn.callback import ExtensionCallback

    callbacks = trainer.callback_handler.callbacks
    extension = next(c.extension for c in callbacks if isinstance(c, ExtensionCallback))
    return str(extension.description)
