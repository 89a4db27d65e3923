"""ryarn's rows and official scores as tasks of lm-evaluation-harness (`--include_path`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ryarn.chat import prompt_ids, render_prompt
from ryarn.errors import UserError
from ryarn.records import Completion, Example, Score, read_jsonl
from ryarn.tasks.babilong_score import babilong_score
from ryarn.tasks.longbench_v2_score import longbench_v2_score
from ryarn.tasks.mrcr_score import mrcr_score
from ryarn.thinking import THINKING, is_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

FOLDER = Path(__file__).parent
"""What `--include_path` takes."""
SCORES: dict[str, Callable[[Example, Completion], Score]] = {
    "babilong": babilong_score,
    "longbench-v2": longbench_v2_score,
    "mrcr": mrcr_score,
}
MAX_NEW_TOKENS = {"babilong": 20, "longbench-v2": 128, "mrcr": 1200}
"""What the tasks' YAML files ask for as `max_gen_toks`."""


def load_rows(task: str, given: dict[str, Any]) -> Dataset:
    """The rows of one task in a file, each with the text that the model is given.

    The chat template is applied here, as `ryarn evaluate` does it: the harness itself would make a
    single turn of a conversation.

    Args:
        task: Key of `SCORES`.
        given: The harness's metadata (`--metadata` over `--model_args`): `rows`, a JSONL file that
            `ryarn data` or `ryarn evaluate` wrote; `tokenizer` or `pretrained`; `max_length`, the
            window, where it isn't the model's own; `max_gen_toks`, where `--gen_kwargs` changes it.

    Raises:
        UserError: A key is missing, the file has no such rows, one does not fit into the window, or
            the harness would add special tokens that the chat template has not.
    """
    from datasets import Dataset

    path, name = given.get("rows"), given.get("tokenizer") or given.get("pretrained")
    if not isinstance(path, str) or not isinstance(name, str):
        raise UserError(
            "lm-evaluation-harness: give the rows and the tokenizer, e.g. --metadata "
            '\'{"rows": "runs/x/evaluation/examples.jsonl"}\' --model_args pretrained=FOLDER'
        )
    tokenizer = _tokenizer(name)
    budget = int(given.get("max_gen_toks") or MAX_NEW_TOKENS[task])
    window = given.get("max_length") or _window(str(given.get("pretrained") or name))
    rows = []
    for row in read_jsonl(Path(path)):
        if row.get("task") != task:
            continue
        example = Example.from_json(row)
        text, ids = render_prompt(tokenizer, example.prompt), prompt_ids(tokenizer, example.prompt)
        _check_special_tokens(tokenizer, text, ids, given)
        if window is not None and len(ids) + budget > int(window):
            raise UserError(
                f"{path}: row {example.id!r} has {len(ids)} tokens, and {budget} for its answer "
                f"do not fit into the window of {window}; the harness would cut its beginning off: "
                "leave it out of the file"
            )
        rows.append({"id": example.id, "bin": example.bin, "text": text, "row": json.dumps(row)})
    if not rows:
        raise UserError(f"{path}: no row of task {task!r}; its rows say which task they are of")
    return Dataset.from_list(rows)


def score_row(doc: dict[str, Any], answer: str) -> dict[str, float]:
    """The scores of one answer under each rule, as `ryarn evaluate` gives them.

    Args:
        doc: A row of `load_rows`.
        answer: What the model wrote.
    """
    example = Example.from_json(json.loads(doc["row"]))
    finish = THINKING if is_open(answer) else "stop"
    return SCORES[example.task](example, Completion(example.id, answer, 0, finish)).scores


def _tokenizer(name: str) -> PreTrainedTokenizerBase:
    from ryarn.models import load_tokenizer
    from ryarn.recipe import ModelConfig

    return load_tokenizer(ModelConfig(name=name))


def _window(name: str) -> int | None:
    """The window in a model's config; None where there is no config to read."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError):
        return None
    window = getattr(config.get_text_config(), "max_position_embeddings", None)
    return window if isinstance(window, int) else None


def _check_special_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int], given: dict[str, Any]
) -> None:
    """Refuse a tokenizer that would put a second beginning before the template's."""
    begins = bool(tokenizer.bos_token) and text.startswith(str(tokenizer.bos_token))
    if begins or str(given.get("add_bos_token")) == "False":
        return
    if tokenizer(text)["input_ids"] != ids:
        raise UserError(
            f"tokenizer {tokenizer.name_or_path!r} adds special tokens to what its chat template "
            "writes, so prompts would differ from training: add add_bos_token=False to --model_args"
        )
