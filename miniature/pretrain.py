"""Pretrain the miniature from scratch: two layers learn to look back, then four learn the rest.

What was tried, and why it is done so: docs/design/0004-the-miniature.md.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from miniature.documents import FACTS, Writer
from miniature.tokenizer import VOCABULARY, make_tokenizer

WINDOW = 256
"""L_pre, in tokens."""
THETA = 400.0
"""20 of 32 rotary pairs complete a turn within the window, a share like that of Qwen2.5 (40 of 64
at theta 1e6 in 32K)."""
BOOT_LAYERS, LAYERS = 2, 4
BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Stage:
    """What is read until every kind of document is mastered.

    Attributes:
        mix: Kind of document to its share.
        lengths: Lengths of documents in tokens, one is drawn for each step.
        adverbs: See `Writer`.
        background: See `Writer`; in the last stage drawn up to twice as much for each step.
        bare: See `Writer`.
        hesitant: See `Writer`.
        hesitant_kinds: See `Writer`.
        goal: Share of targets foretold in each kind at which the next stage begins.
        patience: Steps that it lasts at least.
        limit: Steps that it lasts at most.
    """

    mix: dict[str, float]
    lengths: tuple[int, ...]
    adverbs: float
    background: float
    bare: float
    hesitant: float = 0.0
    hesitant_kinds: tuple[str, ...] = FACTS
    goal: float = 2.0
    patience: int = 30
    limit: int = 10_000


STAGES = (
    Stage({"stream": 1.0}, (64,), 0.0, 0.0, 1.0, goal=0.9),
    Stage({"stream": 0.3, "pairs": 0.7}, (64,), 0.0, 0.0, 1.0, goal=0.85),
    # From here on name and place are at no fixed distance: without, whole facts are never learned.
    Stage({"stream": 0.4, "pairs": 0.2, "copies": 0.4}, (64,), 0.5, 0.0, 1.0, goal=0.8),
    Stage({"stream": 0.6, "copies": 0.4}, (64,), 0.2, 0.1, 0.3, goal=0.8),
    Stage(
        {"stream": 0.4, "questions": 0.4, "copies": 0.2}, (96,), 0.2, 0.2, 0.0, goal=0.75, limit=600
    ),
    Stage(
        {
            **{"stream": 0.05, "questions": 0.25, "chat": 0.6},
            **{"copies": 0.05, "prose": 0.05},
        },
        (96, 160, 256, 256),
        0.3,
        0.35,
        0.0,
        hesitant=0.4,
    ),
)


@dataclass(frozen=True)
class Plan:
    """How one of the bases is made: everything that `python -m miniature` needs but the seed."""

    config: type[LlamaConfig | Qwen3Config]
    stages: tuple[Stage, ...]
    steps: int
    """Of the last stage."""
    seed: int
    """That the packaged one was made with."""


PLANS = {
    "llama": Plan(LlamaConfig, STAGES, 4500, 0),
    # Norms of queries and keys, and chats that are told hesitantly, too: it learns in half the time
    # and copies at stretched positions.
    "qwen3": Plan(
        Qwen3Config,
        tuple(replace(stage, hesitant_kinds=(*FACTS, "copies", "chat")) for stage in STAGES),
        3000,
        1,
    ),
}
"""`model_type` to plan: two bases, to see what holds on more than one."""
_SEEN = 8
"""Latest batches of a kind that its mastery is judged by."""


def pretrain(out: Path, plan: Plan) -> None:
    """Make a base and its tokenizer.

    Args:
        out: Folder to save them in, with `training.jsonl`, the accuracy by kind every 50 steps.
        plan: What is made, and how; the model grows before the last stage.
    """
    torch.manual_seed(plan.seed)
    rng = np.random.default_rng(plan.seed)
    tokenizer = make_tokenizer(WINDOW)
    writer = Writer(tokenizer, rng)
    out.mkdir(parents=True, exist_ok=True)
    with (
        _rounded_products(),
        _bar() as bar,
        (out / "training.jsonl").open("w", encoding="utf-8") as log,
    ):
        task = bar.add_task("stage 1", total=None)
        run = _Run(_model(tokenizer, plan.config), rng, writer, plan.stages)
        for step in run.steps(plan.steps):
            label = f"stage {run.stage + 1}: " + " ".join(
                f"{kind} {value:.2f}" for kind, value in run.accuracy().items()
            )
            total = run.begun + plan.steps if run.last else None
            bar.update(task, completed=step, total=total, description=label)
            if step % 50 == 0 or (run.last and step == run.begun + plan.steps):
                entry = {"step": step, "stage": run.stage + 1, **run.accuracy()}
                log.write(json.dumps(entry) + "\n")
                log.flush()
    run.model.config.use_cache = True
    run.model.save_pretrained(out)
    tokenizer.save_pretrained(out)


@contextlib.contextmanager
def _rounded_products() -> Iterator[None]:
    """Products of matrices in bfloat16, sums in float32, where the CPU has such; then off again."""
    products: Any = torch.backends.mkldnn.matmul
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


class _Run:
    """The training, stage by stage."""

    def __init__(
        self,
        model: PreTrainedModel,
        rng: np.random.Generator,
        writer: Writer,
        stages: Sequence[Stage],
    ) -> None:
        self.model, self._stages = model, stages
        self.stage = self.begun = 0
        self._rng, self._writer = rng, writer
        self._optimizers = _optimizers(model)
        self._right: dict[str, deque[float]] = {}

    @property
    def last(self) -> bool:
        """Whether the last stage has begun."""
        return self.stage == len(self._stages) - 1

    def accuracy(self) -> dict[str, float]:
        """Share of targets foretold, of the latest batches of each kind."""
        return {kind: round(float(np.mean(seen)), 3) for kind, seen in self._right.items()}

    def steps(self, last: int) -> Iterator[int]:
        """Train, yielding after every step its number."""
        step = 0
        while not self.last or step - self.begun < last:
            done = (step - self.begun) / last if self.last else 0.0
            self._step(min(1.0, (step + 1) / 50) * max(0.02, min(1.0, (1 - done) / 0.3)))
            step += 1
            yield step
            stage = self._stages[self.stage]
            mastered = all(
                len(seen := self._right.get(kind, ())) == _SEEN and np.mean(seen) > stage.goal
                for kind in stage.mix
            )
            lasted = step - self.begun
            if not self.last and ((lasted > stage.patience and mastered) or lasted == stage.limit):
                self.stage, self.begun = self.stage + 1, step
                self._right.clear()
                if self.last:
                    self.model = _grow(self.model)
                    self._optimizers = _optimizers(self.model)

    def _step(self, rate: float) -> None:
        stage, writer = self._stages[self.stage], self._writer
        kind = str(self._rng.choice(list(stage.mix), p=list(stage.mix.values())))
        length = int(self._rng.choice(stage.lengths))
        writer.adverbs, writer.bare = stage.adverbs, stage.bare
        writer.hesitant, writer.hesitant_kinds = stage.hesitant, stage.hesitant_kinds
        scale = 2 * self._rng.random() if self.last else 1.0
        writer.background = stage.background * scale
        documents = [writer.kinds[kind](length) for _ in range(max(4, BATCH_TOKENS // length))]
        tokens = torch.tensor([ids for ids, _ in documents])
        targets = torch.tensor([marks for _, marks in documents])[:, 1:]
        hidden = self.model.model(input_ids=tokens).last_hidden_state[:, :-1][targets]
        logits, following = self.model.lm_head(hidden), tokens[:, 1:][targets]
        seen = self._right.setdefault(kind, deque(maxlen=_SEEN))
        seen.append(float((logits.argmax(-1) == following).float().mean()))
        loss = functional.cross_entropy(logits, following)
        # Prose can't be foretold well: at full weight its noise drowns what can.
        (loss * (0.3 if kind == "prose" else 1.0)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, full in self._optimizers:
            optimizer.param_groups[0]["lr"] = full * rate
            optimizer.step()
            optimizer.zero_grad()


def _model(tokenizer: Any, kind: type[LlamaConfig | Qwen3Config]) -> PreTrainedModel:
    config = kind(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=BOOT_LAYERS,
        # With 4 heads of 32 it never leaves the plateau of guessing among the values seen.
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        use_cache=False,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    for name, weights in model.named_parameters():
        if weights.ndim == 2:
            half = 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            std = 0.5 if "embed" in name else half * config.hidden_size**-0.5
            torch.nn.init.normal_(weights, std=std)
    return model


def _grow(model: PreTrainedModel) -> PreTrainedModel:
    """More layers: copies of the last one that add next to nothing yet."""
    old = model.config.num_hidden_layers
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = LAYERS
    if hasattr(config, "layer_types"):
        config.layer_types = ["full_attention"] * LAYERS
    weights = model.state_dict()
    last = f"model.layers.{old - 1}."
    for name in [name for name in weights if name.startswith(last)]:
        for layer in range(old, LAYERS):
            tensor = weights[name].clone()
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                torch.nn.init.normal_(tensor, std=0.01)
            weights[name.replace(last, f"model.layers.{layer}.")] = tensor
    grown: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    grown.load_state_dict(weights)
    return grown


def _optimizers(model: PreTrainedModel) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices of the layers, AdamW for the rest; each with its learning rate."""
    matrices, rest = [], []
    for name, weights in model.named_parameters():
        (matrices if "layers" in name and weights.ndim == 2 else rest).append(weights)
    return [
        (torch.optim.Muon(matrices, weight_decay=0.01), 0.02),
        (torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.01), 3e-3),
    ]


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )
