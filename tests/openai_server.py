"""A server that speaks OpenAI's protocol in a thread, with the tiny byte tokenizer and faults."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ryarn.tiny import byte_tokenizer

Fault = Callable[["Handler"], None]
"""Answers a request in its own way."""


class Handler(BaseHTTPRequestHandler):
    """One connection; `body` is the request in hand."""

    protocol_version = "HTTP/1.1"
    server: Server
    body: dict[str, Any]

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.server.gets.append(self.path)
        if self.path != "/v1/models" or self.server.models is None:
            return status(404, "no such path")(self)
        return self.send(200, json.dumps({"object": "list", "data": self.server.models}))

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.requests.append((self.path, self.headers, self.body))
            fault = server.faults.popleft() if server.faults else None
            server.in_flight += 1
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            fault = fault or server.fault_of(self.body)
            fault(self) if fault else self.answer()
        finally:
            with server.lock:
                server.in_flight -= 1

    def answer(self, **changes: Any) -> None:
        """The regular answer; `changes` are keys of the choice, or `usage`."""
        chat = self.path == "/v1/chat/completions"
        ids = self.server.read(self.body, chat=chat)
        text = self.server.text_of(ids)
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = changes.pop("usage", {"prompt_tokens": len(ids), "completion_tokens": 1})
        choice = {"index": 0, "finish_reason": "stop", **said, **changes}
        self.send(200, json.dumps({"object": "x", "choices": [choice], "usage": usage}))

    def send(self, code: int, body: str, kind: str = "application/json", **headers: str) -> None:
        """Send a whole response."""
        data = body.encode()
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """The server.

    Attributes:
        requests: (path, headers, body) of each POST, as they came.
        gets: Path of each GET.
        faults: What the next POSTs get instead of an answer, one each.
        fault_of: Body to fault, for those that `faults` does not take.
        window: Prompts are cut to their last so many tokens, without a word.
        preamble: What its chat template puts before the messages.
        begin: Token ids that it puts before every text prompt of its own accord.
        models: What GET /v1/models lists; None: no such path.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.tokenizer = byte_tokenizer()
        self.requests: list[tuple[str, Message, dict[str, Any]]] = []
        self.gets: list[str] = []
        self.faults: deque[Fault] = deque()
        self.fault_of: Callable[[dict[str, Any]], Fault | None] = lambda body: None
        self.window = 10**9
        self.preamble = ""
        self.begin: list[int] = []
        self.models: list[dict[str, Any]] | None = []
        self.in_flight = self.most_in_flight = 0

    @property
    def url(self) -> str:
        """The root of its API."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Bodies of the POSTs."""
        return [body for _, _, body in self.requests]

    def read(self, body: dict[str, Any], *, chat: bool) -> list[int]:
        """The tokens that the model would see."""
        prompt = body.get("prompt")
        if chat:
            prompt = self.preamble + self.tokenizer.apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=True
            )
        if isinstance(prompt, str):
            prompt = self.begin + self.tokenizer(prompt)["input_ids"]
        return prompt[-self.window :]

    def text_of(self, ids: list[int]) -> str:
        """The answer: how many tokens it read, and their end."""
        return f"{len(ids)} {self.tokenizer.decode(ids[-20:], skip_special_tokens=True)}"

    def handle_error(self, *_: object) -> None:
        """A client that went away is none of its business."""


@contextmanager
def serving() -> Iterator[Server]:
    """A server for the length of a test."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int, message: str, **headers: str) -> Fault:
    """An error in OpenAI's form."""
    body = json.dumps({"error": {"message": message, "type": "x", "code": code}})
    return lambda handler: handler.send(code, body, **headers)


def html(handler: Handler) -> None:
    """What a proxy says when nothing is behind it."""
    handler.send(200, "<html><body>Please\nwait</body></html>", "text/html")


def told_error(handler: Handler) -> None:
    """An error that says it is none."""
    handler.send(200, json.dumps({"error": {"message": "no capacity left"}}))


def no_choices(handler: Handler) -> None:
    """An answer without one."""
    handler.send(200, json.dumps({"choices": [], "usage": {"prompt_tokens": 1}}))


def hang_up(handler: Handler) -> None:
    """Close the connection without a word."""
    handler.close_connection = True


def break_off(handler: Handler) -> None:
    """Close the connection in the middle of the body."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def hang(handler: Handler) -> None:
    """Never answer."""
    handler.server.closed.wait()
    handler.close_connection = True
