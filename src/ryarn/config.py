"""Strict YAML with dotted overrides: load, refuse in one sentence, dump. Knows no config class."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from ryarn.errors import UserError

SECRET = "secret"
"""Type of a pydantic error whose input must not be shown."""


class Config(BaseModel):
    """Base of every config: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


C = TypeVar("C", bound=Config)


class _Loader(yaml.SafeLoader):
    """Safe YAML in which `1e-4` is a number, as in YAML 1.2, and no key may stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise yaml.YAMLError(f"key {twice[0]!r} stands twice in one section")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str) -> Any:
    """Parse YAML safely (no Python objects); `1e-4` is a float.

    Raises:
        yaml.YAMLError: The text is not YAML, or a value is not what its form says (`2001-13-45`).
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise yaml.YAMLError(f"a value can't be read: {error}") from error


def load(config: type[C], path: Path, overrides: Iterable[str] = ()) -> C:
    """Read a YAML file, apply `key.subkey=value` overrides, and check the result.

    Raises:
        UserError: The file is missing or not YAML, an override has no `=`, a key is unknown (the
            nearest known one is named), or a value does not fit.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such recipe file")
    try:
        data = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping of keys to values at the top level")
    return parse(config, overrides, data)


def parse(config: type[C], overrides: Iterable[str], data: dict[str, Any] | None = None) -> C:
    """Apply `key.subkey=value` overrides to a mapping and check the result.

    Args:
        config: The config class.
        overrides: What to set, each value read as YAML.
        data: What to start from; changed in place.

    Raises:
        UserError: As for `load`.
    """
    data = {} if data is None else data
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise UserError(f"override {override!r}: expected key=value, e.g. train.batch_size=2")
        try:
            parsed = parse_yaml(value)
        except yaml.YAMLError as error:
            raise UserError(f"override {override!r}: its value is not YAML") from error
        _assign(data, key.split("."), parsed, override)
    return build(config, data)


def build(config: type[C], data: Mapping[str, Any]) -> C:
    """Check a mapping against a config class.

    Raises:
        UserError: A key is unknown, missing, or its value does not fit; one sentence for the first.
    """
    try:
        return config.model_validate(dict(data))
    except ValidationError as error:
        raise UserError(_sentence(config, error)) from error


def dump(config: Config) -> str:
    """The config as YAML, every value spelled out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _assign(data: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    for key in keys[:-1]:
        inner = data.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UserError(f"override {override!r}: {key!r} holds a value, not a section")
        data = inner
    # A list may take a section's place (spans by a rule, or one by one), and null may empty it.
    section = data.get(keys[-1])
    if section and isinstance(section, dict) and isinstance(value, str | int | float):
        name = ".".join(keys)
        raise UserError(
            f"override {override!r}: {name} is a section; set one of its keys, e.g. "
            f"{name}.{next(iter(section))}=..."
        )
    data[keys[-1]] = value


def _sentence(config: type[Config], error: ValidationError) -> str:
    errors = error.errors(include_url=False)
    # A misspelt key is also a missing one: what was written says more.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    where = [str(part) for part in first["loc"]]
    name = ".".join(where)
    if first["type"] == "extra_forbidden":
        known = sorted(_fields(config, first["loc"][:-1]))
        close = difflib.get_close_matches(where[-1], known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        return f"unknown key {name!r}: {hint}"
    if first["type"] == "missing":
        return f"missing key {name!r}: the recipe must give it"
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error" and not where:
        return reason
    if first["type"] == SECRET:
        return f"{name}: {reason}"
    return f"{name or 'recipe'} = {first['input']!r}: {reason}"


def leaves(section: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key to value, of sections in sections; what is no section has no key: ""."""
    if not isinstance(section, Mapping):
        return {prefix.rstrip("."): section}
    found: dict[str, Any] = {}
    for key, value in section.items():
        found |= leaves(value, f"{prefix}{key}.")
    return found


def _fields(config: type[Config], where: tuple[int | str, ...]) -> set[str]:
    """Names of the fields of the config class that stands at a place of the recipe."""
    candidates: list[type[Config]] = [config]
    for part in where:
        found: list[type[Config]] = []
        for candidate in candidates:
            info = candidate.model_fields.get(str(part))
            if info is not None:
                found += _config_classes(info.annotation)
        # A tagged union puts its tag into the path: that part names no field.
        candidates = found or candidates
    return {name for candidate in candidates for name in candidate.model_fields}


def _config_classes(annotation: Any) -> list[type[Config]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [c for inner in getattr(annotation, "__args__", ()) for c in _config_classes(inner)]
