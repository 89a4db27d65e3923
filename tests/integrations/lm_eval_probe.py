"""Both evaluations of the same rows, in an environment with lm-evaluation-harness; prints JSON.

A real model answers through `ryarn evaluate` and through the harness's command line; then prepared
answers, right and wrong in all ways that the rules tell apart, go through both.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from ryarn.backends.echo import EchoBackend
from ryarn.config import build
from ryarn.evaluate import COMPLETIONS, EXAMPLES, SCORES, Budget, evaluate, run_evaluation
from ryarn.integrations.lm_eval import FOLDER
from ryarn.models import load_tokenizer
from ryarn.recipe import ModelConfig, Recipe
from ryarn.records import Example, read_jsonl
from ryarn.runs import EVALUATION
from ryarn.tasks.registry import make_task
from ryarn.tiny import build as build_tiny

BUDGET = 24
TASKS: dict[str, dict[str, Any]] = {
    "babilong": {"questions": ["qa1", "qa2", "qa3"], "lengths": [2048], "rows": 8},
    "mrcr": {"lengths": [3900], "rows": 20, "needles": [2]},
    "longbench-v2": {"edges": [64, 4000], "min_training_rows": 0},
}


def answer(number: int, example: Example) -> str:
    """One of the ways to be right or wrong, in turns."""
    ways = (
        example.completion,
        example.target,
        f" {example.completion}",
        "",
        example.completion.lower(),
        f"<think>{example.target[::-1]}</think>{example.completion}",
        f"<think>{example.completion}",
        example.completion[: len(example.completion) // 2] + "?",
        "answer: **A** the garden, the kitchen",
    )
    return ways[number % len(ways)]


def prepared_answer(answers: dict[str, str], example: Example) -> str:
    return answers[example.id]


class Prepared(LM):
    """Answers known in advance, by prompt."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__()
        self.answers = answers

    def generate_until(self, requests: Any) -> list[str]:
        return [self.answers[request.args[0]] for request in requests]

    loglikelihood = loglikelihood_rolling = generate_until


def recipe_of(task: str, base: Path, out: Path, source: str) -> Recipe:
    data = {"task": task, **TASKS[task]}
    data |= {"source": source} if task == "longbench-v2" else {}
    train = {"data": data, "max_length": 4096}
    return build(
        Recipe,
        {
            "model": {"name": str(base), "dtype": "float32"},
            "method": {"name": "zero-shot"},
            "train": train,
            "evaluate": {"data": data, "max_new_tokens": BUDGET, "batch_tokens": 1},
            "output": str(out),
        },
    )


def by_id(folder: Path, name: str) -> dict[str, Any]:
    return {row["id"]: row for row in read_jsonl(folder / name)}


def harness_rows(samples: list[dict[str, Any]], rules: list[str]) -> dict[str, Any]:
    return {
        sample["doc"]["id"]: {
            "text": sample["filtered_resps"][0],
            "scores": {rule: sample[rule] for rule in rules},
        }
        for sample in samples
    }


def ours(folder: Path) -> dict[str, Any]:
    texts, scores = by_id(folder, COMPLETIONS), by_id(folder, SCORES)
    return {k: {"text": texts[k]["text"], "scores": scores[k]["scores"]} for k in scores}


def command_line(task: str, base: Path, rows: Path, out: Path) -> list[dict[str, Any]]:
    """The samples that `lm_eval run` logs."""
    given = {"rows": str(rows), "max_gen_toks": BUDGET}
    sys.argv = [
        *("lm_eval", "run", "--model", "hf", "--include_path", str(FOLDER)),
        *("--model_args", f"pretrained={base},dtype=float32", "--device", "cpu"),
        *("--tasks", f"ryarn_{task.replace('-', '_')}", "--metadata", json.dumps(given)),
        *("--gen_kwargs", f"max_gen_toks={BUDGET}", "--batch_size", "1"),
        *("--log_samples", "--output_path", str(out)),
    ]
    cli_evaluate()
    [path] = out.rglob("samples_*.jsonl")
    return list(read_jsonl(path))


def main(folder: Path, source: str) -> None:
    base = folder / "base"
    model, tokenizer = build_tiny("llama")
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    found: dict[str, Any] = {}
    for task in TASKS:
        name = f"ryarn_{task.replace('-', '_')}"
        recipe = recipe_of(task, base, folder / task, source)
        folder_of_run = evaluate(recipe) or recipe.output / EVALUATION
        mine = ours(folder_of_run)
        rules = list(next(iter(mine.values()))["scores"])
        rows = folder_of_run / EXAMPLES
        theirs = command_line(task, base, rows, folder / f"{task}-harness")

        examples = [Example.from_json(row) for row in read_jsonl(rows)]
        answers = {e.id: answer(number, e) for number, e in enumerate(examples)}
        run_evaluation(
            examples,
            make_task(recipe.evaluate.data),
            EchoBackend(examples, partial(prepared_answer, answers)),
            load_tokenizer(ModelConfig(name=str(base))),
            folder / f"{task}-prepared",
            budget=Budget(4096, BUDGET),
            fingerprint={},
        )
        manager = TaskManager(
            include_path=str(FOLDER),
            metadata={"rows": str(rows), "tokenizer": str(base), "max_gen_toks": BUDGET},
        )
        docs = manager.load([name])["tasks"][name].dataset["test"]
        prepared = simple_evaluate(
            model=Prepared({doc["text"]: answers[doc["id"]] for doc in docs}),
            tasks=[name],
            task_manager=manager,
            bootstrap_iters=0,
        )
        found[task] = {
            "rules": rules,
            "model": [mine, harness_rows(theirs, rules)],
            "prepared": [
                ours(folder / f"{task}-prepared"),
                harness_rows(prepared["samples"][name], rules),
            ],
            "mean": {rule: prepared["results"][name][f"{rule},none"] for rule in rules},
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
