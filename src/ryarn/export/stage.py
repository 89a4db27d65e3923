"""The export stage: load the adapter run, write it for an engine, and see that it is the same."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ryarn.config import build
from ryarn.contract import Contract
from ryarn.errors import UserError
from ryarn.export.card import Card, write_card
from ryarn.export.check import TOLERANCE, Row, check, write_reference
from ryarn.export.gguf_keys import check_model, check_type
from ryarn.export.gguf_tokenizer import Words, read_words
from ryarn.export.served import (
    Served,
    choose_factor,
    engine_notes,
    read_served,
    serve_line,
    vllm_here,
    vllm_refusal,
)
from ryarn.export.target import MANIFEST, Target, claim
from ryarn.loading import load, set_inference_rope
from ryarn.models import load_tokenizer, model_files, resolve_dtype
from ryarn.recipe import ModelConfig
from ryarn.rope import RopeMap, inspect_rope
from ryarn.runs import ADAPTER, RUN, read_json, write_json
from ryarn.versions import versions

FORMS = ("merged", "unmerged", "f32", "f16", "q8_0")
_SERVED = "served.json"


@dataclass(frozen=True)
class Exported:
    """What an export came to.

    Attributes:
        folder: Where it is.
        rows: The comparison with the adapter run; empty where transformers can't read the format.
        tolerance: What each difference was allowed to be.
        served: The RoPE it has.
        notes: Engines that would serve something else, and the like, a sentence each.
        serve: How vLLM serves it, or why the release that is installed here can't; empty for GGUF.
        again: It was there already, and nothing was done.
    """

    folder: Path
    rows: tuple[Row, ...]
    tolerance: float
    served: Served
    notes: tuple[str, ...]
    serve: str = ""
    again: bool = False


@dataclass(frozen=True)
class _Job:
    """What is exported, and as what."""

    run: Path
    adapter: Path
    contract: Contract
    factor: float | None
    config: ModelConfig
    form: str
    words: Words | None = None

    @property
    def is_gguf(self) -> bool:
        return self.form not in ("merged", "unmerged")

    @property
    def stored(self) -> str:
        """What the weights are stored in, a key of `TOLERANCE`."""
        return self.form if self.is_gguf else self.config.dtype

    @property
    def base_folder(self) -> Path | None:
        """The base model's folder, where it has one."""
        files = model_files(self.config)
        return files if files is not None and files.is_dir() else None


def export(
    run: str | Path,
    to: str | Path,
    *,
    factor: float | None = None,
    base: str | None = None,
    form: str = "merged",
) -> Exported:
    """Export what was trained, so that it runs without ryarn.

    Args:
        run: A run folder of `ryarn train`, or an adapter folder with its `ryarn.json`.
        to: Folder to make.
        factor: YaRN factor s' to serve with; None is the run's.
        base: Base model, if it is not where it was in training.
        form: merged (one model in safetensors), unmerged (adapter and base apart), or a GGUF type
            (f32, f16, q8_0).

    Raises:
        UserError: There is no adapter, the factor does not fit it, the folder is taken, or the
            format can't say what was trained.
        SelfTestError: The export computes something else than the adapter run.
    """
    job = _make_job(Path(run), factor, base, form)
    target = claim(Path(to), _request(job))
    if target.whole:
        facts = read_json(target.folder / MANIFEST)
        rows = [Row(**row) for row in facts["check"]]
        return _outcome(job, target, Served(**facts["served"]), rows, again=True)
    if not target.written:
        _write(job, target)
    served = Served(**read_json(target.partial / _SERVED))
    rows = check(target.partial, job.stored) if _is_readable(job) else []
    card = Card(
        *(target.folder.name, job.contract, served, job.stored, job.form, job.run),
        notes=_notes(job, served),
    )
    write_card(target.partial, card, rows)
    (target.partial / _SERVED).unlink()
    trained = {key: getattr(job.contract, key) for key in ("method", "train_factor")}
    facts = {"trained": trained, "served": asdict(served), "check": [asdict(row) for row in rows]}
    target.finish(facts)
    return _outcome(job, target, served, rows)


def _make_job(run: Path, factor: float | None, base: str | None, form: str) -> _Job:
    if form not in FORMS:
        raise UserError(f"--gguf {form}: known types are f32, f16 and q8_0")
    adapter = run / ADAPTER if (run / ADAPTER).is_dir() else run
    contract = Contract.load(adapter)
    where = {"name": base} if base else {k: getattr(contract.base, k) for k in ("name", "revision")}
    trained = read_json(run / RUN)["dtype"] if (run / RUN).is_file() else "auto"
    dtype = str(resolve_dtype(trained)).removeprefix("torch.")
    config = build(ModelConfig, {**where, "dtype": dtype})
    job = _Job(run, adapter, contract, choose_factor(contract, factor), config, form)
    if job.is_gguf:
        check_type(contract.base.model_type)
        return replace(job, words=read_words(load_tokenizer(config), model_files(config)))
    return job


def _request(job: _Job) -> dict[str, Any]:
    weights = job.adapter / "adapter_model.safetensors"
    if not weights.is_file():
        raise UserError(f"{job.adapter}: no adapter_model.safetensors there; is the run finished?")
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "form": job.form,
        "eval_factor": job.factor,
        "adapter": digest,
        "base": job.contract.base.fingerprint,
        "dtype": job.config.dtype,
        "ryarn": versions()["ryarn"],
    }


def _write(job: _Job, target: Target) -> None:
    """Everything that needs the model in memory."""
    base = None if job.config.name == job.contract.base.name else job.config.name
    # Merged in float32 and rounded once, and compared in float32.
    model, tokenizer = load(job.adapter, base=base, dtype="float32")
    # Training under the contract needed the word that another scaling may be replaced.
    set_inference_rope(model, job.factor, replace=True)
    rope_map = inspect_rope(model)
    served = read_served(rope_map)
    if job.is_gguf:
        check_model(rope_map.config, served)
    folder = target.begin()
    write_reference(folder, model, tokenizer, served)
    write_json(folder / _SERVED, asdict(served))
    _WRITERS["gguf" if job.is_gguf else job.form](job, target, _Live(model, tokenizer, rope_map))
    target.mark_written()
    # The new process holds the weights, too: two copies at once need not be.
    del model, rope_map
    gc.collect()


@dataclass(frozen=True)
class _Live:
    """The adapter run in memory."""

    model: Any
    tokenizer: Any
    rope_map: RopeMap

    @property
    def served(self) -> Served:
        return read_served(self.rope_map)


def _write_merged(job: _Job, target: Target, live: _Live) -> None:
    from ryarn.export.files import write_small_files
    from ryarn.export.weights import save

    model = live.model.merge_and_unload()
    save(model, target.partial, job.config.dtype)
    write_small_files(target.partial, job.base_folder, model, live.tokenizer, live.rope_map)


def _write_unmerged(job: _Job, target: Target, live: _Live) -> None:
    from ryarn.export.files import write_small_files
    from ryarn.export.weights import save_apart

    base = job.base_folder
    save_apart(live.model, job.adapter, target, base, job.config.dtype)
    model = live.model.get_base_model()
    write_small_files(target.partial / "base", base, model, live.tokenizer, live.rope_map)


def _write_gguf(job: _Job, target: Target, live: _Live) -> None:
    from ryarn.export.gguf_write import read_back, write_gguf
    from ryarn.export.ollama import write_modelfile

    path = target.partial / f"{target.folder.name}-{job.form}.gguf"
    model = live.model.merge_and_unload()
    assert job.words is not None
    write_gguf(path, model, job.words, live.served, job.form)
    if not _is_readable(job):
        read_back(path, model, job.form)
    write_modelfile(path, live.served.window, live.tokenizer.eos_token)


_WRITERS: dict[str, Callable[[_Job, Target, _Live], None]] = {
    "merged": _write_merged,
    "unmerged": _write_unmerged,
    "gguf": _write_gguf,
}


def _is_readable(job: _Job) -> bool:
    """Whether transformers can load what is written, for the comparison of logits."""
    return not job.is_gguf or job.contract.base.model_type in ("llama", "qwen2", "qwen3")


def report_lines(exported: Exported) -> list[str]:
    """What to tell about an export, a line each."""
    served = exported.served
    lines = [
        f"positions up to {row.reach}: differs from the adapter run by {row.difference:.1e} "
        f"(allowed {exported.tolerance:g})"
        for row in exported.rows
    ]
    if not lines:
        lines = ["every tensor was read back; transformers can't run this file to compare logits"]
    lines += [f"note: {note}" for note in exported.notes]
    made = "is there already" if exported.again else "written"
    lines.append(f"{exported.folder} {made}: {served.scaling}, window {served.window}")
    return [*lines, *([exported.serve] if exported.serve else [])]


def _outcome(
    job: _Job, target: Target, served: Served, rows: Sequence[Row], *, again: bool = False
) -> Exported:
    allowed, notes, serve = TOLERANCE[job.stored], _notes(job, served), _serve(job, target, served)
    return Exported(target.folder, tuple(rows), allowed, served, notes, serve, again)


def _serve(job: _Job, target: Target, served: Served) -> str:
    if job.is_gguf:
        return ""
    here = vllm_here()
    kind = job.contract.base.model_type
    refusal = here and vllm_refusal(here, versions()["transformers"], kind, served)
    if refusal:
        return f"not for the vLLM installed here: {refusal}"
    rank = int(read_json(job.adapter / "adapter_config.json")["r"])
    line = serve_line(target.folder, job.form, job.stored, served.window, rank)
    return f"serve it: {line}" + (f" (vLLM {here})" if here else "")


def _notes(job: _Job, served: Served) -> tuple[str, ...]:
    notes = [] if job.is_gguf else engine_notes(job.contract.base.model_type, served)
    if job.words is not None and job.words.note is not None:
        notes.append(job.words.note)
    return tuple(notes)
