"""Answers from a server that speaks OpenAI's protocol: asked at once, patiently, and checked."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ryarn.backends import Generated, Prompt
from ryarn.backends.config import KEY, OpenAIConfig
from ryarn.backends.reply import NoReply, Reply, TokenCheck, error_message, read_reply, short
from ryarn.backends.request import Requests, refused
from ryarn.backends.retry import may_pass, pause, retry_after
from ryarn.chat import prompt_ids
from ryarn.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

CONNECT = 10.0
"""Seconds to reach the server at all, where `timeout` is not shorter."""
TRIAL = 3
"""Rows that may be refused before the first is answered; then it is taken for the recipe's fault
or the server's, not the rows'."""
THREAD = "ryarn-answering"
"""Name of the threads that ask."""
GONE = 10
"""Rows in a row that failed after all tries, at least: then the server is taken for gone."""


class OpenAIBackend:
    """A served model, asked greedily.

    The longest row goes first and alone: what is wrong with the recipe or the server shows at once,
    a prompt that the server cuts most of all. A row without an answer is `failed` with its reason.

    Args:
        config: The recipe's `evaluate.backend`.
        tokenizer: The served model's own; renders prompts and counts tokens.
        sleep: Waits between two tries.
    """

    name = "openai"

    def __init__(
        self,
        config: OpenAIConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._config, self._tokenizer, self._sleep = config, tokenizer, sleep
        self._server = f"server {config.base_url}"
        self._key = os.environ.get(KEY, "").strip()
        self._client = _client(config, self._key)
        self._requests = Requests(config, tokenizer)
        self._without: frozenset[str] = frozenset()
        self._random = np.random.default_rng()

    def close(self) -> None:
        """Close the connections to the server."""
        self._client.close()

    def window(self) -> int | None:
        """The longest prompt and answer together, where the server's list of models says so.

        Raises:
            UserError: The server is not there, or refuses the key.
        """
        try:
            body = self._patiently(lambda: self._client.get("/models", cast_to=str))
            models = {model["id"]: model for model in json.loads(body)["data"]}
            return int(models[self._config.model]["max_model_len"])
        except _Failed as failed:
            if failed.exhausted:
                raise self._give_up("did not list its models", failed.reason) from None
            return None
        except (ValueError, LookupError, TypeError):
            return None

    def generate(
        self, prompts: Sequence[Prompt], max_new_tokens: int
    ) -> Iterator[tuple[str, Generated]]:
        """Answer the longest prompts first, then as answers come.

        Raises:
            UserError: The server is not there or went away, refuses the key, the model or the first
                rows, or has read another prompt than was sent.
        """
        waiting = deque(sorted(prompts, key=lambda prompt: -len(prompt.ids)))
        if not waiting:
            return
        check = TokenCheck(self._server)
        if self._config.api == "chat":
            self._calibrate(check, waiting[0], max_new_tokens)

        def answer(prompt: Prompt) -> _Row:
            return self._answer(prompt, max_new_tokens, check)

        health = _Health(max(GONE, 2 * self._config.concurrency))
        while waiting and not health.answered:
            row = answer(waiting.popleft())
            yield row.id, row.answer
            self._look_after(health, row)
        for row in _together(answer, waiting, self._config.concurrency):
            yield row.id, row.answer
            self._look_after(health, row)

    def _look_after(self, health: _Health, row: _Row) -> None:
        what = health.after(row)
        if what is None:
            return
        reason = row.answer.reason
        if not row.exhausted and self._requests.sends_ids:
            reason += " (if it takes no token ids, send text: evaluate.backend.prompt=text)"
        raise self._give_up(what, reason)

    def _give_up(self, what: str, reason: str) -> UserError:
        return UserError(
            f"{self._server} {what}: {reason}; see to the server or to evaluate.backend, then "
            "start the same command again: it goes on where it was"
        )

    def _calibrate(self, check: TokenCheck, first: Prompt, max_new_tokens: int) -> None:
        messages = tuple({**message, "content": "a"} for message in first.messages)
        ids = np.array(prompt_ids(self._tokenizer, messages), dtype=np.int32)
        probe = replace(first, messages=messages, ids=ids)
        try:
            check.calibrate(probe, self._ask(probe, max_new_tokens).prompt_tokens)
        except _Failed as failed:
            raise self._give_up("did not answer a short prompt", failed.reason) from None

    def _answer(self, prompt: Prompt, max_new_tokens: int, check: TokenCheck) -> _Row:
        try:
            reply = self._ask(prompt, max_new_tokens)
        except _Failed as failed:
            return _Row(prompt.id, Generated("", "failed", failed.reason), failed.exhausted)
        check.check(prompt, reply.prompt_tokens)
        return _Row(prompt.id, reply.generated())

    def _ask(self, prompt: Prompt, max_new_tokens: int) -> Reply:
        without = self._without
        while True:
            body = self._requests.body(prompt, max_new_tokens, without)
            try:
                reply = self._patiently(partial(self._send, body))
            except _Failed as failed:
                more = refused(failed.said, body) if failed.status in (400, 422) else frozenset()
                if not more:
                    raise
                without |= more
                continue
            # Only now is it known that it was the names.
            self._without = without
            return reply

    def _send(self, body: dict[str, Any]) -> Reply:
        return read_reply(self._client.post(self._requests.path, body=body, cast_to=str))

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call until it works, the tries are used up, or nothing is to be hoped for.

        Raises:
            _Failed: There is no answer.
            UserError: There will never be one.
        """
        failures = 0
        while True:
            try:
                return call()
            except Exception as error:
                trouble = self._trouble(error)
            failures += 1
            seconds = pause(failures, trouble.asked, float(self._random.random()))
            if failures > self._config.retries or seconds is None or not trouble.may_pass:
                tries = f" ({failures} tries)" if failures > 1 else ""
                raise _Failed(trouble, trouble.reason + tries)
            self._sleep(seconds)

    def _trouble(self, error: Exception) -> _Trouble:
        """What an exception of the client means; anything else is a bug and goes on its way."""
        from openai import APIConnectionError, APIStatusError

        if isinstance(error, NoReply):
            return _Trouble(self._hide(f"its answer is {error}"), may_pass=True)
        if isinstance(error, APIConnectionError):
            cause = f" ({error.__cause__})" if str(error.__cause__ or "") else ""
            return _Trouble(self._hide(short(f"{error.message.rstrip('.')}{cause}")), may_pass=True)
        if not isinstance(error, APIStatusError):
            raise error
        status, said = error.status_code, error_message(error.body or error.response.text)
        reason = self._hide(f"HTTP {status}: {said}")
        if status == 401:
            raise UserError(
                f"{self._server} refuses the key ({reason}): put its key into the environment "
                f"variable {KEY}"
            ) from None
        if status == 404 and error.response.request.method == "POST":
            raise UserError(
                f"{self._server} does not have model {self._config.model!r} at "
                f"{self._requests.path} ({reason}): see to evaluate.backend.model, and that "
                "evaluate.backend.base_url ends in the API's root, mostly /v1"
            ) from None
        asked = retry_after(error.response.headers)
        return _Trouble(reason, may_pass(status), asked, status, error.response.text)

    def _hide(self, text: str) -> str:
        """No message may show the key, though a server may repeat it."""
        return text.replace(self._key, "***") if self._key else text


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why a try failed: the reason for people, and what follows from it."""

    reason: str
    may_pass: bool
    asked: float | None = None
    status: int = 0
    said: str = ""


class _Failed(Exception):
    """There is no answer to a request."""

    def __init__(self, trouble: _Trouble, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exhausted, self.status, self.said = trouble.may_pass, trouble.status, trouble.said


@dataclass(frozen=True, slots=True)
class _Row:
    """A row with its answer; `exhausted` if it failed after all tries, so perhaps not by itself."""

    id: str
    answer: Generated
    exhausted: bool = False


@dataclass
class _Health:
    """Tells rows that fail by themselves from a server that fails them all."""

    limit: int
    answered: bool = False
    streak: int = 0

    def after(self, row: _Row) -> str | None:
        """Note a row; what to say of the server if it is no use to go on."""
        if row.answer.finish != "failed":
            self.answered, self.streak = True, 0
            return None
        if not self.answered:
            self.streak += 1
            if row.exhausted:
                return f"did not answer the first row, {row.id!r}"
            return f"refused the first {TRIAL} rows" if self.streak == TRIAL else None
        self.streak += row.exhausted
        return f"failed {self.limit} rows one after another" if self.streak >= self.limit else None


def _together(
    answer: Callable[[Prompt], _Row], waiting: deque[Prompt], concurrency: int
) -> Iterator[_Row]:
    """Answer prompts in several threads, in the order in which answers come.

    The threads die with the process: nobody waits for a server that hangs.
    """
    done: SimpleQueue[_Row | BaseException] = SimpleQueue()
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                done.put(answer(waiting.popleft()))
        except IndexError:
            return  # nothing is waiting any more
        except BaseException as error:
            done.put(error)

    count = len(waiting)
    for _ in range(min(concurrency, count)):
        threading.Thread(target=work, daemon=True, name=THREAD).start()
    try:
        for _ in range(count):
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()


def check_installed() -> None:
    """See that the client is there.

    Raises:
        UserError: It is not.
    """
    if importlib.util.find_spec("openai") is None:
        raise UserError(
            "evaluate.backend.name = 'openai' needs the package openai: pip install 'ryarn[openai]'"
        )


def _client(config: OpenAIConfig, key: str) -> Any:
    """The client of one server, without its own retries.

    Raises:
        UserError: The key can't be sent.
    """
    from openai import OpenAI, Timeout

    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{KEY} holds a character that no HTTP header may hold: set it anew")
    return OpenAI(
        # The client wants one; a server without keys does not look.
        api_key=key or "none",
        base_url=config.base_url,
        timeout=Timeout(config.timeout, connect=min(CONNECT, config.timeout)),
        max_retries=0,
    )
