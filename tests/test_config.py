"""A wrong recipe gets one sentence that names the key, the value and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, PositiveInt, ValidationError, model_validator

from ryarn.config import Config, build, dump, load, parse, parse_yaml
from ryarn.errors import UserError


class Circle(Config):
    shape: Literal["circle"]
    radius: float


class Square(Config):
    shape: Literal["square"]
    side: float


class Inner(Config):
    learning_rate: float = 1e-4
    batch_size: PositiveInt = 1
    figure: Annotated[Circle | Square, Field(discriminator="shape")] = Circle(
        shape="circle", radius=1.0
    )


class Outer(Config):
    name: str
    inner: Inner = Inner()

    @model_validator(mode="after")
    def _not_forbidden(self) -> Outer:
        if self.name == "forbidden":
            raise ValueError("name 'forbidden' is taken: choose another")
        return self


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: run\ninner:\n  learning_rate: 3e-4\n", encoding="utf-8")
    return path


def refusal(path: Path, *overrides: str) -> str:
    """The message of the UserError that loading must raise, checked to be one line."""
    with pytest.raises(UserError) as caught:
        load(Outer, path, overrides)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_values_and_defaults_are_read(recipe: Path) -> None:
    config = load(Outer, recipe)
    assert config.name == "run"
    assert config.inner.learning_rate == 3e-4
    assert config.inner.batch_size == 1


def test_a_config_cannot_be_changed(recipe: Path) -> None:
    config = load(Outer, recipe)
    with pytest.raises(ValidationError, match="frozen"):
        config.name = "other"


def test_unknown_key_names_the_nearest_known_one(tmp_path: Path) -> None:
    path = written(tmp_path, "name: run\ninner: {learning_rat: 1}\n")
    assert refusal(path) == "unknown key 'inner.learning_rat': did you mean 'learning_rate'?"


def test_a_misspelt_key_is_an_unknown_one_rather_than_a_missing_one(tmp_path: Path) -> None:
    path = written(tmp_path, "nane: run\n")
    assert refusal(path) == "unknown key 'nane': did you mean 'name'?"


def test_unknown_key_far_from_all_lists_the_known_ones(tmp_path: Path) -> None:
    path = written(tmp_path, "name: run\nzzz: 1\n")
    assert refusal(path) == "unknown key 'zzz': known keys: inner, name"


def test_unknown_key_inside_a_tagged_union_names_the_nearest_one(tmp_path: Path) -> None:
    path = written(tmp_path, "name: run\ninner: {figure: {shape: square, side: 1, sid: 2}}\n")
    message = refusal(path)
    assert message.startswith("unknown key 'inner.figure.")
    assert message.endswith("did you mean 'side'?")


def test_missing_key(tmp_path: Path) -> None:
    path = written(tmp_path, "inner: {}\n")
    assert refusal(path) == "missing key 'name': the recipe must give it"


def test_empty_file_is_a_missing_key_not_a_crash(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, "")).startswith("missing key 'name'")


def test_wrong_type_names_key_and_value(tmp_path: Path) -> None:
    path = written(tmp_path, "name: run\ninner: {batch_size: many}\n")
    assert refusal(path).startswith("inner.batch_size = 'many': ")


def test_value_out_of_range_names_key_and_value(tmp_path: Path) -> None:
    path = written(tmp_path, "name: run\ninner: {batch_size: 0}\n")
    assert refusal(path).startswith("inner.batch_size = 0: ")


def test_a_rule_of_the_class_speaks_for_itself(tmp_path: Path) -> None:
    path = written(tmp_path, "name: forbidden\n")
    assert refusal(path) == "name 'forbidden' is taken: choose another"


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    assert refusal(path) == f"{path}: no such recipe file"


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: no such recipe file"


@pytest.mark.parametrize("text", ["name: [1, 2\n", "a: b: c\n", "\tname: run\n"])
def test_not_yaml(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    assert refusal(path).startswith(f"{path}: not valid YAML: ")


def test_yaml_that_is_no_mapping(tmp_path: Path) -> None:
    path = written(tmp_path, "- name\n- run\n")
    assert refusal(path) == f"{path}: expected a mapping of keys to values at the top level"


def test_yaml_makes_no_python_objects(tmp_path: Path) -> None:
    path = written(tmp_path, "name: !!python/object/apply:os.getcwd []\n")
    assert refusal(path).startswith(f"{path}: not valid YAML: ")


def test_nested_override_wins_over_the_file(recipe: Path) -> None:
    config = load(Outer, recipe, ["inner.learning_rate=5e-5", "inner.batch_size=8"])
    assert config.inner == Inner(learning_rate=5e-5, batch_size=8)


def test_override_makes_a_section_that_the_file_lacks(tmp_path: Path) -> None:
    path = written(tmp_path, "name: run\n")
    assert load(Outer, path, ["inner.batch_size=8"]).inner.batch_size == 8


def test_override_keeps_equals_signs_in_the_value(recipe: Path) -> None:
    assert load(Outer, recipe, ["name=a=b"]).name == "a=b"


@pytest.mark.parametrize("override", ["inner.batch_size", "=8", ""])
def test_override_without_key_or_equals(recipe: Path, override: str) -> None:
    message = refusal(recipe, override)
    assert message.startswith(f"override {override!r}: expected key=value")


def test_override_below_a_value(recipe: Path) -> None:
    message = refusal(recipe, "name.first=x")
    assert message == "override 'name.first=x': 'name' holds a value, not a section"


def test_override_with_an_unknown_key(recipe: Path) -> None:
    message = refusal(recipe, "inner.batchsize=8")
    assert message == "unknown key 'inner.batchsize': did you mean 'batch_size'?"


def test_override_whose_value_is_not_yaml(recipe: Path) -> None:
    assert "inner.batch_size=[1" in refusal(recipe, "inner.batch_size=[1")


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "1.e-4", "+1e-4", "0.0001"])
def test_scientific_notation_is_a_float(text: str) -> None:
    assert parse_yaml(text) == 1e-4
    assert isinstance(parse_yaml(text), float)


@pytest.mark.parametrize(("text", "value"), [("1e3x", "1e3x"), ("12", 12), ("e4", "e4")])
def test_what_only_resembles_a_float_stays_what_it_is(text: str, value: object) -> None:
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)


def test_dump_is_read_back_as_the_same_config(tmp_path: Path, recipe: Path) -> None:
    config = load(Outer, recipe, ["inner.figure={shape: square, side: 2}"])
    assert load(Outer, written(tmp_path, dump(config))) == config


def test_build_takes_a_mapping() -> None:
    assert build(Outer, {"name": "run"}) == Outer(name="run")


def test_a_key_that_stands_twice(recipe: Path) -> None:
    recipe.write_text("name: run\ninner: {batch_size: 1, batch_size: 2}\n", encoding="utf-8")
    assert "key 'batch_size' stands twice in one section" in refusal(recipe)


def test_a_file_that_is_not_utf8(recipe: Path) -> None:
    recipe.write_bytes(b"name: caf\xe9\n")
    assert "not valid YAML" in refusal(recipe)


def test_a_list_takes_the_place_of_a_section() -> None:
    class Curriculum(Config):
        spans: list[int] | Inner

    made = parse(Curriculum, ["spans=[1,2]"], {"spans": {"batch_size": 3}})
    assert made.spans == [1, 2]
