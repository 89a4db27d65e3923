"""A server asked over real HTTP: requests, retries, cut prompts, failing rows, and the key."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import deque

import numpy as np
import pytest

import openai_server as fakes
from openai_server import status
from ryarn.backends import Generated, Prompt
from ryarn.backends.config import KEY, OpenAIConfig
from ryarn.backends.openai import GONE, THREAD, OpenAIBackend
from ryarn.backends.reply import SEAM
from ryarn.chat import end_of_turn, prompt_ids, render_prompt
from ryarn.errors import UserError
from ryarn.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()


@pytest.fixture
def server(monkeypatch):
    for name in (KEY, "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with fakes.serving() as running:
        yield running


@pytest.fixture
def ask(server):
    """Answers prompts with a backend made for them; closes it when the test is over."""
    made = []

    def run(rows, tokens=5, **settings):
        for key, answer in run.begin(rows, tokens, **settings):
            run.answers[key] = answer
        return run.answers

    def begin(rows, tokens=5, **settings):
        settings = {"base_url": server.url, "model": "tuned", **settings}
        made.append(OpenAIBackend(OpenAIConfig(**settings), TOKENIZER, sleep=run.slept.append))
        return made[-1].generate(rows, tokens)

    run.begin, run.slept, run.answers = begin, [], {}
    yield run
    server.closed.set()
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(timeout=10)
    for backend in made:
        backend.close()


def prompt(number, length=20, turns=1):
    """A prompt of about so many tokens, told apart by its end."""
    texts = ["x" * length] * (turns - 1) + ["x" * length + f" {number:03d}"]
    roles = ["user", "assistant"] * turns
    messages = tuple({"role": r, "content": t} for r, t in zip(roles, texts, strict=False))
    ids = np.array(prompt_ids(TOKENIZER, messages), dtype=np.int32)
    return Prompt(f"row-{number}", messages, ids)


def prompts(count):
    """The first is the longest, and so on."""
    return [prompt(n, length=60 - n) for n in range(count)]


def expected(row):
    """What the server of these tests answers to a prompt that it has read whole."""
    text = TOKENIZER.decode(row.ids[-20:], skip_special_tokens=True)
    return Generated(f"{len(row.ids)} {text}", "stop")


def number_of(body):
    """Number of the row of a request."""
    text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    text = text if isinstance(text, str) else TOKENIZER.decode(text)
    found = re.search(r"x (\d{3})", text)
    return int(found[1]) if found else None


FORMS = [{}, {"prompt": "text"}, {"api": "chat"}]


@pytest.mark.parametrize("form", FORMS, ids=["tokens", "text", "chat"])
def test_every_row_is_answered_whatever_is_sent(server, ask, form):
    rows = prompts(12)
    assert ask(rows, **form) == {row.id: expected(row) for row in rows}
    path = "/v1/chat/completions" if "api" in form else "/v1/completions"
    assert {got for got, _, _ in server.requests} == {path}


def test_a_request_asks_for_greedy_decoding_of_the_very_prompt(server, ask):
    row = prompt(1)
    settings = {
        "model": "tuned",
        "temperature": 0,
        "max_tokens": 7,
        "seed": 0,
        "repetition_penalty": 1.0,
        "stop_token_ids": [end_of_turn(TOKENIZER)],
    }
    ask([row], tokens=7)
    ask([row], tokens=7, prompt="text")
    ask([row], tokens=7, api="chat")
    tokens, text, _, chat = server.bodies
    assert tokens == {**settings, "prompt": row.ids.tolist()}
    rendered = render_prompt(TOKENIZER, row.messages)
    assert text == {**settings, "prompt": rendered, "add_special_tokens": False}
    assert chat == {
        **settings,
        "messages": list(row.messages),
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_no_prompts_no_request(server, ask):
    assert ask([], api="chat") == {}
    assert server.requests == []


def test_the_longest_row_goes_first_and_alone(server, ask):
    server.faults.append(lambda handler: (late.wait(), handler.answer()))
    late = threading.Event()
    rows = [prompt(0), prompt(1, length=90), prompt(2)]
    worker = threading.Thread(target=ask, args=(rows,), daemon=True)
    worker.start()
    wait_until(lambda: server.requests)
    assert [number_of(body) for body in server.bodies] == [1]
    late.set()
    worker.join()
    assert set(ask.answers) == {"row-0", "row-1", "row-2"}


def wait_until(condition):
    """Until another thread has done its part; a test that waits in vain fails after 10 s."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


def test_as_many_requests_at_once_as_asked_for_and_no_more(server, ask):
    together = threading.Barrier(3, timeout=10)

    def meet(handler):
        together.wait()
        handler.answer()

    server.fault_of = lambda body: None if number_of(body) == 0 else meet
    assert len(ask(prompts(10), concurrency=3)) == 10
    assert server.most_in_flight == 3


def test_answers_come_as_they_are_done(server, ask):
    rest = threading.Event()

    def slow(handler):
        assert rest.wait(timeout=10)
        handler.answer()

    def quick(handler):
        handler.answer()
        if len(server.requests) == 6:
            rest.set()

    server.fault_of = lambda body: {0: None, 1: slow}.get(number_of(body), quick)
    answers = ask(prompts(6), concurrency=2)
    first, second, *_ = answers
    assert first == "row-0"
    assert second != "row-1"
    assert answers == {row.id: expected(row) for row in prompts(6)}


def test_nobody_waits_for_a_server_that_hangs(server, ask):
    server.fault_of = lambda body: None if number_of(body) == 0 else fakes.hang
    answers = ask.begin(prompts(5))
    assert next(answers)[0] == "row-0"
    second = threading.Thread(target=next, args=(answers,), daemon=True)
    second.start()
    wait_until(lambda: server.in_flight == 4)
    # Not even the end of the process waits for them.
    assert {t.daemon for t in threading.enumerate() if t.name == THREAD} == {True}


def test_nothing_more_is_asked_when_the_caller_stops(server, ask):
    late = threading.Event()

    def wait(handler):
        late.wait(timeout=10)
        handler.answer()

    server.fault_of = lambda body: wait if number_of(body) == 2 else None
    answers = ask.begin(prompts(9), concurrency=1)
    assert [next(answers)[0], next(answers)[0]] == ["row-0", "row-1"]
    answers.close()
    late.set()
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(timeout=10)
    assert len(server.requests) <= 3


# What the server counts


@pytest.mark.parametrize("form", FORMS, ids=["tokens", "text", "chat"])
def test_a_server_that_cuts_prompts_is_caught_on_the_first_row(server, ask, form):
    server.window = 70
    rows = [prompt(n, length=50 * n) for n in range(1, 6)]
    with pytest.raises(UserError) as caught:
        ask(rows, **form)
    length = len(rows[-1].ids)
    assert f"counted 70 prompt tokens in row 'row-5', which has {length}" in str(caught.value)
    assert "--max-model-len" in str(caught.value)
    assert "evaluate.window" in str(caught.value)
    assert ask.answers == {}
    assert len(server.requests) == (2 if "api" in form else 1)


def test_a_cut_of_a_single_token_of_a_raw_prompt_is_caught(server, ask):
    row = prompt(0)
    server.window = len(row.ids) - 1
    with pytest.raises(UserError, match=f"counted {len(row.ids) - 1} prompt tokens"):
        ask([row])


def test_a_prompt_that_is_cut_later_is_caught_too(server, ask):
    rows = prompts(6)

    def cut(handler):
        handler.answer(usage={"prompt_tokens": 40})

    server.fault_of = lambda body: cut if number_of(body) == 3 else None
    with pytest.raises(UserError, match="counted 40 prompt tokens in row 'row-3'"):
        ask(rows)


PREAMBLE = "<|system|>You are a helpful assistant, and today is Tuesday.<|end|>"


@pytest.mark.parametrize("off", [-SEAM - 1, -SEAM, 0, SEAM, SEAM + 1])
def test_in_chat_the_template_may_differ_and_a_row_by_the_seams(server, ask, off):
    server.preamble = PREAMBLE
    row = prompt(1, length=300)
    template = len(TOKENIZER(PREAMBLE)["input_ids"])
    counted = len(row.ids) + template + off

    def count(handler):
        handler.answer(usage={"prompt_tokens": counted})

    server.fault_of = lambda body: count if number_of(body) == 1 else None
    if abs(off) <= SEAM:
        assert ask([row], api="chat")["row-1"].finish == "stop"
    else:
        both = f"counted {counted} prompt tokens .* {len(row.ids)} .{len(row.ids) + template} with"
        with pytest.raises(UserError, match=both):
            ask([row], api="chat")


def test_a_conversation_of_more_turns_may_drift_further(server, ask):
    # The server's template writes a token more for each message than ours does.
    render = server.tokenizer.apply_chat_template
    server.tokenizer.apply_chat_template = lambda messages, **how: (
        "." * len(messages) + render(messages, **how)
    )
    rows = [prompt(1, length=50, turns=9), prompt(2, length=50, turns=1)]
    assert {a.finish for a in ask(rows, api="chat").values()} == {"stop"}


def test_a_server_that_adds_tokens_to_a_text_is_caught(server, ask):
    server.begin = [5]
    row = prompt(0)
    with pytest.raises(UserError, match=f"counted {len(row.ids) + 1} .* has {len(row.ids)}: it ad"):
        ask([row], prompt="text")
    # Token ids it takes as they are.
    assert ask([row])["row-0"] == expected(row)


def test_a_server_that_does_not_say_what_it_read_is_refused(server, ask):
    server.fault_of = lambda body: lambda handler: handler.answer(usage=None)
    for form in FORMS:
        with pytest.raises(UserError, match="does not say how many prompt tokens"):
            ask([prompt(0)], **form)


# Trouble that passes


PASSING = {
    "rate limit": status(429, "slow down"),
    "time-out of a proxy": status(408, "late"),
    "conflict": status(409, "locked"),
    "broken": status(500, "oops"),
    "overloaded": status(503, "loading model"),
    "page": fakes.html,
    "error that says 200": fakes.told_error,
    "no choices": fakes.no_choices,
    "not an object": lambda handler: handler.send(200, "[1, 2]"),
    "empty": lambda handler: handler.send(200, ""),
    "choice without text": lambda handler: handler.send(
        200, '{"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}'
    ),
    "hung up": fakes.hang_up,
    "broken off": fakes.break_off,
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_trouble_that_passes_is_sat_out(server, ask, fault):
    server.faults.extend([fault, fault])
    row = prompt(0)
    assert ask([row], retries=2) == {"row-0": expected(row)}
    first, second = ask.slept
    assert 0.5 <= first <= 1 <= second <= 2


def test_a_server_that_hangs_is_asked_again(server, ask):
    server.faults.append(fakes.hang)
    row = prompt(0)
    assert ask([row], timeout=0.2, retries=1) == {"row-0": expected(row)}
    assert len(ask.slept) == 1


def test_the_server_says_how_long_to_wait(server, ask):
    server.faults.extend(
        [status(429, "", Retry_After="17"), status(503, "", retry_after_ms="2500")]
    )
    ask([prompt(0)])
    first, second = ask.slept
    assert 17 <= first < 18
    assert 2.5 <= second < 3.5


def test_a_server_that_asks_for_hours_is_not_waited_for(server, ask):
    server.faults.append(status(429, "daily quota used up", Retry_After="7200"))
    with pytest.raises(UserError, match="first row, 'row-0': HTTP 429: daily quota used up"):
        ask([prompt(0)])
    assert ask.slept == []


def test_tries_end(server, ask):
    rows = prompts(3)
    server.fault_of = lambda body: status(500, "oops") if number_of(body) == 1 else None
    answers = ask(rows, retries=3)
    assert answers["row-1"] == Generated("", "failed", "HTTP 500: oops (4 tries)")
    assert {answers[key].finish for key in ("row-0", "row-2")} == {"stop"}
    assert [number_of(body) for body in server.bodies].count(1) == 4


# Trouble that does not


def test_a_row_that_is_refused_fails_alone_and_at_once(server, ask):
    refuse = status(400, "the policy forbids\nthis prompt")
    server.fault_of = lambda body: refuse if number_of(body) in (0, 2) else None
    answers = ask(prompts(5))
    failed = Generated("", "failed", "HTTP 400: the policy forbids this prompt")
    assert {key for key, answer in answers.items() if answer == failed} == {"row-0", "row-2"}
    assert {answers[f"row-{n}"].finish for n in (1, 3, 4)} == {"stop"}
    assert ask.slept == []


def test_three_refusals_before_any_answer_end_it(server, ask):
    server.fault_of = lambda body: status(400, "temperature must be 1")
    with pytest.raises(UserError, match="refused the first 3 rows: HTTP 400: temperature must be"):
        ask(prompts(9))
    assert len(server.requests) == 3
    with pytest.raises(UserError, match=r"send text: evaluate\.backend\.prompt=text"):
        ask(prompts(9))
    with pytest.raises(UserError, match="must be 1; see to the server"):
        ask(prompts(9), prompt="text")
    assert {answer.finish for answer in ask.answers.values()} == {"failed"}


def test_a_server_that_is_not_there_is_named(ask):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    for form in ({}, {"api": "chat"}):
        ask.slept.clear()
        with pytest.raises(UserError) as caught:
            ask(prompts(9), base_url=url, retries=2, **form)
        assert f"server {url} did not answer" in str(caught.value)
        assert "refused" in str(caught.value)
        assert len(ask.slept) == 2


def test_a_server_that_goes_away_ends_it_and_what_was_answered_stays(server, ask):
    # it dies after 5 answers
    server.fault_of = lambda body: fakes.hang_up if len(server.requests) > 5 else None
    with pytest.raises(UserError, match=f"failed {GONE} rows one after another"):
        ask(prompts(50), concurrency=1, retries=0)
    finishes = [answer.finish for answer in ask.answers.values()]
    assert finishes == ["stop"] * 5 + ["failed"] * GONE


def test_failures_with_answers_between_them_do_not_end_it(server, ask):
    server.fault_of = lambda body: fakes.hang_up if number_of(body) % 3 else None
    finishes = [answer.finish for answer in ask(prompts(40), concurrency=1, retries=0).values()]
    assert finishes.count("failed") > GONE


def test_a_missing_key_and_a_missing_model_end_it_at_once(server, ask):
    server.fault_of = lambda body: status(401, "no key")
    with pytest.raises(UserError, match=rf"refuses the key \(HTTP 401: no key\).*{KEY}"):
        ask(prompts(9))
    server.fault_of = lambda body: status(404, "The model `tuned` does not exist.")
    with pytest.raises(
        UserError, match=r"model 'tuned' at /completions .*does not exist.*base_url"
    ):
        ask(prompts(9))
    assert len(server.requests) == 2


def test_a_bug_is_no_failed_row(server, ask, monkeypatch):
    monkeypatch.setattr("ryarn.backends.openai.read_reply", lambda body: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ask([prompt(0)])


# What some servers don't know


def refusing(names, message="Unrecognized request argument supplied: {}"):
    """A server that knows no such keys, and says so one at a time."""

    def fault_of(body):
        found = [name for name in names if name in body]
        return status(400, message.format(found[0])) if found else None

    return fault_of


@pytest.mark.parametrize("form", FORMS, ids=["tokens", "text", "chat"])
def test_what_a_server_does_not_know_is_left_out_from_then_on(server, ask, form):
    names = ["seed", "repetition_penalty", "stop_token_ids"]
    names += {"text": ["add_special_tokens"]}.get(form.get("prompt"), [])
    names += ["chat_template_kwargs"] if "api" in form else []
    server.fault_of = refusing(names)
    rows = prompts(4)
    assert ask(rows, **form) == {row.id: expected(row) for row in rows}
    assert len(server.requests) == len(names) + len(rows) + ("api" in form)
    assert not set(names) & set(server.bodies[-1])


def test_a_server_may_name_all_that_it_does_not_know_at_once(server, ask):
    message = "Unexpected fields in the request: {'stop_token_ids', 'repetition_penalty'}"
    server.faults.append(status(422, message))
    ask(prompts(2))
    assert len(server.requests) == 3


def test_the_newer_name_of_the_token_budget(server, ask):
    message = "Unsupported parameter: '{}' is not supported, use 'max_completion_tokens' instead."
    server.fault_of = refusing(["max_tokens"], message)
    rows = prompts(3)
    assert ask(rows, tokens=9, api="chat") == {row.id: expected(row) for row in rows}
    assert len(server.requests) == 1 + 1 + 3
    assert {body.get("max_completion_tokens") for body in server.bodies[1:]} == {9}


def test_a_refusal_that_only_mentions_a_name_takes_nothing_from_the_other_rows(server, ask):
    refuse = status(400, "too long: lower max_completion_tokens, whatever the seed")
    server.fault_of = lambda body: refuse if number_of(body) == 1 else None
    answers = ask(prompts(4), api="chat", concurrency=1)
    assert answers["row-1"].finish == "failed"
    assert "seed" in server.bodies[-1]
    assert "max_tokens" in server.bodies[-1]


# How an answer ends


@pytest.mark.parametrize(
    ("said", "finish"),
    [("stop", "stop"), ("length", "length"), ("eos_token", "stop"), ("eos", "stop")],
)
def test_finish_reasons(server, ask, said, finish):
    server.faults.append(lambda handler: handler.answer(finish_reason=said))
    assert ask([prompt(0)])["row-0"].finish == finish


@pytest.mark.parametrize("said", ["content_filter", "tool_calls", "abort", None, ""])
def test_an_answer_that_was_broken_off_fails(server, ask, said):
    server.fault_of = lambda body: (
        (lambda handler: handler.answer(finish_reason=said)) if number_of(body) == 0 else None
    )
    answer = ask(prompts(2))["row-0"]
    assert answer == Generated("", "failed", f"the server ended it with {said!r}")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize(
    ("content", "said", "answer"),
    [
        ("In the hall.", "stop", Generated("In the hall.", "stop")),
        (None, "length", Generated("", "thinking")),
        ("", "length", Generated("", "thinking")),
    ],
)
def test_reasoning_is_no_answer(server, ask, key, content, said, answer):
    message = {"content": content, key: "They went to the hall"}
    server.fault_of = lambda body: lambda h: h.answer(finish_reason=said, message=message)
    assert ask([prompt(0)], api="chat")["row-0"] == answer


def test_reasoning_alone_that_was_ended_fails(server, ask):
    message = {"content": None, "reasoning_content": "In the hall."}
    server.fault_of = lambda body: lambda handler: handler.answer(message=message)
    answer = ask([prompt(0)], api="chat")["row-0"]
    assert answer.finish == "failed"
    assert "without a reasoning parser" in answer.reason


def test_an_empty_answer_is_an_answer(server, ask):
    server.fault_of = lambda body: lambda h: h.answer(message={"content": None})
    assert ask([prompt(0)], api="chat")["row-0"] == Generated("", "stop")


# The key

SECRET = "sk-0123456789-abcdef"


def test_the_key_comes_from_the_environment(server, ask, monkeypatch):
    monkeypatch.setenv(KEY, SECRET + "\n")
    ask([prompt(0)])
    assert server.requests[-1][1]["Authorization"] == f"Bearer {SECRET}"


def test_no_message_shows_the_key(server, ask, monkeypatch, caplog):
    monkeypatch.setenv(KEY, SECRET)
    caplog.set_level("DEBUG")

    def echo(code):
        return lambda h: status(code, f"bad {h.headers['Authorization']} here")(h)

    server.fault_of = lambda body: echo(400) if number_of(body) == 1 else None
    assert ask(prompts(3))["row-1"].reason == "HTTP 400: bad Bearer *** here"
    texts = []
    for code in (401, 404, 500, 400):
        server.fault_of = lambda body, code=code: echo(code)
        with pytest.raises(UserError, match=r"\*\*\*") as caught:
            ask(prompts(5), retries=0)
        texts.append(str(caught.value))
    server.fault_of = lambda body: lambda h: h.send(200, f"<p>{h.headers['Authorization']}</p>")
    with pytest.raises(UserError, match=r"\*\*\*") as caught:
        ask(prompts(5), retries=0)
    assert SECRET not in f"{texts} {caught.value} {caplog.text}"


@pytest.mark.parametrize("key", ["sk-\u00e9", "sk-\x07a"])
def test_a_key_that_no_header_holds_is_refused_unseen(server, ask, monkeypatch, key):
    monkeypatch.setenv(KEY, key)
    with pytest.raises(UserError, match=KEY) as caught:
        ask([prompt(0)])
    assert "sk-" not in str(caught.value)


# How long a prompt may be


def window(server, **settings):
    config = OpenAIConfig(base_url=server.url, model="tuned", **settings)
    backend = OpenAIBackend(config, TOKENIZER, sleep=lambda seconds: None)
    try:
        return backend.window()
    finally:
        backend.close()


def test_the_window_is_what_the_list_of_models_says(server):
    server.models = [{"id": "base", "max_model_len": 5}, {"id": "tuned", "max_model_len": 4096}]
    assert window(server) == 4096
    assert server.gets == ["/v1/models"]


@pytest.mark.parametrize("models", [None, [], [{"id": "tuned"}], [{"id": "a", "max_model_len": 5}]])
def test_a_server_need_not_say_its_window(server, models):
    server.models = models
    assert window(server) is None


def test_a_window_can_not_be_asked_of_a_server_that_is_not_there(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match="did not list its models"):
        window(server, retries=1)


def test_rows_wait_in_no_particular_container(ask):
    """Any sequence will do, and it is left as it was."""
    rows = deque(prompts(3))
    ask(rows)
    assert [row.id for row in rows] == ["row-0", "row-1", "row-2"]
