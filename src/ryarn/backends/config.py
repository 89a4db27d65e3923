"""A recipe's `evaluate.backend`: which backend answers, and what it needs to be told."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ryarn.config import SECRET, Config

KEY = "OPENAI_API_KEY"
"""Environment variable with a server's key, the only place where one is looked for."""


class HfConfig(Config):
    """transformers, in this process."""

    name: Literal["hf"] = "hf"


def _plain_url(url: str) -> str:
    """Manifests and reports show the URL, so nothing secret may be a part of it."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise PydanticCustomError(
            SECRET,
            "user, password, query and fragment don't belong in a URL that reports show: leave "
            f"them out, and put the key into the environment variable {KEY}",
        )
    # Reading `port` sees whether it is one.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("give a URL such as http://localhost:8000/v1")
    for endpoint in ("/chat/completions", "/completions"):
        if parts.path.rstrip("/").endswith(endpoint):
            raise ValueError(f"leave out {endpoint}: `api` says which one is asked")
    return url.rstrip("/")


class OpenAIConfig(Config):
    """A server that speaks OpenAI's protocol: vLLM, SGLang, llama.cpp's, a hosted one."""

    name: Literal["openai"] = "openai"
    base_url: Annotated[str, AfterValidator(_plain_url)]
    """Where it listens, up to and with `/v1`."""
    model: str = Field(min_length=1)
    """What the server calls the model."""
    api: Literal["completions", "chat"] = "completions"
    """`completions`: the prompt that we render, token for token. `chat`: the messages; the server's
    own chat template renders them."""
    prompt: Literal["tokens", "text"] = "tokens"
    """What `completions` sends: token ids, or text, for servers that don't take ids."""
    concurrency: PositiveInt = 8
    """Requests at a time."""
    timeout: Annotated[FiniteFloat, Field(gt=0)] = 600.0
    """Seconds without a byte from the server until a try counts as failed."""
    retries: NonNegativeInt = 6
    """Further tries after a broken connection, a time-out, HTTP 408, 409, 429 or 5xx, or an answer
    that is none."""

    @model_validator(mode="after")
    def _chat_has_no_prompt(self) -> Self:
        if self.api == "chat" and self.prompt == "text":
            raise ValueError("prompt = 'text' goes with api = 'completions': chat sends messages")
        return self


VLLM_OPTIONS = frozenset(
    {
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "cpu_offload_gb", "swap_space"),
        *("max_num_seqs", "max_num_batched_tokens", "block_size", "enforce_eager"),
        *("enable_prefix_caching", "enable_chunked_prefill", "disable_custom_all_reduce"),
        *("pipeline_parallel_size", "disable_log_stats", "async_scheduling"),
    }
)
"""Arguments of `vllm.LLM` that a recipe may give: room and speed. Others would change the answers,
are set from the recipe and the export, or run code that the recipe names."""


class VllmConfig(Config):
    """vLLM on this machine, in a process of its own."""

    name: Literal["vllm"] = "vllm"
    model: str | None = None
    """Folder that `ryarn export` made from the run, merged or `--unmerged`; null for a method that
    trains nothing, whose base is taken as it is."""
    python: str | None = None
    """Python of the environment that has vLLM; null is the one that runs ryarn."""
    tensor_parallel: PositiveInt = 1
    """GPUs that the model is split over."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `vllm.LLM` for room and speed, e.g. `{gpu_memory_utilization: 0.8}`."""

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        other = sorted(set(self.options) - VLLM_OPTIONS)
        if other:
            raise ValueError(
                f"options.{other[0]}: a recipe gives vLLM arguments for room and speed alone "
                f"({', '.join(sorted(VLLM_OPTIONS))}); leave it out"
            )
        return self


def _section(value: Any) -> Any:
    """`hf` is short for `{name: hf}`; a key is refused before any message can show it."""
    section = {"name": value} if isinstance(value, str) else value
    if not isinstance(section, dict):
        return section
    if any(_names_a_secret(str(key)) for key in section):
        raise PydanticCustomError(
            SECRET, f"no key belongs in a recipe: put it into the environment variable {KEY}"
        )
    if "name" not in section:
        raise ValueError("say which by `name`: hf, openai or vllm")
    return section


def _names_a_secret(key: str) -> bool:
    words = ("key", "secret", "password", "auth")
    return key.lower().endswith("token") or any(word in key.lower() for word in words)


BackendConfig = Annotated[
    Annotated[HfConfig | OpenAIConfig | VllmConfig, Field(discriminator="name")],
    BeforeValidator(_section),
]
"""A recipe's `evaluate.backend`: its `name` says which."""
