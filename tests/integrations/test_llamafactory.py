"""The command for LLaMA-Factory, where LLaMA-Factory is not: one sentence."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ryarn.errors import UserError
from ryarn.integrations.llamafactory import main

RECIPE = "stage: sft\nryarn: {name: randomized-yarn, factor: 2, spans: [128]}\n"


def test_a_python_without_llamafactory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(RECIPE)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        main([str(path)])
    assert str(error.value).startswith(f"{sys.executable} has no LLaMA-Factory: run this with")


def test_what_is_wrong_in_the_yaml_is_said_before_that(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="usage: python -m"):
        main([])
    path = tmp_path / "train.yaml"
    path.write_text(RECIPE)
    with pytest.raises(UserError, match=r"stage = 'ppo': ryarn has been tried with pt, sft, dpo"):
        main([str(path), "stage=ppo"])
    with pytest.raises(UserError, match=r"use_unsloth = .* and a section ryarn: drop one of them"):
        main([str(path), "use_unsloth=true"])
