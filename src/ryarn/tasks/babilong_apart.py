"""Published BABILong stories that would be trained on and tested on: found by their content."""

from __future__ import annotations

from ryarn.config import Config
from ryarn.errors import UserError
from ryarn.tasks.babilong import SIMULATOR, Babilong, BabilongConfig


def check_babilong_apart(
    train: Config, evaluate: Config, split: str, learned: tuple[str, ...]
) -> None:
    """See that no published story that is evaluated is one that is learned from.

    A story is its facts and its question, in whatever prose. Simulated stories are apart from each
    other by construction; from published ones `exclude` keeps them.

    Args:
        train: The recipe's `train.data`; looked at are two configs of BABILong.
        evaluate: The recipe's `evaluate.data`.
        split: Which rows of it are evaluated.
        learned: Splits of the training data that no result may come from.

    Raises:
        UserError: There is such a story, or the rows can't be read.
    """
    if not isinstance(train, BabilongConfig) or not isinstance(evaluate, BabilongConfig):
        return
    if SIMULATOR in (train.source, evaluate.source):
        return
    mine: dict[str, str] = {}
    for part in learned:
        mine |= _sources(train, part)
    theirs = _sources(evaluate, split)
    shared = [source for source in theirs if source in mine]
    if shared:
        raise UserError(
            f"evaluate.data: {len(shared):,} of its stories are in train.data, too (row "
            f"{theirs[shared[0]]} there is {mine[shared[0]]} here): set train.data.exclude to "
            f"[{evaluate.source}], or evaluate on other rows"
        )


def _sources(config: BabilongConfig, split: str) -> dict[str, str]:
    """Story to the id of its first row; published rows need no tokenizer."""
    found: dict[str, str] = {}
    plain = config.model_copy(update={"count_with": None})
    for example in Babilong(plain).published(split):
        found.setdefault(example.source, example.id)
    return found
