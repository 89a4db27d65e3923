"""The documentation against the code: every key, every public name, every link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import ryarn
from ryarn.backends.config import OpenAIConfig, VllmConfig
from ryarn.config import Config
from ryarn.method import METHODS
from ryarn.recipe import (
    ChunksConfig,
    CurriculumConfig,
    EvaluateConfig,
    MethodConfig,
    ModelConfig,
    Recipe,
)
from ryarn.recipe import TrainConfig as Train
from ryarn.tasks.registry import CONFIGS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
SECTIONS: dict[str, type[Config]] = {
    "The recipe": Recipe,
    "model": ModelConfig,
    "method": MethodConfig,
    "train": Train,
    "evaluate": EvaluateConfig,
    "vLLM": VllmConfig,
    "A server": OpenAIConfig,
    **CONFIGS,
}
"""Heading of docs/training.md to the config class that its table lists."""


def section(title: str) -> str:
    """The text below a heading, up to the next heading of any level."""
    text = (DOCS / "training.md").read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/training.md has no heading {title!r}"
    return found[1]


def table(title: str) -> dict[str, str]:
    """Key to default, from the tables of a section."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\| ", section(title), re.MULTILINE))


@pytest.mark.parametrize("title", SECTIONS)
def test_the_recipe_reference_lists_every_key_and_no_other(title: str) -> None:
    keys = set(SECTIONS[title].model_fields)
    if title == "method":
        keys |= {*CurriculumConfig.model_fields, *ChunksConfig.model_fields}
    assert set(table(title)) == keys


@pytest.mark.parametrize("title", SECTIONS)
def test_the_recipe_reference_has_the_defaults(title: str) -> None:
    fields = dict(SECTIONS[title].model_fields)
    if title == "method":
        fields |= CurriculumConfig.model_fields | ChunksConfig.model_fields
    written = table(title)
    for key, field in fields.items():
        # The default of these is only how a section is told apart.
        if field.is_required() or key in ("task", "name"):
            assert written[key] == "", key
        else:
            default = field.get_default(call_default_factory=True)
            default = default.model_dump() if isinstance(default, Config) else default
            assert yaml.safe_load(written[key].replace("1e-4", "0.0001")) == default, key


def test_every_public_name_is_in_the_docs() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    words = set(re.findall(r"\w+", text))
    assert set(ryarn.__all__) - words == set()


def test_every_method_is_in_the_table_of_methods() -> None:
    text = (DOCS / "method.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w+-]+)` \| (?:yes|no) ", text, re.MULTILINE) == list(METHODS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
