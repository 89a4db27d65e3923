"""Greedy generation with vLLM, in a process of its own whose Python need not be ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ryarn.backends import Generated, Prompt
from ryarn.backends.config import VllmConfig
from ryarn.backends.hf import batches
from ryarn.backends.reading import Reader
from ryarn.errors import UserError

WORKER = Path(__file__).with_name("engine") / "vllm_worker.py"
AT_ONCE = 4_000_000
"""Prompt tokens handed over at a time: vLLM forms its own batches of them."""


@dataclass(frozen=True)
class Engine:
    """What vLLM is to run.

    Attributes:
        model: Folder or hub id.
        window: Longest prompt and answer together.
        dtype: float32 or bfloat16.
        adapter: Folder of a LoRA adapter to put on it, or None.
        rank: The adapter's rank.
        overrides: Keys of the model's config to be read otherwise.
        revision: Hub commit, tag or branch of a model that is no folder.
    """

    model: str
    window: int
    dtype: str
    adapter: Path | None = None
    rank: int = 0
    overrides: dict[str, Any] = field(default_factory=dict)
    revision: str | None = None

    def arguments(self, config: VllmConfig) -> dict[str, Any]:
        """The arguments of `vllm.LLM`."""
        found: dict[str, Any] = {
            "model": self.model,
            "dtype": self.dtype,
            "max_model_len": self.window,
            "tensor_parallel_size": config.tensor_parallel,
            "seed": 0,
            # A model's own sampling settings are no part of an evaluation.
            "generation_config": "vllm",
            **config.options,
        }
        if self.overrides:
            found["hf_overrides"] = self.overrides
        if self.revision:
            found["revision"] = self.revision
        if self.adapter is not None:
            found |= {"enable_lora": True, "max_lora_rank": lora_rank(self.rank)}
        return found


def lora_rank(rank: int) -> int:
    """The smallest rank that vLLM can be told to make room for: it takes these alone.

    Raises:
        UserError: It takes none so large.
    """
    for known in (8, 16, 32, 64, 128, 256, 320, 512):
        if rank <= known:
            return known
    raise UserError(f"the adapter has rank {rank}, vLLM takes up to 512: export it merged")


class VllmBackend:
    """A model in vLLM, asked greedily. The engine starts with it, which may take minutes.

    Args:
        config: The recipe's `evaluate.backend`.
        engine: What to run.
        positions: Where the caller wants to see the live RoPE.
        log: File for what vLLM prints.

    Attributes:
        versions: Versions of the packages that answer.
        ropes: A list a worker: the live RoPE, see `engine/vllm_worker.py`.

    Raises:
        UserError: vLLM did not start; its last words are given.
    """

    name = "vllm"

    def __init__(
        self, config: VllmConfig, engine: Engine, positions: Sequence[int], log: Path
    ) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [python_of(config), str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                env=_environment(config),
            )
        self._say(
            {
                "engine": engine.arguments(config),
                "lora": None if engine.adapter is None else str(engine.adapter.resolve()),
                "positions": list(positions),
            }
        )
        ready = self._hear()
        self.versions: dict[str, str] = ready["versions"]
        self.ropes: list[list[dict[str, Any]]] = ready["ropes"]
        self._reader: Reader | None = None
        self._ends: list[int] = []

    def read_with(self, reader: Reader, ends: set[int]) -> None:
        """Say how answers end and are read, before the first one."""
        self._reader, self._ends = reader, sorted(ends)

    def close(self) -> None:
        """End the engine; it ends by itself when this process does."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def generate(
        self, prompts: Sequence[Prompt], max_new_tokens: int
    ) -> Iterator[tuple[str, Generated]]:
        """Answer the longest prompts first, then as answers come. The engine ends with the last.

        Raises:
            UserError: vLLM ended before.
        """
        assert self._reader is not None
        try:
            for batch in batches(prompts, AT_ONCE):
                rows = {str(number): prompt for number, prompt in enumerate(batch)}
                asked = [[key, prompt.ids.tolist()] for key, prompt in rows.items()]
                self._say({"prompts": asked, "max_new_tokens": max_new_tokens, "ends": self._ends})
                for _ in batch:
                    answer = self._hear()
                    yield rows[answer["id"]].id, self._reader.read(answer["tokens"])
        finally:
            self.close()

    def _say(self, value: dict[str, Any]) -> None:
        pipe = _open(self._process.stdin)
        try:
            pipe.write(json.dumps(value) + "\n")
            pipe.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _hear(self) -> dict[str, Any]:
        line = _open(self._process.stdout).readline()
        if not line.endswith("\n"):
            raise self._ended()
        said: dict[str, Any] = json.loads(line)
        return said

    def _ended(self) -> UserError:
        self.close()
        return UserError(
            f"vLLM ended ({_last_words(self._log)}); the whole of it is in {self._log}; see to "
            "evaluate.backend, then start the same command again: it goes on where it was"
        )


def _environment(config: VllmConfig) -> dict[str, str]:
    found = dict(os.environ)
    if config.python is not None:
        # It names packages of this Python, which another one can't use.
        found.pop("PYTHONPATH", None)
    return found


def _open(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _last_words(log: Path) -> str:
    """What went wrong: the cause comes first, the engine's own failure to start last."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    # A worker's line begins with its name: "(EngineCore pid=1) ERROR 11-30 08:34 [x.py:1] ...".
    tails = [line.rsplit("] ", 1)[-1].strip() for line in lines]
    errors = [tail for tail in tails if tail.partition(":")[0].endswith(("Error", "Exception"))]
    telling = [tail for tail in errors if "See root cause above" not in tail]
    return (telling or errors or tails or ["no message"])[-1][:300]


def python_of(config: VllmConfig) -> str:
    """The Python that runs vLLM."""
    return str(Path(config.python).expanduser()) if config.python else sys.executable


def check_installed(config: VllmConfig) -> None:
    """See that the Python is there and has vLLM.

    Raises:
        UserError: It is not, or has none.
    """
    python = python_of(config)
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        done = subprocess.run([python, "-I", "-c", look], capture_output=True)
    except OSError as error:
        raise UserError(
            f"evaluate.backend.python = {config.python!r} can't be run ({error.strerror}): give "
            "the Python of the environment that has vLLM, e.g. .venv-vllm/bin/python"
        ) from None
    if done.returncode:
        raise UserError(
            f"evaluate.backend.name = 'vllm': {python} has no vLLM; pip install vllm there, or "
            "give the Python that has it as evaluate.backend.python"
        )
