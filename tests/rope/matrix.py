"""What ryarn does with each causal-LM family of the installed transformers: checks, and a table.

`python tests/rope/matrix.py` writes docs/models.md.
"""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from small_models import FAMILIES, build, small_config
from torch import nn

from ryarn import Extension, extend, make_method
from ryarn.errors import UserError
from ryarn.rope.blank import changes
from ryarn.rope.inspect import LOCAL, Rope, inspect_rope
from ryarn.rope.phases import FAR, phases_differ

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
METHOD = make_method("randomized-yarn", factor=4, spans=[512], replace_scaling=True)

NOT_BUILT = {
    "musicgen": "transformers can't build it from its own config class",
    "musicgen_melody": "transformers can't build it from its own config class",
    "gemma3n": "its vision tower needs the package timm; its text model is gemma3n_text",
    "gemma4_assistant": "its default config breaks its own rules",
    "dots3_note": "its audio adapter has the full size; its text model is dots3_note_text",
    "zamba": "its layers are tied by a pattern that a short model breaks; it has no RoPE",
}
"""Family to the reason why no small model of it is made."""


@dataclass(frozen=True)
class Result:
    """What became of one family.

    Attributes:
        family: transformers' model type.
        outcome: supported, refused, no RoPE, or not built.
        layers: Attention layers that RoPE moves, and those at drawn positions.
        packing: Whether packed documents are kept apart.
        note: Scaling that the default config has, or the reason.
    """

    family: str
    outcome: str
    layers: str = ""
    packing: str = ""
    note: str = ""

    def row(self) -> str:
        """A line of the table."""
        cells = (f"`{self.family}`", self.outcome, self.layers, self.packing, self.note)
        return "| " + " | ".join(cells) + " |"


def examine(family: str, **extra: Any) -> Result:
    """Build a small model of a family, put the method on, test it, take it off.

    Args:
        family: transformers' model type.
        extra: Config keys beside the small ones.

    Raises:
        AssertionError: Something is wrong that ryarn did not refuse.
    """
    if family in NOT_BUILT:
        return Result(family, "not built", note=NOT_BUILT[family])
    config = small_config(family, **extra)
    try:
        inspect_rope(build(config, device="meta"))
        model = build(config)
        extension = extend(model, METHOD)
        before = extension.description
        extension.verify()
    except UserError as error:
        outcome = "no RoPE" if "has no RoPE (no rotary" in str(error) else "refused"
        return Result(family, outcome, note="" if outcome == "no RoPE" else _reason(error))
    extension.remove()
    _check_removal(model, config)
    extension = extend(model, METHOD)
    layers = _check_layers(model, extension)
    _check_round_trip(model, extension)
    packing = "yes" if _packs(extension) else "no"
    return Result(family, "supported", layers, packing, _note(extension, before))


def _reason(error: UserError) -> str:
    """The message without the model's name and the remedy."""
    text = str(error).removeprefix(str(error).partition(": ")[0] + ": ")
    if "does not accept YaRN" in str(error):
        return str(error).partition(", so ")[0]
    for remedy in (": use ", "; ", ", so ", ", and a saved", ", where drawn"):
        text = text.partition(remedy)[0]
    return text.replace("|", "/")


def _packs(extension: Extension) -> bool:
    extension.verify()
    return extension._remapper.packing_fault is None


def _note(extension: Extension, description: str) -> str:
    notes = []
    first = description.partition(": ")[2].partition(" -> ")[0]
    if not first.startswith("plain"):
        notes.append(first.partition(" scaling")[0] + " in its default config")
    if extension.rope_map.untouched:
        kinds = {str(rope.layer_type) for rope in extension.rope_map.untouched}
        notes.append(f"RoPE of its own for {', '.join(sorted(kinds))}")
    if extension.rope_map.local:
        notes.append("windowed layers share the frequencies, at ordinary positions")
    if extension.rope_map.recurrent:
        notes.append("recurrent layers beside attention")
    return "; ".join(notes)


def logits(model: Any) -> torch.Tensor:
    """Of one row of twelve tokens, no cache."""
    tokens = torch.arange(5, 17)[None]
    with torch.no_grad():
        out: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return out


def _check_removal(removed: Any, config: Any) -> None:
    """A model that was extended and given back is the one that was never touched, bit for bit."""
    fresh = build(copy.deepcopy(config))
    assert torch.equal(logits(removed), logits(fresh))
    assert removed.config.to_dict() == fresh.config.to_dict()
    _assert_same(removed, fresh)
    for module in removed.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks


def _assert_same(one: nn.Module, two: nn.Module) -> None:
    """Equal attributes and buffers; weights are compared by the logits."""
    assert changes(one, two) == []
    for (name, mine), (_, theirs) in zip(one.named_buffers(), two.named_buffers(), strict=True):
        assert torch.equal(mine, theirs), name
        assert mine.dtype == theirs.dtype, name


def _check_round_trip(model: Any, extension: Extension) -> None:
    """The saved config builds a model that answers as the extended one does, without ryarn."""
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        loaded = type(model.config).from_pretrained(folder)
    again = build(loaded, kind=type(model))
    again.load_state_dict(model.state_dict())
    live, read = extension.rope_map.config, inspect_rope(again)
    assert read.config.rope_parameters == live.rope_parameters
    assert read.config.max_position_embeddings == live.max_position_embeddings
    assert read.native_factor == METHOD.train_factor
    assert read.original_length == extension.rope_map.original_length
    for mine, theirs in zip(extension.rope_map.extended, read.extended, strict=True):
        assert torch.equal(mine.inv_freq, theirs.inv_freq)
        assert mine.attention_factor == theirs.attention_factor
    assert torch.equal(logits(model), logits(again))


def _check_layers(model: Any, extension: Extension) -> str:
    """Each attention layer at its positions: drawn ones in full layers, ordinary in windowed ones.

    Returns:
        How many layers RoPE moves of all that are handed an embedding, and how many of them are at
        drawn positions.
    """
    decoder, taken = extension.rope_map.decoder, {}

    def take(module: nn.Module, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        taken[module] = (bound.args, bound.kwargs)

    def innermost(module: nn.Module) -> bool:
        return takes_embedding(module) and not any(
            takes_embedding(child) for child in module.modules() if child is not module
        )

    modules = [module for module in decoder.modules() if innermost(module)]
    hooks = [m.register_forward_pre_hook(take, with_kwargs=True) for m in modules]
    drawn = torch.tensor([FAR])
    tokens = torch.arange(len(FAR))[None] + 30
    with torch.no_grad(), extension._remapper.forced(drawn):
        decoder(input_ids=tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    moved = far = 0
    for module, (args, kwargs) in taken.items():
        wanted = torch.arange(len(FAR)) if _windowed(module, extension) else drawn[0]
        embedding = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        rope = _rope_of(module, extension)
        if embedding.get("position_embeddings") is None:
            continue
        assert phases_differ(embedding["position_embeddings"], wanted, rope) is None
        if _moves(module, args, kwargs):
            moved += 1
            far += not _windowed(module, extension)
    if not taken:
        return "in each layer"
    return f"{moved} of {len(taken)}, {far} drawn"


def takes_embedding(module: nn.Module) -> bool:
    """Whether a module is handed cos and sin."""
    return "position_embeddings" in inspect.signature(module.forward).parameters


def _kind(module: nn.Module, extension: Extension) -> str:
    kinds = getattr(extension.rope_map.config, "layer_types", None)
    index = getattr(module, "layer_idx", None)
    return kinds[index] if kinds and isinstance(index, int) else "full_attention"


def _windowed(module: nn.Module, extension: Extension) -> bool:
    return _kind(module, extension) in LOCAL


def _rope_of(module: nn.Module, extension: Extension) -> Rope:
    kind = _kind(module, extension)
    ropes = (*extension.rope_map.extended, *extension.rope_map.untouched)
    return next((rope for rope in ropes if rope.layer_type == kind), ropes[0])


def _moves(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether the layer's output depends on the embedding it is handed."""

    def run(turn: float) -> Any:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        given = bound.arguments["position_embeddings"]
        if isinstance(given, torch.Tensor):
            bound.arguments["position_embeddings"] = given * turn
        else:
            bound.arguments["position_embeddings"] = tuple(part * turn for part in given)
        with torch.no_grad():
            out = module(*bound.args, **bound.kwargs)
        return out if isinstance(out, torch.Tensor) else out[0]

    return not torch.equal(run(1.0), run(0.5))


_HEAD = """# Models

What ryarn does with each causal-LM family of transformers {version}, tried on a small random model
of it: put `randomized-yarn` on, run the self-test, see which layers are at which positions, save
the config and build from it again, take everything off and compare bit for bit.
`python tests/rope/matrix.py` writes this page, and `tests/rope/test_matrix.py` fails where it is
stale. The code holds no list of models: rotary modules, layer types, rotary dimension and scaling
are read off the live model.

- **supported**: all of that passed. *Layers*: how many attention layers RoPE moves in the small
  model, and how many of them are at drawn positions. *Packing*: whether the model itself keeps
  packed documents apart, with eager attention. Where it does not, rows that are not packed train
  as they should, and a packed one is refused.
- **refused**: a clear error before anything is trained, with this reason.
- **not built**: no small model is made here, and why.
- **no RoPE**: no rotary module, so nothing that YaRN could extend. (GPT-J, CodeGen and RoFormer
  rotate by a fixed table without frequencies, and are among them.)

The scaling named is that of the family's default config. Where it is of another type than YaRN,
`method.replace_scaling: true` is needed to put YaRN in its place.

"""


def page(results: list[Result]) -> str:
    """docs/models.md."""
    version = importlib.metadata.version("transformers")
    counts = {o: sum(r.outcome == o for r in results) for o in _ORDER}
    total = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    text = _HEAD.format(version=version) + f"{len(results)} families: {total}.\n"
    for outcome in _ORDER:
        rows = [result for result in results if result.outcome == outcome]
        if outcome == "no RoPE":
            names = ", ".join(f"`{result.family}`" for result in rows)
            text += f"\n## No RoPE\n\n{_wrapped(names)}\n"
            continue
        text += f"\n## {outcome.capitalize()}\n\n"
        text += "| Family | Outcome | Layers | Packing | Note |\n| --- | --- | --- | --- | --- |\n"
        text += "".join(result.row() + "\n" for result in rows)
    return text


_ORDER = ("supported", "refused", "not built", "no RoPE")


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 118, break_on_hyphens=False, break_long_words=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    found = []
    for name in sys.argv[1:] or FAMILIES:
        try:
            found.append(examine(name))
            print(found[-1].row(), flush=True)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if sys.argv[1:]:
                raise
    if not sys.argv[1:] and len(found) == len(FAMILIES):
        PAGE.write_text(page(found), encoding="utf-8")
