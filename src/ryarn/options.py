"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ryarn.trust import trust_remote_code


def _trust(is_given: bool) -> None:
    if is_given:
        trust_remote_code()


RecipeFile = Annotated[Path, typer.Argument(help="Recipe, a YAML file.", metavar="RECIPE.yaml")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes to it, e.g. train.epochs=1", metavar="[KEY=VALUE ...]"),
]
RemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the Python code that comes with the model.",
        callback=_trust,
    ),
]
