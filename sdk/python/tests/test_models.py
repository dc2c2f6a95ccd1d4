# SPDX-License-Identifier: Apache-2.0
"""Agents that use the models of a real server with the package openai."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam

import troupe
from troupe import AsyncTurn, Client, TroupeError, Turn, agent
from troupe._turn import Execution, Invocation
from troupe.testing import Factory, TroupeServer

ADD: ChatCompletionFunctionToolParam = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@contextmanager
def upstream(status: int, answer: dict[str, Any], streams: bool = False) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A model elsewhere with one answer, or with a stream that begins with it and does not end.

    It returns its URL, and the traces and bodies of its requests.
    """
    requests: list[tuple[str, dict[str, Any]]] = []
    closed = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.headers.get("traceparent", ""), json.loads(body)))
            data = json.dumps(answer).encode()
            self.send_response(status)
            if streams:
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                self.wfile.write(b"data: " + data + b"\n\n")
                closed.wait(60)
                return
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1", requests
    finally:
        closed.set()
        http.shutdown()
        http.server_close()
        thread.join()


def with_model(servers: Factory, folder: Path, url: str) -> TroupeServer:
    """A server whose model big is the model big-2 at that URL."""
    config = folder / "troupe.toml"
    config.write_text(f'[models.big]\nurl = "{url}"\nmodel = "big-2"\nretry_attempts = 1\n')
    return servers(config=config)


def model_events(client: Client, run_id: str) -> list[troupe.Event]:
    return [e for e in client.runs.events(run_id) if e.type in ("llm_call_started", "llm_call_done")]


def check_three_requests(client: Client, run_id: str) -> None:
    """The run has three requests, and their tokens instead of those that the agent claims."""
    events = model_events(client, run_id)
    started = [e for e in events if e.type == "llm_call_started"]
    done = [e for e in events if e.type == "llm_call_done"]
    assert [e.payload["name"] for e in started] == ["scripted"] * 3
    assert len({e.payload["request_id"] for e in started}) == 3
    assert not any("plain" in json.dumps(dict(e.payload)) for e in events), "a prompt was recorded"
    total = sum(e.payload["usage"]["total_tokens"] for e in done)
    assert len(done) == 3 and client.runs.get(run_id).usage.total_tokens == total > 0


def test_client(troupe_server: TroupeServer) -> None:
    @agent
    def asker(turn: Turn) -> str:
        turn.usage(1000, 1000)
        with OpenAI(**turn.openai) as client:
            plain = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "say plain"}])
            question = "say a\nsay streamed answer"
            for chunk in client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": question}], stream=True):
                turn.delta(chunk.choices[0].delta.content or "")
            prompt: Any = [{"role": "user", "content": 'use add {"a": 1}'}]
            called = client.chat.completions.create(model="scripted", messages=prompt, tools=[ADD])
        assert called.choices[0].finish_reason == "tool_calls" and called.choices[0].message.tool_calls
        function: Any = called.choices[0].message.tool_calls[0]
        return f"\n{plain.choices[0].message.content}\n{function.function.name} {function.function.arguments}"

    client = troupe_server.client
    with asker.start(troupe_server.url):
        answer = client.call("asker", "x")
    assert answer.text == 'a\nstreamed answer\nplain\nadd {"a": 1}'
    check_three_requests(client, answer.run_id)


def test_async_client(troupe_server: TroupeServer) -> None:
    @agent
    async def asker(turn: AsyncTurn) -> str:
        async with AsyncOpenAI(**turn.openai) as client:
            plain, called = await asyncio.gather(
                client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "say plain"}]),
                client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "use add {}"}], tools=[ADD]),
            )
            async with client.chat.completions.stream(model="scripted", messages=[{"role": "user", "content": "say streamed"}]) as stream:
                async for event in stream:
                    if event.type == "content.delta":
                        turn.delta(event.delta)
                final = await stream.get_final_completion()
        assert called.choices[0].message.tool_calls and final.choices[0].message.content == "streamed"
        return f" {plain.choices[0].message.content} {len(called.choices[0].message.tool_calls)}"

    client = troupe_server.client
    with asker.start(troupe_server.url):
        answer = client.call("asker", "x")
    assert answer.text == "streamed plain 1"
    check_three_requests(client, answer.run_id)


def test_usage_of_a_stream(troupe_server: TroupeServer) -> None:
    """The last chunk has the usage if the client asks for it, and no chunk has it otherwise."""
    with OpenAI(base_url=troupe_server.url + "/v1", api_key="none") as client:
        prompt: Any = [{"role": "user", "content": "say a"}]
        plain = list(client.chat.completions.create(model="scripted", messages=prompt, stream=True))
        counted = list(client.chat.completions.create(model="scripted", messages=prompt, stream=True, stream_options={"include_usage": True}))
    assert all(c.choices and c.usage is None for c in plain)
    assert not counted[-1].choices and counted[-1].usage is not None and counted[-1].usage.total_tokens > 0


def test_agents_are_models(troupe_server: TroupeServer) -> None:
    """The conversation that the client holds is continued in its session."""
    client = troupe_server.client
    client.agents.create("scribe")
    with OpenAI(base_url=troupe_server.url + "/v1/openai", api_key="none") as chat:
        assert "scribe" in [m.id for m in chat.models.list()]
        messages: Any = [{"role": "user", "content": "say one two"}]
        first = chat.chat.completions.with_raw_response.create(model="scribe", messages=messages)
        answer = first.parse().choices[0].message
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "list my messages"}]
        with chat.chat.completions.stream(model="scribe", messages=messages, stream_options={"include_usage": True}) as stream:
            final = stream.get_final_completion()
        with pytest.raises(openai.NotFoundError) as e:
            chat.chat.completions.create(model="nobody", messages=messages)
    session = first.headers["x-session-id"]
    assert answer.content == "one two" and final.choices[0].message.content == "1. say one two"
    assert final.usage is not None and final.usage.total_tokens > 0
    assert [m.content for m in client.sessions.messages(session)] == ["say one two", "one two", "list my messages", "1. say one two"]
    assert (e.value.code, e.value.param) == ("model_not_found", "model")


def test_unknown_model(troupe_server: TroupeServer) -> None:
    with OpenAI(base_url=troupe_server.url + "/v1", api_key="none") as client:
        assert [m.id for m in client.models.list()] == ["scripted"]
        assert client.models.retrieve("scripted").owned_by == "troupe"
        with pytest.raises(openai.NotFoundError) as e:
            client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hi"}])
        assert (e.value.code, e.value.param, "gpt-x" in e.value.message) == ("model_not_found", "model", True)
        with pytest.raises(openai.NotFoundError) as e:
            client.models.retrieve("gpt-x")
        assert e.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="scripted", messages=[])
        assert bad.value.param == "messages"
        with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
            client.responses.create(model="scripted", input="hi")


def test_unknown_model_in_a_turn(troupe_server: TroupeServer) -> None:
    """The agent gets the code of the failure, and so does the run if the agent does not handle it."""
    codes: list[Any] = []

    @agent
    def asker(turn: Turn) -> str:
        with OpenAI(**turn.openai) as client:
            for stream in (False, True):
                try:
                    client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hi"}], stream=stream)
                except openai.APIStatusError as e:
                    codes.append(e.code)
            if turn.message == "fail":
                client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hi"}])
        try:
            turn.call("thinker", "hi")
        except TroupeError as e:
            codes.append(e.code)
        return "asked"

    client = troupe_server.client
    client.agents.create("thinker", model="gpt-x")
    with asker.start(troupe_server.url):
        assert client.call("asker", "x").text == "asked"
        assert codes == ["model_not_found", "model_not_found", "model_not_found"]
        with pytest.raises(TroupeError, match="reported model_not_found: .*gpt-x"):
            client.call("asker", "fail")


def test_ended_run(troupe_server: TroupeServer) -> None:
    kept: list[dict[str, Any]] = []

    @agent
    def keeper(turn: Turn) -> str:
        kept.append(turn.openai)
        return "kept"

    with keeper.start(troupe_server.url):
        run_id = troupe_server.client.call("keeper", "x").run_id
        with OpenAI(**kept[0]) as client:
            for stream in (False, True):
                with pytest.raises(openai.NotFoundError) as e:
                    client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}], stream=stream)
                assert e.value.code == "run_not_found" and run_id in e.value.message
    assert model_events(troupe_server.client, run_id) == []


def test_runs_of_two_users(troupe_server: TroupeServer) -> None:
    """Requests at the same time are recorded in the runs whose token or name they have."""
    both = threading.Barrier(2, timeout=60)
    runs: list[str] = []

    @agent
    def asker(turn: Turn) -> str:
        runs.append(turn.run_id)
        both.wait()
        other = next(r for r in runs if r != turn.run_id)
        with OpenAI(**turn.openai) as client:
            for _ in range(int(turn.message)):
                client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": turn.user_id}])
            with pytest.raises(openai.PermissionDeniedError) as e:
                client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "x"}], extra_headers={"x-run-id": other})
            assert e.value.code == "forbidden_run"
        named = {"base_url": turn.openai["base_url"], "api_key": "none", "default_headers": {"x-run-id": turn.run_id}}
        with OpenAI(**named) as client:  # the key of the agent's owner, which this server does not need
            client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "x"}])
        both.wait()
        return turn.user_id

    with asker.start(troupe_server.url), Client(troupe_server.url, key="", user="anna") as anna, Client(troupe_server.url, key="", user="ben") as ben:
        started = [(anna, anna.start("asker", "2")), (ben, ben.start("asker", "3"))]
        assert [client.runs.wait(run).text for client, run in started] == ["anna", "ben"]
        requests = [[e.payload["request_id"] for e in model_events(client, run) if e.type == "llm_call_started"] for client, run in started]
        with pytest.raises(troupe.NotFound):
            anna.runs.get(started[1][1])
    assert [len(r) for r in requests] == [3, 4] and not set(requests[0]) & set(requests[1])


def test_error_of_a_model(tmp_path: Path, troupe_servers: Factory) -> None:
    error = {"error": {"message": "at most 8 tokens", "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}}

    @agent
    def asker(turn: Turn) -> str:
        codes = []
        with OpenAI(**turn.openai) as client:
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError) as e:
                    client.chat.completions.create(model="big", messages=[{"role": "user", "content": "long"}], stream=stream)
                assert "at most 8 tokens" in e.value.message
                codes.append(str(e.value.code))
        return " ".join(codes)

    with upstream(400, error) as (url, requests):
        client = with_model(troupe_servers, tmp_path, url).client
        with asker.start(client.url):
            answer = client.call("asker", "x")
    assert answer.text == "context_length_exceeded context_length_exceeded" and len(requests) == 2
    failed = [e for e in model_events(client, answer.run_id) if e.type == "llm_call_done"]
    assert len(failed) == 2 and all("at most 8 tokens" in e.payload["error"]["message"] for e in failed)


def test_request_of_a_model(tmp_path: Path, troupe_servers: Factory) -> None:
    """A model gets what the client sent, with its own name and the trace of the run."""
    completion = {
        "id": "c-1", "object": "chat.completion", "created": 7, "model": "big-2", "system_fingerprint": "f7", "extra": {"kept": True},
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
    traces: list[str] = []

    @agent
    def asker(turn: Turn) -> str:
        traces.append(turn.traceparent)
        with OpenAI(**turn.openai) as client:
            answer = client.chat.completions.create(
                model="big", messages=[{"role": "developer", "content": [{"type": "text", "text": "hi"}]}], seed=7, metadata={"team": "blue"},
                response_format={"type": "json_object"}, extra_body={"of_a_provider": {"top_k": 3}},
            )
        assert answer.to_dict() == completion
        return str(answer.choices[0].message.content)

    with upstream(200, completion) as (url, requests):
        client = with_model(troupe_servers, tmp_path, url).client
        with asker.start(client.url):
            answer = client.call("asker", "x")
    ((trace, body),) = requests
    assert body == {
        "model": "big-2", "messages": [{"role": "developer", "content": [{"type": "text", "text": "hi"}]}], "seed": 7, "metadata": {"team": "blue"},
        "response_format": {"type": "json_object"}, "of_a_provider": {"top_k": 3},
    }
    assert trace.split("-")[1] == traces[0].split("-")[1]
    assert (answer.text, answer.usage) == ("hi", troupe.Usage(5, 2, 7))


def test_restarts_of_the_server(tmp_path: Path, troupe_servers: Factory) -> None:
    """A request outlasts a restart, and a stream that ends in the middle is an error, not a short answer."""
    asked, released, cut = threading.Event(), threading.Event(), threading.Event()

    @agent
    def asker(turn: Turn) -> str:
        prompt: Any = [{"role": "user", "content": "say hello"}]
        with OpenAI(**turn.openai, max_retries=10) as client:
            before = client.chat.completions.create(model="scripted", messages=prompt).choices[0].message.content
            asked.set()
            released.wait(60)
            after = client.chat.completions.create(model="scripted", messages=prompt).choices[0].message.content
            with pytest.raises(openai.APIConnectionError):
                for chunk in client.chat.completions.create(model="big", messages=prompt, stream=True):
                    assert chunk.choices[0].delta.content == "part"
                    cut.set()
        return f"{before} {after}"

    part = {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "big-2", "choices": [{"index": 0, "delta": {"content": "part"}}]}
    with upstream(200, part, streams=True) as (url, _):
        server = with_model(troupe_servers, tmp_path, url)
        with asker.start(server.url):
            run_id = server.client.start("asker", "x")
            assert asked.wait(60)
            server.kill()
            restarted = threading.Thread(target=server.start)
            released.set()
            restarted.start()
            assert cut.wait(60)
            restarted.join()
            server.restart()
            assert server.client.runs.wait(run_id, 120).text == "hello hello"
            done = [e.payload for e in model_events(server.client, run_id) if e.type == "llm_call_done"]
    assert [d["status"] for d in done] == ["succeeded", "succeeded", "failed"] and done[2]["error"]["code"] == "outcome_unknown"


def test_turn_without_token() -> None:
    async def main() -> None:
        invocation = Invocation.of(b'{"run_id": "r", "input_message": {"content": "x"}}', {})
        async with troupe.AsyncClient("http://127.0.0.1:1") as client:
            turn = AsyncTurn(Execution(invocation, b"", asyncio.get_running_loop()), client._http)
            with pytest.raises(troupe.InvalidRequest, match="x-run-token"):
                turn.openai

    asyncio.run(main())
