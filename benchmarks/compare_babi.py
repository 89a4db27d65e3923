"""Compare the simulated bAbI stories with the original files, and print the table of docs/babi.md.

    python benchmarks/compare_babi.py qa1_train.txt qa2_train.txt qa3_train.txt

The files are the English training files of the bAbI tasks v1.2 (Weston et al. 2015).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ryarn.tasks import babi
from ryarn.tasks.babi import QUESTION_TYPES, QuestionType, Story

SIMULATED = 20_000
SEED = 0


def read_original(path: Path) -> list[Story]:
    """Each question as a story of its own: the facts before it, earlier questions left out."""
    stories: list[Story] = []
    facts: list[str] = []
    number_of_line: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        number, text = line.split(" ", 1)
        if number == "1":
            facts, number_of_line = [], {}
        if "\t" not in text:
            number_of_line[number] = len(facts)
            facts.append(text)
            continue
        question, answer, support = text.split("\t")
        stories.append(
            Story(
                tuple(facts),
                question.strip(),
                answer,
                tuple(number_of_line[n] for n in support.split()),
                babi.is_multi_entry(facts, question),
            )
        )
    return stories


def matches(stories: Sequence[Story]) -> list[re.Match[str]]:
    found = [babi.FACT.fullmatch(fact) for story in stories for fact in story.facts]
    return [match for match in found if match]


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def spread(values: Sequence[float]) -> str:
    low, middle, high = np.percentile(values, [10, 50, 90])
    return f"{np.mean(values):.1f} ({low:.0f}, {middle:.0f}, {high:.0f})"


def shares(values: Sequence[str]) -> str:
    counts = [count / len(values) for count in Counter(values).values()]
    return f"{percent(min(counts))} to {percent(max(counts))}"


def solved(stories: Sequence[Story]) -> str:
    right = sum(babi.solve(story.facts, story.question) == story.answer for story in stories)
    return f"{right:,} of {len(stories):,}"


def two_befores(story: Story) -> bool:
    """Whether the text tells two different places from which the object came to the asked one."""
    asked = re.findall(r"the (\w+)", story.question)
    befores = set()
    for end in range(1, len(story.facts) + 1):
        try:
            befores.add(babi.solve(story.facts[:end], story.question))
        except ValueError:
            continue
    return len(asked) == 2 and len(befores) > 1


def depth(index: int, stories: Sequence[Story]) -> str:
    return spread([len(story.facts) - story.support[index] for story in stories])


def there(stories: Sequence[Story], kind: str) -> str:
    verbs = [match for match in matches(stories) if match[kind]]
    return percent(float(np.mean([match.group().endswith(" there.") for match in verbs])))


def measures(kind: QuestionType) -> dict[str, Callable[[Sequence[Story]], str]]:
    rows: dict[str, Callable[[Sequence[Story]], str]] = {
        "answers that the solver finds from the text": solved,
        "facts before the question: mean (10%, 50%, 90%)": lambda s: spread(
            [len(story.facts) for story in s]
        ),
        "longest": lambda s: str(max(len(story.facts) for story in s)),
        "moves among the facts": lambda s: percent(
            float(np.mean([bool(match["move"]) for match in matches(s)]))
        ),
        "shares of the five verbs of moving": lambda s: shares(
            [match["move"] for match in matches(s) if match["move"]]
        ),
        "shares of the four actors": lambda s: shares([match["actor"] for match in matches(s)]),
        "shares of the six answers": lambda s: shares([story.answer for story in s]),
    }
    for index, fact in enumerate(
        {
            "qa1": ["the move"],
            "qa2": ["the take or drop", "the move"],
            "qa3": ["the take or drop", "the move into the asked place", "the move before"],
        }[kind]
    ):
        rows[f"facts from {fact} to the end: mean (10%, 50%, 90%)"] = partial(depth, index)
    if kind != "qa1":
        rows["takes"] = lambda s: percent(float(np.mean([bool(m["take"]) for m in matches(s)])))
        rows["takes that end in there"] = lambda s: there(s, "take")
        rows["drops that end in there"] = lambda s: there(s, "drop")
        rows["the object is held when asked about"] = lambda s: percent(
            float(np.mean([story.support[0] < story.support[1] for story in s]))
        )
    if kind == "qa3":
        rows["multi-entry"] = lambda s: percent(float(np.mean([t.multi_entry for t in s])))
        rows["multi-entry with two different places before"] = lambda s: percent(
            float(np.mean([two_befores(story) for story in s[:2000]]))
        )
    return rows


def main(paths: list[str]) -> None:
    if not paths:
        sys.exit(__doc__)
    for path in map(Path, paths):
        (kind,) = (kind for kind in QUESTION_TYPES if path.name.startswith(f"{kind}_"))
        rng = np.random.default_rng(SEED)
        original = read_original(path)
        simulated = [babi.simulate(kind, rng) for _ in range(SIMULATED)]
        print(f"## {kind}\n\n| | original | simulated |\n|---|---|---|")
        for name, measure in measures(kind).items():
            print(f"| {name} | {measure(original)} | {measure(simulated)} |")
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
