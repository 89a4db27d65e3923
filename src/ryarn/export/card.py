"""The README of an export: what it is, what RoPE it has, how it was made and scored, its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ryarn.contract import Contract
from ryarn.export.check import TOLERANCE, Row
from ryarn.export.served import Served
from ryarn.runs import EVALUATION, RECIPE, RUN, read_json


@dataclass(frozen=True)
class Card:
    """What a README is made from.

    Attributes:
        name: Folder name of the export.
        contract: What the adapter was trained under.
        served: The RoPE that the export has.
        stored: What its weights are stored in.
        form: merged, unmerged, or a GGUF type.
        run: The run folder, or an adapter folder alone.
        notes: Engines that would serve something else, and the like.
    """

    name: str
    contract: Contract
    served: Served
    stored: str
    form: str
    run: Path
    notes: Sequence[str] = ()


def write_card(folder: Path, card: Card, rows: Sequence[Row]) -> None:
    """Write `README.md`."""
    parts = [
        _front_matter(card),
        f"# {card.name}",
        f"{card.contract.base.name} after training with ryarn, method `{card.contract.method}`, "
        f"{_FORMS.get(card.form, 'merged, as GGUF ' + card.form)}.",
        "## RoPE",
        _rope(card),
        "## Use",
        _use(card),
        "## Training",
        _training(card),
        "## Scores",
        _scores(card),
        "## Check",
        _check(card, rows),
        "## Limits",
        _limits(card),
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


_FORMS = {
    "merged": "adapter merged into the weights",
    "unmerged": "adapter and base apart",
}


def _front_matter(card: Card) -> str:
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    name = card.contract.base.name
    if name.count("/") == 1 and not name.startswith(("/", ".", "~")):
        lines.append(f"base_model: {name}")
    return "\n".join([*lines, "tags: [ryarn, yarn, long-context]", "---"])


def _rope(card: Card) -> str:
    served = card.served
    rows = {
        "scaling": served.scaling,
        "original window": f"{served.original_length} tokens",
        "window": f"{served.window} tokens",
        "theta": f"{served.theta:g}",
        "attention factor": f"{served.attention_factor:.6f}",
    }
    table = [f"| {key} | {value} |" for key, value in rows.items()]
    return "\n".join(["| | |", "| --- | --- |", *table, *(f"\n{note}" for note in card.notes)])


def _use(card: Card) -> str:
    if card.form == "unmerged":
        return (
            "`base/` is the base with YaRN in its config, `adapter/` the adapter. On the plain "
            "base the adapter answers nonsense.\n\n"
            "```python\n"
            'base = AutoModelForCausalLM.from_pretrained("base")\n'
            'model = PeftModel.from_pretrained(base, "adapter")\n'
            "```"
        )
    if card.form in _FORMS:
        return (
            "transformers and vLLM read all of it from `config.json`: no RoPE flag is needed.\n\n"
            "```python\n"
            f'model = AutoModelForCausalLM.from_pretrained("{card.name}", dtype="auto")\n'
            "```"
        )
    return (
        "llama.cpp reads all of it from the file: no RoPE flag is needed, only the context "
        f"(`-c {card.served.window}`, or less to save memory). `Modelfile` is for Ollama. "
        "transformers' own GGUF reader drops the YaRN keys."
    )


def _training(card: Card) -> str:
    contract = card.contract
    factor = contract.train_factor
    lines = [f"- method `{contract.method}`, positions `{contract.sampler}`"]
    lines.append("- YaRN factor s: " + ("none" if factor is None else f"{factor:g}"))
    if contract.spans:
        lines.append(f"- spans: {', '.join(map(str, contract.spans))}")
    if (card.run / RUN).is_file():
        run = read_json(card.run / RUN)
        data = run["data"]
        lines.append(
            f"- data: {data['rows']} rows, {data['tokens']} tokens, the longest {data['longest']}; "
            f"fingerprint `{data['fingerprint']}`"
        )
        lines.append(f"- seed {run['seed']}, {run.get('steps')} steps, {run['dtype']}")
    lines.append(
        f"- base: `{contract.base.name}` ({contract.base.model_type}), weights fingerprint "
        f"`{contract.base.fingerprint}`"
    )
    lines.append(
        "- versions: " + ", ".join(f"{key} {value}" for key, value in contract.versions.items())
    )
    if (card.run / RECIPE).is_file():
        text = (card.run / RECIPE).read_text("utf-8").rstrip()
        lines.append(f"\nRecipe:\n\n```yaml\n{text}\n```")
    return "\n".join(lines)


def _scores(card: Card) -> str:
    place = card.run / EVALUATION
    if not (place / "summary.json").is_file():
        return "Not evaluated."
    summary, manifest = read_json(place / "summary.json"), read_json(place / "manifest.json")
    mean = {
        bin_: "-" if value is None else f"{100 * value:.1f}"
        for bin_, value in summary["mean"].items()
    }
    text = (
        f"{manifest['task']}, rule `{summary['rule']}`, {manifest.get('split', 'test')} split, "
        f"adapter unmerged, {summary['scored']} of {summary['rows']} rows scored "
        f"({summary['skipped']} did not fit). Percent by length:\n\n"
        f"| {' | '.join(mean)} |\n|{' --- |' * len(mean)}\n| {' | '.join(mean.values())} |"
    )
    if manifest.get("eval_factor") != card.served.factor:
        text += (
            f"\n\nThese are for s' = {_number(manifest.get('eval_factor'))}, not for the "
            f"s' = {_number(card.served.factor)} of this export."
        )
    return text


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:g}"


def _check(card: Card, rows: Sequence[Row]) -> str:
    if not rows:
        return (
            "The file was read back: every tensor and every RoPE key is what was exported. Logits "
            "were not compared: transformers does not read this architecture from GGUF."
        )
    lines = [f"| {row.reach} | {row.difference:.1e} |" for row in rows]
    return "\n".join(
        [
            "Logits of this export, loaded in a new process, in float32, against the adapter run: "
            "root mean square of the difference, in standard deviations of the logits, for 64 "
            "tokens at positions up to the given one. "
            f"More than {TOLERANCE[card.stored]:g} is an error.",
            "",
            "| last position | difference |",
            "| --- | --- |",
            *lines,
        ]
    )


def _limits(card: Card) -> str:
    lines = []
    if card.served.factor is not None:
        lines.append(
            "- YaRN is static: short prompts run under it, too, and may be answered worse than by "
            "the base."
        )
        lines.append(
            f"- Beyond {card.served.window} tokens nothing is known; within them only the lengths "
            "above were measured."
        )
    lines.append("- Licence and limits of the base model hold for this one.")
    return "\n".join(lines)
