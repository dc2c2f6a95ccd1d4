# SPDX-License-Identifier: Apache-2.0
"""Agents and clients against a real server."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import certifi
import httpcore
import httpx
import pytest
from conftest import Ledger

import troupe
from troupe import Agent, AsyncClient, AsyncTurn, NotFound, Refusal, Run, RunFailed, Turn, agent
from troupe.testing import TroupeServer, find_binary


def test_conversation(troupe_server: TroupeServer) -> None:
    @agent
    def parrot(turn: Turn) -> str:
        """Repeats everything."""
        turn.state("thinking", {"messages": len(turn.messages)})
        return ", ".join([m.content for m in turn.messages if m.role == "user"] + [turn.message])

    client = troupe_server.client
    with parrot.start(troupe_server.url):
        first = client.call("parrot", "one")
        second = client.call("parrot", "two", session=first.session_id)
        assert (first.text, second.text) == ("one", "one, two")
        assert [m.content for m in client.sessions.messages(first.session_id)] == ["one", "one", "two", "one, two"]
        assert [m.content for m in client.sessions.history(first.session_id)] == ["one, two", "two", "one", "one"]
        assert [s.session_id for s in client.sessions.list()] == [first.session_id]
        states = [e.payload["name"] for e in client.runs.events(second.run_id) if e.type == "agent_state"]
        assert len(states) == 1
        assert [a.agent_id for a in client.agents.list()] == ["parrot"]
        assert client.agents.get("parrot").raw["doc"] == "Repeats everything."
        client.sessions.delete(first.session_id)
        with pytest.raises(troupe.NotFound) as e:
            client.sessions.get(first.session_id)
        assert e.value.code == "session_not_found"


def test_pieces_and_usage(troupe_server: TroupeServer) -> None:
    @agent("gen")
    def generator(turn: Turn) -> Iterator[str]:
        turn.usage(input_tokens=3)
        yield "a"
        turn.usage(input_tokens=1, output_tokens=2)
        yield "b"

    @agent("agen")
    async def coroutine(turn: AsyncTurn) -> AsyncIterator[str]:
        yield "x"
        turn.delta("y")
        yield (await turn.call("gen", "go")).text

    client = troupe_server.client
    with generator.start(troupe_server.url), coroutine.start(troupe_server.url):
        with client.stream("agen", "go") as stream:
            pieces = [e.text for e in stream if e.type == "agent_stream_delta"]
        assert "".join(pieces) == stream.text == "xyab"
        answer = client.runs.wait(stream.run_id)
        assert (answer.tree_usage.input_tokens, answer.tree_usage.output_tokens) == (4, 2)


def test_agent_call_comes_back(troupe_server: TroupeServer) -> None:
    heard: list[troupe.Outcome | None] = []
    news = threading.Event()

    @agent("asker")
    def asker(turn: Turn) -> str:
        if turn.message == "ask":
            return turn.agent_call("worker", "look", {"n": 1}, session="other", timeout=30)
        heard.append(turn.outcome)
        if turn.outcome is not None:
            news.set()
        return "heard"

    @agent("worker")
    async def worker(turn: AsyncTurn) -> str:
        request = json.loads(turn.message)
        return json.dumps({"output": [request["skill"], request["input"], request["timeout"]], "confidence": 0.9})

    client = troupe_server.client
    with asker.start(troupe_server.url), worker.start(troupe_server.url):
        asked = client.call("asker", "ask")
        assert news.wait(30)
        # The message of a user is no outcome, whatever it has.
        client.call("asker", json.dumps({"kind": "skill_response", "correlationId": asked.text, "status": "completed"}), session=asked.session_id)
    assert heard == [troupe.Outcome(asked.text, "completed", ["look", {"n": 1}, 30000], 0.9), None]


def test_parts_of_agent_call_are_switched(troupe_server: TroupeServer) -> None:
    requests: list[dict[str, Any]] = []
    asked = threading.Semaphore(0)

    @agent("worker")
    def worker(turn: Turn) -> str:
        requests.append(json.loads(turn.message))
        asked.release()
        return "done"

    def ask(turn: Turn) -> str:
        return turn.agent_call("worker", turn.message) if turn.outcome is None else "heard"

    whole = agent("whole")(ask)
    bare = agent("bare", agent_call={"correlation": False, "return_to": False, "timeouts": False})(ask)
    with worker.start(troupe_server.url), whole.start(troupe_server.url), bare.start(troupe_server.url):
        client = troupe_server.client
        for name, sent in (("whole", {"correlationId", "returnTo", "timeout"}), ("bare", set[str]())):
            client.call(name, name)
            assert asked.acquire(timeout=30)
            assert requests[-1]["skill"] == name
            assert requests[-1].keys() & {"correlationId", "returnTo", "timeout"} == sent, name
    with pytest.raises(troupe.Refusal) as e, agent("wrong", agent_call={"chanel": True})(ask).start(troupe_server.url):
        pass
    assert "did you mean agent_call.channel?" in str(e.value)


def test_capability_of_an_orchestrator(troupe_server: TroupeServer) -> None:
    schema = {"type": "object", "required": ["npv"], "properties": {"npv": {"type": "number"}}}

    @agent("accountant", code="ACC", skills=["value"], provides=[troupe.Capability("ACC_NPV", "Computes a value.", version="1.0", timeout=15, output_schema=schema, example={})])
    def accountant(turn: Turn) -> str:
        return json.dumps({"npv": len(json.loads(turn.message)["inputs_json"])})

    client = troupe_server.client
    with accountant.start(troupe_server.url):
        client.agents.create(
            "front",
            kind="orchestrator",
            prompt='on value say {"primary_intent":"value","intent_confidence":1,"workflow":"value","inputs":{"rate":1}}',
            workflow={"value": {"description": "a value", "steps": [{"title": "Value", "capability": "ACC_NPV"}]}},
        )
        assert client.call("front", "the value").text.startswith("Value: npv 1.")


def test_reminder_comes_back(troupe_server: TroupeServer) -> None:
    heard: list[troupe.Outcome] = []
    news = threading.Event()

    @agent("clock")
    def clock(turn: Turn) -> str:
        if turn.outcome is None:
            return turn.remind("water the plants", after=0.02)
        heard.append(turn.outcome)
        news.set()
        return "done"

    with clock.start(troupe_server.url):
        made = troupe_server.client.call("clock", "x").text
        assert news.wait(30)
    assert [(o.correlation, o.status, o.reminder) for o in heard] == [(made, "completed", "water the plants")]


def test_failures_have_codes(troupe_server: TroupeServer, caplog: pytest.LogCaptureFixture) -> None:
    @agent("broken")
    def broken(turn: Turn) -> str:
        raise ValueError("no such word")

    @agent("asks")
    def asks(turn: Turn) -> str:
        try:
            return turn.call(turn.message, "x").text
        except troupe.Refusal as e:
            return f"{e.code} of {e.run_id[:3]}" if turn.message == "broken" else e.code

    @agent("exits")
    def exits(turn: Turn) -> str:
        sys.exit("no more words")

    client = troupe_server.client
    with broken.start(troupe_server.url), asks.start(troupe_server.url), exits.start(troupe_server.url):
        with pytest.raises(troupe.TroupeError, match="no more words"):
            client.call("exits", "x")
        with pytest.raises(troupe.TroupeError) as e:
            client.call("broken", "x")
        assert (e.value.code, "no such word" in e.value.message) == ("call_rejected", True)
        assert "ValueError" in caplog.text
        with pytest.raises(troupe.RunFailed) as f:
            client.stream("broken", "x").answer()
        assert (f.value.code, f.value.run_id != "") == ("call_rejected", True)
        assert client.call("asks", "broken").text.startswith("call_rejected of ")
        assert client.call("asks", "nobody").text == "agent_not_found"
        assert client.call("asks", "asks").text == "call_cycle"
    with pytest.raises(troupe.NotFound):
        client.call("nobody", "x")


def test_outcome_of_a_call_is_not_awaited_again(troupe_server: TroupeServer) -> None:
    """A call that timed out or whose agent is down has failed: it is no state of the server."""
    release = threading.Event()

    @agent("slow")
    def slow(turn: Turn) -> str:
        release.wait(30)
        return "late"

    @agent("asks")
    def asks(turn: Turn) -> str:
        codes = []
        for name in ("slow", "down"):
            try:
                turn.call(name, "x", timeout=1)
            except troupe.Refusal as e:
                codes.append(e.code)
        return " ".join(codes)

    client = troupe_server.client
    client.agents.register("down", "http://127.0.0.1:1", retry="safe", limits={"retry_time_ms": 100, "retry_delay_ms": 10})
    with slow.start(troupe_server.url), asks.start(troupe_server.url):
        try:
            assert client.call("asks", "x").text in ("timeout agent_unavailable", "timeout timeout")
        finally:
            release.set()


def test_abandoned_stream_does_not_block_the_client(troupe_server: TroupeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector closes an abandoned stream while a request holds the lock of the pool."""
    client = troupe_server.client
    client.agents.create("helper")
    assign = httpcore.ConnectionPool._assign_requests_to_connections

    def assign_and_collect(pool: httpcore.ConnectionPool) -> object:
        gc.collect()
        return assign(pool)

    monkeypatch.setattr(httpcore.ConnectionPool, "_assign_requests_to_connections", assign_and_collect)
    stream = client.stream("helper", "say a")
    assert next(stream).type == "user_input"
    gc.disable()
    try:
        cycle: list[object] = [stream]
        cycle.append(cycle)
        del stream, cycle
        answers: list[str] = []
        caller = threading.Thread(target=lambda: answers.append(client.call("helper", "say x").text), daemon=True)
        caller.start()
        caller.join(30)
        assert answers == ["x"]
    finally:
        gc.enable()


def test_answer_of_many_pieces(troupe_server: TroupeServer) -> None:
    @agent("long")
    def long(turn: Turn) -> Iterator[str]:
        for i in range(20_000):
            yield f"{i} "
        turn.state("counted")
        yield "end"

    @agent("huge")
    def huge(turn: Turn) -> Iterator[str]:
        while True:
            yield "x" * 100_000

    client = troupe_server.client
    with long.start(troupe_server.url), huge.start(troupe_server.url):
        assert client.call("long", "go").text == "".join(f"{i} " for i in range(20_000)) + "end"
        with pytest.raises(troupe.TroupeError) as e:
            client.call("huge", "go")
        assert e.value.code in ("call_rejected", "events_exceeded")


def test_rejected_and_blocked_tools(troupe_server: TroupeServer, ledger: Ledger) -> None:
    @agent("payer")
    def payer(turn: Turn) -> str:
        try:
            return str(turn.tool.invoke(turn.message, {"to": "anna"}))
        except troupe.ToolFailed as e:
            return f"{e.code}: {e.remedy}"

    client = troupe_server.client
    client.tools.declare(tool_name="pay", url=ledger.url, policy="require_approval", on_failure="return_error")
    client.tools.declare(tool_name="steal", url=ledger.url, policy="block", on_failure="return_error")
    client.tools.declare(tool_name="note", url=ledger.url)
    assert sorted(t.tool_name for t in client.tools.list()) == ["note", "pay", "steal"]
    with payer.start(troupe_server.url):
        assert client.call("payer", "note").text == "{'receipt': 1}"
        assert client.call("payer", "steal").text.startswith("policy_blocked: ")
        with pytest.raises(troupe.RunOpen) as e:
            client.call("payer", "pay", timeout=0.5)
        approval = next(client.approvals.list())
        assert approval.root_run_id == e.value.run_id
        client.approvals.reject(approval.approval_id, "too late")
        assert client.runs.wait(e.value.run_id).text.startswith("approval_rejected: ")
        with pytest.raises(troupe.Conflict) as again:
            client.approvals.approve(approval.approval_id)
        assert again.value.code == "approval_decided"
    assert len(ledger.entries) == 1


def test_budget_is_raised(tmp_path: Path) -> None:
    config = tmp_path / "troupe.toml"
    config.write_text('[budget]\ntree_tokens = 10\nat_limit = "ask"\n')
    with TroupeServer(tmp_path, config=config) as server:
        client = server.client
        client.agents.create(name="thinker")
        run_id = client.start("thinker", "say more")
        while not (waiting := list(client.approvals.list())):
            pass
        assert (waiting[0].kind, waiting[0].tool_name) == ("budget", "scripted")
        with pytest.raises(troupe.TroupeError) as e:
            client.approvals.approve(waiting[0].approval_id, raise_money=-1)
        assert e.value.field == "raise.money"
        assert client.approvals.approve(waiting[0].approval_id, "once", raise_tokens=54321).status == "APPROVED"
        assert client.runs.wait(run_id).text == "more"
        assert [e.payload["text"] for e in client.runs.events(run_id) if e.type == "tool_result"] == ['{"tokens":54321}']


def test_context_of_a_turn(troupe_server: TroupeServer) -> None:
    @agent("notes")
    def notes(turn: Turn) -> str:
        made = turn.context.create({"words": []})
        put = turn.context.put(made.context_key, {"words": [turn.message]}, made.version)
        try:
            turn.context.put(made.context_key, None, made.version)
        except troupe.Conflict as e:
            assert e.code == "context_version"
        assert turn.context.get(made.context_key).data == {"words": [turn.message]}
        assert turn.context.get(made.context_key, 1).data == {"words": []}
        return f"{put.context_key} {put.version}"

    client = troupe_server.client
    with notes.start(troupe_server.url):
        key, version = client.call("notes", "hi").text.split()
    assert client.contexts.get(key, int(version)).data == {"words": ["hi"]}
    client.contexts.delete(key)
    with pytest.raises(troupe.NotFound):
        client.contexts.get(key)


def test_notes_of_a_session(troupe_server: TroupeServer) -> None:
    @agent("scout")
    def scout(turn: Turn) -> str:
        turn.state("searching", {"pages": 1})
        assert turn.note("constraint", [1, 2], "budget") == 1
        assert turn.note("constraint", [1, 3], "budget") == 2
        assert turn.note("constraint", [1, 3], "budget") == 2  # it says so already
        assert turn.note("finding", {"n": 1}, "gone") == 1
        assert turn.note("finding", None, "gone") == 0
        for kind, name, field in (("rumour", None, "kind"), ("constraint", None, "name"), ("state", "mine", "name")):
            try:
                turn.note(kind, 1, name)
            except troupe.ToolFailed as e:
                assert e.code == "invalid_request" and f"note_session: {field}: " in e.message, e
            else:
                raise AssertionError(kind)
        try:
            turn.session_output("nothing")
        except troupe.ToolFailed as e:
            return f"{e.code} {e.message}"
        return "an output"

    @agent("reader")
    async def reader(turn: AsyncTurn) -> str:
        before = await turn.session_state()
        assert await turn.note("state", {"read": len(before.notes)}) == 1
        note, state = before.notes[0] if before.notes else None, await turn.session_state()
        return json.dumps([note and [note.kind, note.name, note.value, note.version, note.agent_id], state.agents["reader"]["state"], state.workflow,
                           state.agents.get("scout", {}).get("state"), state.agents.get("scout", {}).get("detail")])

    client = troupe_server.client
    with scout.start(troupe_server.url), reader.start(troupe_server.url):
        scouted = client.call("scout", "go")
        assert scouted.text.startswith("invalid_request output: "), scouted.text
        read = json.loads(client.call("reader", "go", session=scouted.session_id).text)
        assert read == [["constraint", "budget", [1, 3], 2, "scout"], {"read": 1}, None, "searching", {"pages": 1}]
        # Another session has nothing of it.
        assert json.loads(client.call("reader", "go").text) == [None, {"read": 0}, None, None, None]


def test_same_key_is_one_operation(troupe_server: TroupeServer, ledger: Ledger) -> None:
    @agent("payer")
    def payer(turn: Turn) -> str:
        receipts = {turn.tool.invoke("pay", {"n": 1}, key="pay-1")["receipt"] for _ in range(3)}
        try:
            turn.tool.invoke("pay", {"n": 2}, key="pay-1")
        except troupe.TurnDiverged:
            return f"{receipts}"
        return "a second payment"

    client = troupe_server.client
    client.tools.declare(tool_name="pay", url=ledger.url)
    with payer.start(troupe_server.url):
        assert client.call("payer", "go").text == "{1}"
    assert len(ledger.entries) == 1


def test_key_of_a_message(troupe_server: TroupeServer) -> None:
    client = troupe_server.client
    client.agents.create("helper")
    first, second = (client.call("helper", "say a", key="k", session="s") for _ in range(2))
    assert first.run_id == second.run_id
    with pytest.raises(troupe.InvalidRequest) as e:
        client.call("helper", "say b", key="k", session="s")
    assert e.value.status == 422


def test_trace_reaches_agent_and_call(troupe_server: TroupeServer) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    seen: list[str] = []

    @agent("inner")
    def inner(turn: Turn) -> str:
        seen.append(turn.traceparent)
        return "ok"

    @agent("outer")
    def outer(turn: Turn) -> str:
        seen.append(turn.traceparent)
        return turn.call("inner", "x").text

    with inner.start(troupe_server.url), outer.start(troupe_server.url):
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        r = httpx.post(troupe_server.url + "/v1/agents/outer/messages", json={"content": "x"}, headers=headers)
        assert r.json()["content"] == "ok"
    assert [t.split("-")[1] for t in seen] == [trace, trace]


def test_secret_of_an_agent(troupe_servers: troupe.testing.Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    @agent("guarded", auth_env="TROUPE_AUTH_GUARDED")
    def guarded(turn: Turn) -> str:
        return "hi"

    with pytest.raises(troupe.TroupeError, match="TROUPE_AUTH_GUARDED is not set"):
        guarded.start("http://127.0.0.1:1")
    monkeypatch.setenv("TROUPE_AUTH_GUARDED", "s3cret")
    server = troupe_servers(flags=["--auth=TROUPE_AUTH_GUARDED=127.0.0.1"])
    with guarded.start(server.url) as running:
        assert server.client.call("guarded", "x").text == "hi"
        assert httpx.post(running.endpoint + "/invoke", content=b"{}").status_code == 401


def test_wrong_requests_of_the_server() -> None:
    """The agent refuses what is not the protocol, also without a server."""

    @agent("echo")
    def echo(turn: Turn) -> str:
        return turn.message

    async def main() -> None:
        transport = httpx.ASGITransport(app=echo)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
            assert (await http.get("/health")).status_code == 200
            assert (await http.get("/invoke")).status_code == 405
            assert (await http.get("/other")).status_code == 404
            for body in (b"", b"[]", b"{", b'{"run_id":"r","input_message":{"content":3}}', b'{"input_message":{"content":"x"}}'):
                assert (await http.post("/invoke", content=body)).status_code == 400, body

    asyncio.run(main())


def test_agent_in_another_server(troupe_server: TroupeServer) -> None:
    """An ASGI server, here that of the package, runs the life of the application itself."""
    from troupe._server import Server

    @agent("hosted")
    def hosted(turn: Turn) -> str:
        return "hosted " + turn.message

    async def main() -> None:
        messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        answers: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        server = Server(hosted)
        await server.listen("127.0.0.1", 0)
        hosted._endpoint, hosted._server_url = "http://%s:%d" % server.address, troupe_server.url
        life = asyncio.create_task(hosted({"type": "lifespan"}, messages.get, answers.put))  # type: ignore[arg-type]
        await messages.put({"type": "lifespan.startup"})
        assert (await answers.get())["type"] == "lifespan.startup.complete"
        assert hosted.registered is not None
        await asyncio.wait_for(hosted.registered.wait(), 30)
        async with AsyncClient(troupe_server.url) as client:
            assert (await client.call("hosted", "x")).text == "hosted x"
            stream = client.stream("hosted", "y")
            assert [e.text async for e in stream if e.type == "run_done"] == ["hosted y"]
            assert [r.agent_id async for r in client.runs.list(limit=1)] == ["hosted", "hosted"]
        await messages.put({"type": "lifespan.shutdown"})
        assert (await answers.get())["type"] == "lifespan.shutdown.complete"
        await life
        await server.close()

    asyncio.run(main())


def test_application_needs_its_address() -> None:
    lost: Agent = agent("lost")(lambda turn: "")

    async def main() -> None:
        answers: list[dict[str, str]] = []

        async def receive() -> dict[str, str]:
            return {"type": "lifespan.startup"}

        async def send(message: dict[str, str]) -> None:
            answers.append(message)

        await lost({"type": "lifespan"}, receive, send)  # type: ignore[arg-type]
        assert answers[0]["type"] == "lifespan.startup.failed" and "TROUPE_ENDPOINT" in answers[0]["message"]

    asyncio.run(main())


def test_agent_registers_again(troupe_servers: troupe.testing.Factory) -> None:
    """An agent waits for a server that starts later."""
    server = troupe_servers()
    server.kill()

    @agent("early")
    def early(turn: Turn) -> str:
        return "here"

    restarted = threading.Thread(target=server.start)
    restarted.start()
    with early.start(server.url):
        restarted.join()
        assert server.client.call("early", "x").text == "here"


def test_wrong_addresses_are_reported_at_once() -> None:
    silent: Agent = agent("silent")(lambda turn: "")
    for listen, remedy in (("9001", "want HOST:PORT"), ("0.0.0.0:0", "TROUPE_ENDPOINT"), ("192.0.2.1:0", "cannot listen")):
        with pytest.raises(troupe.TroupeError, match=remedy):
            silent.start("http://127.0.0.1:1", listen=listen)


def test_wrong_registration_is_reported_at_once(troupe_server: TroupeServer) -> None:
    with pytest.raises(troupe.InvalidRequest) as e:
        agent("helper", transcript="last:0")(lambda turn: "").start(troupe_server.url)
    assert e.value.code == "invalid_request"


def test_many_turns_at_once(troupe_server: TroupeServer) -> None:
    @agent("fan")
    async def fan(turn: AsyncTurn) -> str:
        answers = await asyncio.gather(*(turn.call("leaf", str(i)) for i in range(4)))
        return " ".join(a.text for a in answers)

    @agent("leaf")
    async def leaf(turn: AsyncTurn) -> str:
        return turn.message

    with fan.start(troupe_server.url), leaf.start(troupe_server.url):
        assert troupe_server.client.call("fan", "x").text == " ".join(str(i) for i in range(4))


def test_missing_binary_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TROUPE_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(troupe.TroupeError, match="Set TROUPE_BIN"):
        find_binary()
    monkeypatch.setenv("TROUPE_BIN", str(tmp_path / "nothing"))
    with pytest.raises(troupe.TroupeError, match="make build"):
        find_binary()


def test_unreachable_server_has_a_remedy() -> None:
    with troupe.Client("http://127.0.0.1:1", patience=0.2) as client, pytest.raises(troupe.Unreachable) as e:
        client.call("a", "b")
    assert "TROUPE_SERVER" in e.value.remedy and json.dumps(e.value.code)


def test_state_and_error_of_a_run(troupe_server: TroupeServer, ledger: Ledger) -> None:
    @agent("payer")
    def payer(turn: Turn) -> str:
        if turn.message == "fail":
            raise ValueError("no account")
        return str(turn.tool.invoke("payments.transfer", {"amount": 20, "to": "anna"}))

    async def get(run_id: str) -> Run:
        async with AsyncClient(troupe_server.url) as client:
            return await client.runs.get(run_id)

    client = troupe_server.client
    client.tools.declare(tool_name="payments.transfer", url=ledger.url, policy="require_approval")
    with payer.start(troupe_server.url):
        run_id = client.start("payer", "pay")
        for e in client.runs.events(run_id):
            if e.type == "approval_required":
                break
        waits = client.runs.get(run_id)
        assert (waits.agent_state, waits.error) == (waits.raw["agent_state"], {}) and waits.agent_state in ("Waiting", "Paused")
        assert asyncio.run(get(run_id)).agent_state == waits.agent_state
        client.runs.cancel(run_id)
        failed = client.start("payer", "fail")
        with pytest.raises(RunFailed):
            client.runs.wait(failed)
        for run in (client.runs.get(failed), asyncio.run(get(failed))):
            assert run.status == "FAILED" and "no account" in run.error["message"] and run.error["code"] and hash(run)
        assert [r.error["code"] for r in client.runs.list(status="FAILED")] == [run.error["code"]]
    parked = Run.of({"run_id": "r", "status": "PAUSED_WAITING_APPROVAL", "agent_state": "Parked", "error": {"message": "step 1: replay diverged"}})
    assert (parked.agent_state, parked.error["message"], parked.ended) == ("Parked", "step 1: replay diverged", False)


def test_retry_of_a_run_that_is_not_parked(troupe_server: TroupeServer, ledger: Ledger) -> None:
    @agent("payer")
    def payer(turn: Turn) -> str:
        return str(turn.tool.invoke("payments.transfer", {"amount": 20, "to": "anna"}))

    async def main(run_id: str) -> str:
        async with AsyncClient(troupe_server.url) as client:
            return await client.runs.retry(run_id)

    client = troupe_server.client
    client.tools.declare(tool_name="payments.transfer", url=ledger.url, policy="require_approval")
    with payer.start(troupe_server.url):
        run_id = client.start("payer", "pay")
        for e in client.runs.events(run_id):
            if e.type == "approval_required":
                break
        assert client.runs.retry(run_id) == asyncio.run(main(run_id)) == client.runs.get(run_id).status  # nothing happened
        client.runs.cancel(run_id)
        with pytest.raises(Refusal) as ended:
            client.runs.retry(run_id)
        assert (ended.value.code, ended.value.run_id) == ("call_rejected", run_id)
        with pytest.raises(Refusal) as ended:
            asyncio.run(main(run_id))
        assert "CANCELLED" in str(ended.value)
    with pytest.raises(NotFound):
        client.runs.retry("0190d5b2-7c3e-7a41-8f10-2b6f0c9d4e55")


def test_mistakes_are_refused_at_the_decoration() -> None:
    for name in ("two words", "", "x" * 65, "..", "grüße"):
        with pytest.raises(troupe.InvalidRequest, match="want 1 to 64 letters"):
            Agent(lambda turn: "x", name or "<lambda>")
    wrong: list[Any] = [lambda: "x", lambda one, two: "x"]
    for function in wrong:
        with pytest.raises(troupe.InvalidRequest, match="want a function with one parameter, the turn"):
            agent("helper")(function)
    assert agent("helper")(lambda turn, more=1: "x").agent_id == "helper"


def test_authorities_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server on this machine may have a certificate of a private authority too."""
    pems = ["-----BEGIN" + pem for pem in Path(certifi.where()).read_text().split("-----BEGIN")[1:3]]
    serials = set()
    for name, pem in zip(("SSL_CERT_FILE", "TROUPE_CA"), pems):
        (tmp_path / name).write_text(pem)
        monkeypatch.setenv(name, str(tmp_path / name))
        alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        alone.load_verify_locations(cadata=pem)
        serials |= {c["serialNumber"] for c in alone.get_ca_certs()}

    def context_of(client: Any) -> ssl.SSLContext:
        context = client._transport._pool._ssl_context
        assert isinstance(context, ssl.SSLContext)
        return context

    async def trusted() -> list[ssl.SSLContext]:
        async with AsyncClient("https://127.0.0.1:1") as client:
            found = [context_of(client._http)]
        helper = Agent(lambda turn: "x", "helper")
        await helper.open("https://127.0.0.1:1")
        assert helper._http and helper._blocking
        found += [context_of(helper._http), context_of(helper._blocking)]
        await helper.close()
        return found

    with troupe.Client("https://127.0.0.1:1") as client:
        contexts = [context_of(client._http), *asyncio.run(trusted())]
    for context in contexts:
        assert {c["serialNumber"] for c in context.get_ca_certs()} == serials
    monkeypatch.setenv("TROUPE_CA", str(tmp_path / "absent"))
    with pytest.raises(troupe.TroupeError, match="TROUPE_CA"):
        troupe.Client()
