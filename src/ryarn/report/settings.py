"""What the runs of a report were made with: what all share, and what differs, by method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ryarn.report.tables import DASH

if TYPE_CHECKING:
    from ryarn.report.results import Method, Report

SHORT_HASH = 12
NAMES = {
    "dtype": "dtype",
    "seed": "seeds",
    "train_factor": "factor s (training)",
    "eval_factor": "factor s' (inference)",
    "original_length": "original length L_pre",
    "train_length": "training length",
    "adapter": "adapters (SHA-256)",
    "data": "evaluation rows (SHA-256)",
    "data_revision": "edition of the evaluation rows",
}
FIRST = ("model", "dtype", "seed", "train_factor", "eval_factor", "original_length")
LAST = ("adapter", "folder")
OMITTED = ("label", "task")


def settings(report: Report) -> tuple[list[list[str]], list[list[str]]]:
    """The settings of a report's runs.

    Returns:
        Lines of name and value that hold for every method; and a table, header first, of those
        that differ, a column for each method. Where runs of one method differ, their values stand
        in the order of their seeds.
    """
    columns = [_of_method(method) for method in report.methods]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    keys.sort(key=_rank)
    shared, differing = [], [["", *report.labels]]
    for key in keys:
        values = [column.get(key, DASH) for column in columns]
        # An untrained method has no training settings; that makes them no less shared.
        present = {value for value in values if value != DASH}
        optional = key.startswith("train.")
        if not present:
            continue
        if len(present) == 1 and (optional or DASH not in values):
            shared.append([NAMES.get(key, key), next(iter(present))])
        else:
            differing.append([NAMES.get(key, key), *values])
    return shared, differing


def _rank(key: str) -> int:
    top = key.partition(".")[0]
    return FIRST.index(top) if top in FIRST else len(FIRST) + (top in LAST)


def _of_method(method: Method) -> dict[str, str]:
    """Dotted key to value; runs are in the order of their seeds."""
    runs = sorted(method.runs, key=lambda run: int(run.manifest.get("seed", 0)))
    flat = [_leaves(run.manifest) for run in runs]
    found: dict[str, str] = {}
    for key in dict.fromkeys(key for leaves in flat for key in leaves):
        values = [_plain(key, leaves.get(key)) for leaves in flat]
        found[key] = values[0] if len(set(values)) == 1 else " ".join(values)
    found["folder"] = " ".join(run.folder for run in runs)
    return found


def _leaves(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in section.items():
        if not prefix and key in OMITTED:
            continue
        if isinstance(value, dict) and key != "versions":
            found |= _leaves(value, f"{prefix}{key}.")
        elif value is not None:
            found[prefix + key] = value
    return found


def _plain(key: str, value: Any) -> str:
    """A manifest value in one line; hashes are cut to their first digits."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(k, v)}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(_plain(key, item) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    if key in ("adapter", "data") and isinstance(value, str):
        return value[:SHORT_HASH]
    return DASH if value is None else str(value)
