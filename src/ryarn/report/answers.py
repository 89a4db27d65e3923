"""Evaluated runs, and the answers of one method: its rows crossed with its training seeds."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ryarn.evaluate import official
from ryarn.records import Score
from ryarn.report.trained import Trained
from ryarn.stats import Estimate, estimate, estimate_over_seeds
from ryarn.stats.layout import Floats

NOT_SETTINGS = ("label", "seed", "adapter", "versions")
"""Manifest keys in which runs of one method may differ and still be pooled."""


@dataclass(frozen=True, slots=True)
class Run:
    """One evaluated run folder; `trained` where it has a log of its training."""

    folder: Path
    manifest: dict[str, Any]
    scores: list[Score]
    trained: Trained | None = None

    @property
    def settings(self) -> str:
        """What makes two runs the same experiment, as one comparable string."""
        kept = {k: v for k, v in self.manifest.items() if k not in NOT_SETTINGS}
        train = kept.get("train")
        if train and isinstance(train.get("data"), dict):
            # Which rows are drawn for training is a part of the training seed.
            data = {k: v for k, v in train["data"].items() if k != "seed"}
            kept["train"] = train | {"data": data}
        return json.dumps(kept, sort_keys=True)

    @property
    def seed(self) -> int | None:
        """The training seed; None for a method without training, which has none."""
        trained = self.manifest.get("train", {}) is not None
        return int(self.manifest["seed"]) if trained else None


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Label to runs; a label used for different settings is made several by the folder's name."""
    settings: dict[str, list[str]] = {}
    for run in runs:
        known = settings.setdefault(str(run.manifest["label"]), [])
        if run.settings not in known:
            known.append(run.settings)
    groups: dict[str, list[Run]] = {}
    named: dict[str, str] = {}
    for run in runs:
        label = str(run.manifest["label"])
        if len(settings[label]) > 1:
            label = named.setdefault(run.settings, f"{label} ({run.folder.resolve().name})")
        groups.setdefault(label, []).append(run)
    return groups


@dataclass(frozen=True, slots=True)
class Answers:
    """The scored answers of one method under one rule.

    Attributes:
        rows: Example id to a score that knows its bin and source.
        by_seed: Training seed to the rows' values; a method without training has the seed None
            alone. Runs of one seed are averaged.
    """

    rows: dict[str, Score]
    by_seed: dict[int | None, dict[str, float]]

    @classmethod
    def of(cls, runs: Sequence[Run], rule: str | None = None) -> Self:
        """Collect runs of one method.

        Args:
            runs: Runs of one label.
            rule: Name of the score; None for the official one.
        """
        rows: dict[str, Score] = {}
        values: dict[int | None, dict[str, list[float]]] = {}
        for run in runs:
            mine = values.setdefault(run.seed, {})
            for score in run.scores:
                if score.scores and (rule is None or rule in score.scores):
                    value = official(score) if rule is None else score.scores[rule]
                    mine.setdefault(score.id, []).append(value)
                    rows.setdefault(score.id, score)
        means = {
            seed: {key: sum(of_row) / len(of_row) for key, of_row in mine.items()}
            for seed, mine in values.items()
        }
        return cls(rows, means)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds in order; empty for a method without training."""
        return tuple(sorted(seed for seed in self.by_seed if seed is not None))

    def ids(self, bins: Collection[int], seeds: Sequence[int | None] | None = None) -> list[str]:
        """Rows of some bins that were scored under every one of some (by default all) seeds."""
        parts = [self.by_seed[seed] for seed in (self.by_seed if seeds is None else seeds)]
        return [
            key
            for key, row in self.rows.items()
            if row.bin in bins and all(key in part for part in parts)
        ]

    def matrix(self, ids: Sequence[str], seeds: Sequence[int | None] | None = None) -> Floats:
        """Values of rows that each of the seeds scored, [seeds, rows]."""
        parts = [self.by_seed[seed] for seed in (self.by_seed if seeds is None else seeds)]
        return np.array([[part[key] for key in ids] for part in parts], dtype=np.float64)

    def mean(self, key: str) -> float:
        """A row's mean over the seeds that scored it."""
        return float(np.mean([part[key] for part in self.by_seed.values() if key in part]))

    def estimate(self, bins: Collection[int]) -> Estimate:
        """Mean of the bins' means, over rows and seeds."""
        ids = self.ids(bins)
        sources = [self.rows[key].source for key in ids]
        of_bin = [self.rows[key].bin for key in ids]
        values = self.matrix(ids)
        if len(values) > 1:
            return estimate_over_seeds(values, sources, of_bin)
        return estimate(values[0], sources, of_bin)

    def average(self, ood: Collection[int]) -> Estimate:
        """The OOD average; none when a bin has no score: fewer bins would flatter."""
        if {self.rows[key].bin for key in self.ids(ood)} >= set(ood):
            return self.estimate(ood)
        return estimate([], [])
