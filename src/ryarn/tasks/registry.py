"""The tasks by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from ryarn.errors import UserError
from ryarn.tasks import Task
from ryarn.tasks.babilong import Babilong, BabilongConfig
from ryarn.tasks.conflicts import Conflicts, ConflictsConfig
from ryarn.tasks.jsonl import Jsonl, JsonlConfig
from ryarn.tasks.longbench_v2 import LongBenchV2, LongBenchV2Config
from ryarn.tasks.lookalikes import Lookalikes, LookalikesConfig
from ryarn.tasks.mrcr import Mrcr, MrcrConfig

TaskConfig = Annotated[
    BabilongConfig
    | JsonlConfig
    | ConflictsConfig
    | LookalikesConfig
    | LongBenchV2Config
    | MrcrConfig,
    Field(discriminator="task"),
]
"""A recipe's data section: its `task` says which."""

CONFIGS: dict[
    str,
    type[
        BabilongConfig
        | JsonlConfig
        | ConflictsConfig
        | LookalikesConfig
        | LongBenchV2Config
        | MrcrConfig
    ],
] = {
    "babilong": BabilongConfig,
    "jsonl": JsonlConfig,
    "conflicts": ConflictsConfig,
    "lookalikes": LookalikesConfig,
    "longbench-v2": LongBenchV2Config,
    "mrcr": MrcrConfig,
}
TASKS: dict[str, Callable[[Any], Task]] = {
    "babilong": Babilong,
    "jsonl": Jsonl,
    "conflicts": Conflicts,
    "lookalikes": Lookalikes,
    "longbench-v2": LongBenchV2,
    "mrcr": Mrcr,
}
"""Name, as in a config's `task`, to the class that takes that config."""


def make_task(config: TaskConfig) -> Task:
    """The task that a config describes.

    Raises:
        UserError: No task has that name (only a config that was not validated can say so).
    """
    check_name(config.task)
    return TASKS[config.task](config)


def check_name(name: str) -> None:
    """See that there is such a task.

    Raises:
        UserError: There is none.
    """
    if name not in TASKS:
        raise UserError(f"task = {name!r} is unknown: known tasks are {', '.join(TASKS)}")
