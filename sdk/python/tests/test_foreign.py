# SPDX-License-Identifier: Apache-2.0
"""Answers of models and agents that others send, in test/foreign, as clients in Python see them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from troupe.testing import Factory

FOREIGN = Path(__file__).resolve().parents[3] / "test" / "foreign"


class Transcript:
    """A file: its title, kind and content type, the lines of the body behind "|", and what it means behind "----"."""

    def __init__(self, path: Path) -> None:
        given, _, meant = path.read_bytes().partition(b"----\n")
        lines = given.rstrip(b"\n").split(b"\n")
        self.name = path.stem
        self.media = lines[1].decode().partition(" ")[2]
        body = b"".join(line.removeprefix(b"|").removeprefix(b" ") + b"\n" for line in lines[2:])
        for word, code in ((b"<CR>", b"\r"), (b"<BOM>", b"\xef\xbb\xbf"), (b"<FF>", b"\xff")):
            body = body.replace(word, code)
        self.body = body
        self.meant = meant.decode().splitlines()

    @property
    def done(self) -> bool:
        return any(line.startswith("done") for line in self.meant)

    @property
    def text(self) -> str:
        return "".join(json.loads(line.removeprefix("delta ")) for line in self.meant if line.startswith("delta "))


@pytest.fixture
def foreign() -> Iterator[tuple[str, dict[str, Transcript]]]:
    """Models and agents whose address names the transcript with which they answer."""
    all = {f"/{kind}/{path.stem}": Transcript(path) for kind in ("models", "agents") for path in sorted((FOREIGN / kind).glob("*.txt"))}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = all["/".join(self.path.split("/")[:3])]
            self.send_response(200)
            if answer.media:
                self.send_header("Content-Type", answer.media)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}", all
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def test_models(troupe_servers: Factory, tmp_path: Path, foreign: tuple[str, dict[str, Transcript]]) -> None:
    """The package openai gets the text that a model means, or an exception, from each answer."""
    url, all = foreign
    models = {path: t for path, t in all.items() if path.startswith("/models/")}
    config = tmp_path / "troupe.toml"
    config.write_text("".join(f'[models.{t.name}]\nurl = "{url}{path}"\nretry_attempts = 1\n' for path, t in models.items()))
    wrong: dict[str, Any] = {}
    with OpenAI(base_url=troupe_servers(config=config).url + "/v1", api_key="none", max_retries=0) as client:
        for t in models.values():
            prompt: Any = [{"role": "user", "content": "hi"}]
            got: Any
            try:
                if b"data:" in t.body:
                    got = ""
                    for chunk in client.chat.completions.create(model=t.name, messages=prompt, stream=True):
                        got += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                    got = got.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of a character in two pieces
                else:
                    got = client.chat.completions.create(model=t.name, messages=prompt).choices[0].message.content or ""
            except openai.APIError as e:
                got = e
            if (got != t.text) if t.done else not isinstance(got, openai.APIError):
                wrong[t.name] = (got, t.text)
    assert len(models) > 20 and not wrong


def test_agents(troupe_servers: Factory, foreign: tuple[str, dict[str, Transcript]]) -> None:
    """A client gets the text that an agent means, or a problem, from each answer."""
    url, all = foreign
    agents = {path: t for path, t in all.items() if path.startswith("/agents/")}
    server = troupe_servers()
    wrong: dict[str, Any] = {}
    for path, t in agents.items():
        name = t.name.replace("_", "-")
        server.client.agents.register(name, url + path)
        if t.done:
            got: Any = server.client.call(name, "hi").text
        else:  # without the retries of the client
            got = httpx.post(f"{server.url}/v1/agents/{name}/messages", json={"content": "hi"}).json()
        if (got != t.text) if t.done else not got.get("code"):
            wrong[t.name] = (got, t.text)
    assert len(agents) > 15 and not wrong
