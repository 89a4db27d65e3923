"""The tuning recipe: a recipe whose `tune` section says which of its keys are searched, and how."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, Field, PositiveInt, Strict

from ryarn.backends.config import HfConfig
from ryarn.compare.grid import Section, Seed, merge
from ryarn.config import Config, build, load
from ryarn.errors import UserError
from ryarn.method import METHODS, Method, make_method
from ryarn.recipe import WITHOUT_EFFECT, Recipe, recipe_method

TRIALS = "trials"
"""Folder of the tuning's output: a run folder for each trial."""
TUNED = "tuned"
"""Run folder of the chosen recipe, and its file beside it."""

Number = Annotated[int, Strict()] | Annotated[float, Strict(), AllowInfNan(False)]
Setting = Mapping[str, Any]
"""Searched key to its value in one trial."""

_BARRED = {
    "method.name": "methods are compared with ryarn compare, each tuned on its own",
    "train.data": "all trials train on the same rows",
    "train.max_length": "it decides which bins count as longer than the training rows",
    "train.held_out_rows": "all trials are pruned by the same rows",
    **{f"train.{key}": "it changes nothing about the adapter" for key in WITHOUT_EFFECT},
}
"""Keys of `method` and `train` that can't be searched, and why."""


class Range(Config):
    """Numbers from `low` to `high`, whole ones if both ends are whole."""

    low: Number
    high: Number
    log: bool = False
    """Drawn evenly in the logarithm, as for a learning rate."""


class Choices(Config):
    """A list of values, of any kind, without an order."""

    values: list[Any]


Space = Range | Choices


class PruneConfig(Config):
    """When a trial is given up: its held-out loss is among the worst that others had by then."""

    checks: PositiveInt = 2
    """How often in a training the loss of `train.held_out_rows` is looked at, the last time at its
    end."""
    keep: float = Field(0.75, gt=0, lt=1)
    """A trial is given up once more than this share of the trials before it had a better loss at
    the same check."""
    after: PositiveInt = 4
    """Trials that must have finished before one is pruned."""


class TuneConfig(Config):
    """What is searched, how long, and on which rows."""

    trials: PositiveInt
    """How many settings are tried, pruned and failed ones among them."""
    seed: Seed
    """Of the search, and the training seed of every trial; not the recipe's `seed`."""
    search: dict[str, Any] = Field(min_length=1)
    """Dotted key of `method` or `train` to a list of values or a `Range`."""
    evaluate: Section = Field(default_factory=dict)
    """Changes of `evaluate` for the trials, e.g. fewer rows."""
    bins: Literal["longer", "all"] = "longer"
    """Which bins of the held-out rows the score is the mean of: those longer than
    `train.max_length`, or all, for data whose longer rows are test rows only."""
    prune: PruneConfig | None = PruneConfig()
    """Null: every trial is trained to its end."""
    processes: PositiveInt = 1
    """Trials at once; with more than one, what is proposed depends on which finishes first."""


class TuneRecipe(Recipe):
    """A recipe, and how some of its keys are chosen."""

    tune: TuneConfig

    @property
    def prune(self) -> PruneConfig | None:
        """When a trial is given up; None where there is nothing to train."""
        return self.tune.prune if trains(self) else None


def trains(recipe: Recipe) -> bool:
    """Whether the method trains, told by its name alone: other keys may not be chosen yet."""
    return METHODS[recipe.method.name].trains


def load_tune(path: Path, overrides: Sequence[str]) -> TuneRecipe:
    """Read a tuning recipe and check all that it searches.

    Raises:
        UserError: See `ryarn.config.load` and `check_tune`.
    """
    recipe = load(TuneRecipe, path, overrides)
    check_tune(recipe)
    return recipe


def spaces(recipe: TuneRecipe) -> dict[str, Space]:
    """Searched key to where its values come from.

    Raises:
        UserError: One is neither a list of different values nor a range.
    """
    return {key: _space(f"tune.search.{key}", given) for key, given in recipe.tune.search.items()}


def _space(name: str, given: Any) -> Space:
    if isinstance(given, list):
        texts = [encode(value) for value in given]
        if len(set(texts)) < 2 or len(set(texts)) < len(texts):
            raise UserError(f"{name} = {given}: give at least two values, all different")
        return Choices(values=given)
    if not isinstance(given, Mapping) or not {"low", "high"} & set(given):
        raise UserError(
            f"{name} = {given!r}: give a list of values, or a range such as "
            "{low: 1e-5, high: 1e-3, log: true}"
        )
    try:
        found = build(Range, given)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    if found.low >= found.high:
        raise UserError(f"{name}: low = {found.low} must be below high = {found.high}")
    if found.log and found.low <= 0:
        raise UserError(f"{name}: low = {found.low} must be above 0 where log is true")
    return found


def encode(value: Any) -> str:
    """A value of a list as text, the same for equal values."""
    return json.dumps(value, sort_keys=True)


def ends(space: Space) -> list[Any]:
    """The values of a list, or both ends of a range."""
    return space.values if isinstance(space, Choices) else [space.low, space.high]


def laid_over(recipe: TuneRecipe, setting: Setting) -> dict[str, Any]:
    """The recipe's values without `tune`, with a setting's laid over them.

    Raises:
        UserError: A key leads into something that is no section.
    """
    data = recipe.model_dump(mode="json", exclude={"tune"})
    for key, value in setting.items():
        *path, last = key.split(".")
        section: Any = data
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise UserError(f"tune.search.{key}: {'.'.join(path)} is no section of the recipe")
        section[last] = value
    return data


def trial_recipe(recipe: TuneRecipe, number: int, setting: Setting) -> Recipe:
    """The plain recipe of a trial: the tuning's seed, and held-out rows alone.

    Raises:
        UserError: The setting makes no recipe, e.g. s' below s.
    """
    data = laid_over(recipe, setting)
    data["evaluate"] = merge(data["evaluate"], recipe.tune.evaluate) | {"split": "held-out"}
    data |= {"seed": recipe.tune.seed, "output": recipe.output / TRIALS / str(number)}
    return _checked(data)


def chosen_recipe(recipe: TuneRecipe, setting: Setting) -> Recipe:
    """The plain recipe with a setting's values: its own seed, rows and a run folder to itself."""
    return _checked(laid_over(recipe, setting) | {"output": recipe.output / TUNED})


def _checked(data: Mapping[str, Any]) -> Recipe:
    made = build(Recipe, data)
    recipe_method(made.method)
    return made


def check_tune(recipe: TuneRecipe) -> None:
    """See that everything searched is a key that counts, with values that it can have.

    Raises:
        UserError: Something is not; the sentence names the key.
    """
    if recipe.tune.seed == recipe.seed:
        raise UserError(
            f"tune.seed = {recipe.tune.seed} is the recipe's seed: trials need a seed of their own"
        )
    if "split" in recipe.tune.evaluate or recipe.evaluate.split != "test":
        raise UserError(
            "evaluate.split: trials are evaluated on held-out rows alone and the result on test "
            "rows; leave it out"
        )
    if recipe.method.name not in METHODS:
        make_method(recipe.method.name)  # says which there are
    if not isinstance(recipe.evaluate.backend, HfConfig):
        raise UserError(
            f"evaluate.backend = {recipe.evaluate.backend.name!r}: trials are answered by the "
            "models that they train; leave it out"
        )
    searched = spaces(recipe)
    for key in searched:
        _check_key(recipe, key)
    for key, space in searched.items():
        for value in ends(space):
            data = laid_over(recipe, {key: value})
            try:
                build(Recipe, data)
            except UserError as error:
                raise UserError(f"tune.search.{key}, value {value!r}: {error}") from error
    _check_effect(recipe, searched)
    if recipe.prune is not None and not recipe.train.held_out_rows:
        raise UserError(
            "train.held_out_rows = 0: trials are pruned by the loss of held-out rows; give e.g. "
            "train.held_out_rows=100, or tune.prune=null to train every trial to its end"
        )


def _check_key(recipe: TuneRecipe, key: str) -> None:
    name = f"tune.search.{key}"
    section = key.partition(".")[0]
    if section not in ("method", "train") or key == section:
        raise UserError(f"{name}: what can be searched are keys of method and train")
    for barred, reason in _BARRED.items():
        if key == barred or key.startswith(f"{barred}."):
            raise UserError(f"{name}: {reason}; leave it out")
    inside = next((k for k in recipe.tune.search if k.startswith(f"{key}.")), None)
    if inside is not None:
        raise UserError(f"{name}: {inside} is a part of it and searched, too: leave one out")
    if section == "train" and not trains(recipe):
        raise UserError(f"{name}: method {recipe.method.name!r} trains nothing; leave it out")


def _check_effect(recipe: TuneRecipe, searched: Mapping[str, Space]) -> None:
    """A key that the method does not use would be searched in vain."""
    first = {key: ends(space)[0] for key, space in searched.items()}
    for key, space in searched.items():
        if not key.startswith("method."):
            continue
        made: list[Method] = []
        for value in ends(space):
            try:
                data = laid_over(recipe, {**first, key: value})
                made.append(recipe_method(build(Recipe, data).method))
            except UserError:
                continue  # not with the first values of the others
        if len(made) > 1 and all(method == made[0] for method in made):
            raise UserError(
                f"tune.search.{key}: it changes nothing about method {recipe.method.name!r}; "
                "leave it out"
            )
