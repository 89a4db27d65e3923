"""The evaluation stage: examples to completions to scores, row by row, restartable at any row."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ryarn.answering import check_answerer, make_answerer
from ryarn.backends import Backend, Prompt
from ryarn.chat import prompt_ids
from ryarn.counting import counting
from ryarn.disk import writing
from ryarn.errors import UserError
from ryarn.recipe import Recipe, recipe_method
from ryarn.records import Completion, Example, Score, read_jsonl, write_jsonl
from ryarn.runs import (
    EVALUATION,
    check_writable,
    read_json,
    write_json,
)
from ryarn.tasks import Task
from ryarn.thinking import THINKING, is_open
from ryarn.versions import versions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ryarn.recipe import Recipe

MANIFEST, COMPLETIONS, SCORES = "manifest.json", "completions.jsonl", "scores.jsonl"
EXAMPLES, SUMMARY = "examples.jsonl", "summary.json"
SKIPPED, FAILED = "skipped", "failed"
"""How rows without an answer finished."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens a row may take.

    Attributes:
        window: Longest prompt and answer together.
        max_new_tokens: Longest answer.
    """

    window: int
    max_new_tokens: int

    def fits(self, prompt_tokens: int) -> bool:
        """Whether a prompt leaves room for the longest answer."""
        return prompt_tokens + self.max_new_tokens <= self.window


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of the rows of one evaluation.

    Attributes:
        rows: All of them.
        scored: Rows with a score.
        skipped: Rows that did not fit into the window; they have no score.
        failed: Rows that the backend got no answer to; they have no score, and the next call asks
            again.
        cut: Rows whose answer spent the whole token budget.
        thinking: Rows whose answer ended inside a thinking block; they are not among `cut`.
        unparsed: Scored rows in which the official rule found no answer.
        reused: Rows found finished from an earlier, interrupted call.
        rule: Name of the official score.
        mean: Bin to mean official score; None where no row was scored.
        reasons: Why rows were skipped or failed, with counts.
    """

    rows: int
    scored: int
    skipped: int
    failed: int
    cut: int
    thinking: int
    unparsed: int
    reused: int
    rule: str
    mean: dict[int, float | None]
    reasons: dict[str, int]


def evaluate(recipe: Recipe) -> Path:
    """Evaluate what a recipe describes, after its training where its method has one.

    Returns:
        The evaluation's folder.

    Raises:
        UserError: The run folder holds another run, or the data is not usable.
    """
    from ryarn.models import load_tokenizer
    from ryarn.tasks.overlap import check_apart, is_checkable
    from ryarn.tasks.registry import make_task

    # What is cheap to refuse comes before the weights: folder, adapter and rows.
    check_writable(recipe.output)
    check_answerer(recipe)
    task = make_task(recipe.evaluate.data)
    if recipe_method(recipe.method).trains and is_checkable(recipe.train.data):
        check_apart(recipe.train.data, recipe.evaluate.data, recipe.evaluate.split)
    tokenizer = load_tokenizer(recipe.model)
    made = task.examples(tokenizer, recipe.evaluate.split)
    examples = list(counting(made, f"making {recipe.evaluate.split} rows"))
    _say(getattr(task, "notes", ()))
    answerer = make_answerer(recipe, tokenizer)
    run_evaluation(
        examples,
        task,
        answerer.backend,
        tokenizer,
        recipe.output / EVALUATION,
        budget=Budget(answerer.window, recipe.evaluate.max_new_tokens),
        fingerprint={
            "label": recipe.label or recipe.method.name,
            "split": recipe.evaluate.split,
            "seed": recipe.seed,
            "task": recipe.evaluate.data.task,
            **_edition(examples),
            "train_length": recipe.train.max_length,
            **answerer.about,
        },
    )
    return recipe.output / EVALUATION


def _say(notes: Iterable[str]) -> None:
    """What a task found in its data, a line each, beside the output."""
    from rich.console import Console

    for note in notes:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(note)


def _edition(examples: Sequence[Example]) -> dict[str, str]:
    """Which edition of published data the rows say that they are of."""
    # A column of that name in a user's own rows says something else.
    made = [row.info for row in examples if row.task != "jsonl"]
    found = sorted({str(info["revision"]) for info in made if info.get("revision")})
    return {"data_revision": "; ".join(found)} if found else {}


def run_evaluation(
    examples: Iterable[Example],
    task: Task,
    backend: Backend,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    budget: Budget,
    fingerprint: Mapping[str, Any],
) -> Summary:
    """Answer and score every example; go on where an interrupted call stopped.

    Each completion is on disk before the next batch begins, in the order in which answers come.
    Rows whose prompt and token budget do not fit into the window are skipped with a reason: nothing
    is ever truncated. Rows that failed are asked again by the next call.

    Args:
        examples: The rows, the same ones in the same order at every call.
        task: Scores them.
        backend: Answers them.
        tokenizer: Gives the prompts' lengths in the model's own tokens.
        folder: Where the files go.
        budget: Tokens that a row may take.
        fingerprint: What else the completions depend on, as JSON values; the report reads `label`,
            `method`, `seed`, `task`, `train_length`, `original_length`, `train_factor` and
            `eval_factor` from it.

    Raises:
        UserError: The folder belongs to another run, or there are no examples, or two share an id.
    """
    rows = _checked(examples)
    manifest = {
        **fingerprint,
        "backend": backend.name,
        **asdict(budget),
        "rows": len(rows),
        "data": data_fingerprint(rows),
        "versions": versions(),
    }
    _claim(folder, manifest)
    write_jsonl(folder / EXAMPLES, (row.to_json() for row in rows))
    done = {key: c for key, c in _known(folder / COMPLETIONS).items() if c.finish != FAILED}
    reused = len(done)
    waiting = [row for row in rows if row.id not in done]
    path = folder / COMPLETIONS
    after = "then start the same command again: it goes on where it was"
    with writing(path, after), path.open("a", encoding="utf-8") as out:
        for completion in _complete(waiting, backend, tokenizer, budget):
            out.write(json.dumps(asdict(completion), ensure_ascii=False) + "\n")
            out.flush()
            done[completion.id] = completion
    missing = [row.id for row in rows if row.id not in done]
    if missing:
        raise RuntimeError(f"backend {backend.name!r} gave no answer for {missing[:3]}")
    _drop_outdated(folder / COMPLETIONS, done)
    scores = [_score(task, row, done[row.id]) for row in rows]
    write_jsonl(folder / SCORES, (asdict(score) for score in scores))
    summary = _summarize(scores, done, reused)
    write_json(folder / SUMMARY, asdict(summary))
    return summary


def _checked(examples: Iterable[Example]) -> list[Example]:
    rows = list(examples)
    if not rows:
        raise UserError("evaluation data: no rows to evaluate; check its path and split")
    twice = [key for key, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise UserError(f"evaluation data: id {twice[0]!r} is used twice; make every id unique")
    return rows


def data_fingerprint(examples: Iterable[Example]) -> str:
    """SHA-256 over the examples' JSON lines, in order."""
    digest = hashlib.sha256()
    for example in examples:
        line = json.dumps(example.to_json(), ensure_ascii=False, sort_keys=True)
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _claim(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, or check that the one that lies there is the same."""
    path = folder / MANIFEST
    # Through JSON and back: tuples and integer keys are what they will be when read.
    manifest = json.loads(json.dumps(manifest))
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, manifest)
        return
    known = read_json(path)
    differing = [k for k in {**known, **manifest} if known.get(k) != manifest.get(k)]
    if differing:
        raise UserError(
            f"output folder {folder} belongs to another run ({', '.join(differing)} differ): "
            "choose another output or delete it"
        )


def _known(path: Path) -> dict[str, Completion]:
    """Completions of earlier calls; a last line that a kill tore off is dropped from the file."""
    if not path.is_file():
        return {}
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    # A row that failed and was asked again has several lines: the last one counts.
    return {row["id"]: Completion(**row) for row in read_jsonl(path)}


def _drop_outdated(path: Path, done: Mapping[str, Completion]) -> None:
    """Leave one line a row."""
    with path.open("rb") as file:
        lines = sum(1 for _ in file)
    if lines > len(done):
        write_jsonl(path, (asdict(completion) for completion in done.values()))


def _complete(
    examples: Sequence[Example],
    backend: Backend,
    tokenizer: PreTrainedTokenizerBase,
    budget: Budget,
) -> Iterator[Completion]:
    prompts: dict[str, Prompt] = {}
    for example in examples:
        # 4 bytes a token: a list of Python ints would hold several times the text itself
        ids = np.array(prompt_ids(tokenizer, example.prompt), dtype=np.int32)
        if budget.fits(len(ids)):
            prompts[example.id] = Prompt(example.id, example.prompt, ids)
        else:
            reason = f"prompt and answer longer than the window of {budget.window} tokens"
            yield Completion(example.id, "", len(ids), SKIPPED, reason)
    progress = _Progress(sum(len(prompt.ids) for prompt in prompts.values()), len(prompts))
    with progress:
        for key, answer in backend.generate(list(prompts.values()), budget.max_new_tokens):
            length = len(prompts[key].ids)
            finish = THINKING if is_open(answer.text) else answer.finish
            yield Completion(key, answer.text, length, finish, answer.reason)
            progress.advance(length)


class _Progress:
    """A bar over prompt tokens on a terminal; elsewhere a line at every tenth of them."""

    def __init__(self, tokens: int, rows: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._console = Console(stderr=True)
        self._bar = Progress(console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(f"answering {rows} rows", total=tokens)
        self._tokens, self._rows, self._done, self._answered = tokens, rows, 0, 0

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, tokens: int) -> None:
        before = 10 * self._done // self._tokens
        self._done += tokens
        self._answered += 1
        self._bar.advance(self._task, tokens)
        if self._bar.disable and 10 * self._done // self._tokens > before:
            share = f"{self._done / self._tokens:.0%} of the prompt tokens"
            self._console.print(f"answered {self._answered} of {self._rows} rows, {share}")


def _score(task: Task, example: Example, completion: Completion) -> Score:
    if completion.finish in (SKIPPED, FAILED):
        return Score(example.id, example.bin, example.source, {}, False, completion.finish)
    return task.score(example, completion)


def _summarize(scores: Sequence[Score], done: dict[str, Completion], reused: int) -> Summary:
    scored = [score for score in scores if score.scores]
    values: dict[int, list[float]] = {score.bin: [] for score in sorted(scores, key=_bin)}
    for score in scored:
        values[score.bin].append(official(score))
    return Summary(
        rows=len(scores),
        scored=len(scored),
        skipped=sum(score.finish == SKIPPED for score in scores),
        failed=sum(score.finish == FAILED for score in scores),
        cut=sum(score.finish == "length" for score in scores),
        thinking=sum(score.finish == THINKING for score in scores),
        unparsed=sum(not score.parsed for score in scored),
        reused=reused,
        rule=next(iter(scored[0].scores)) if scored else "",
        mean={b: sum(v) / len(v) if v else None for b, v in values.items()},
        reasons=dict(Counter(c.reason for c in done.values() if c.finish in (SKIPPED, FAILED))),
    )


def failures(folder: Path) -> str | None:
    """What to say of the rows of an evaluation that failed, in a sentence; None if none did."""
    summary = read_json(folder / SUMMARY)
    if not summary["failed"]:
        return None
    counted = Counter(c.reason for c in _known(folder / COMPLETIONS).values() if c.finish == FAILED)
    [(reason, count)] = counted.most_common(1)
    return (
        f"{summary['failed']} of {summary['rows']} rows failed and have no score ({count} of them: "
        f"{reason}); the same command asks for them again"
    )


def official(score: Score) -> float:
    """The score under the task's official rule, which comes first."""
    return next(iter(score.scores.values()))


def _bin(score: Score) -> int:
    return score.bin
