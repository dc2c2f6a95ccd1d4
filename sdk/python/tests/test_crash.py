# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the server, and of the agent: one effect, and no exception at the author."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Ledger

from troupe import Agent, Approval, AsyncTurn, Client, Event, RunCancelled, Turn, agent
from troupe.testing import TroupeServer


class Author:
    """Records what the code of an author sees."""

    def __init__(self) -> None:
        self.begun = 0
        self.failures: list[BaseException] = []
        self.started = threading.Event()
        self.go_on = threading.Event()

    def __enter__(self) -> Author:
        self.begun += 1
        self.started.set()
        return self

    def __exit__(self, kind: Any, failure: BaseException | None, trace: Any) -> None:
        if failure is not None:
            self.failures.append(failure)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


def declare_payments(client: Client, url: str, **more: Any) -> None:
    client.tools.declare(tool_name="payments.transfer", url=url, policy="require_approval", args_summary="pays {{amount}} to {{to}}",
                         input_schema={"type": "object", "properties": {"amount": {"type": "number"}, "to": {"type": "string"}}}, **more)


def await_approval(client: Client, run_id: str) -> Approval:
    """Returns the approval that a run waits for."""
    for e in client.runs.events(run_id):
        if e.type in ("approval_required", "approval_created"):
            return client.approvals.get(str(e.payload["approval_id"]))
        assert not e.ends, e
    raise AssertionError("the run ended without an approval")


def test_stream_continues_after_kill(troupe_server: TroupeServer) -> None:
    author = Author()

    @agent("teller")
    def teller(turn: Turn) -> Iterator[str]:
        with author:
            yield "one "
            author.go_on.wait(30)
            yield "two "
        yield "three"

    client = troupe_server.client
    with teller.start(troupe_server.url), client.stream("teller", "count") as stream:
        events: list[Event] = []
        for e in stream:
            events.append(e)
            if e.type == "agent_stream_delta" and not author.go_on.is_set():
                troupe_server.restart()
                author.go_on.set()
        assert stream.answer().text == stream.text == "one two three"
    assert [e.seq for e in events] == list(range(1, len(events) + 1)), "no gap and no duplicate"
    assert (author.begun, author.failures) == (1, [])


def test_stream_begins_while_the_server_is_away(troupe_server: TroupeServer, pool: ThreadPoolExecutor) -> None:
    client = troupe_server.client
    client.agents.create("helper")
    troupe_server.kill()
    answer = pool.submit(lambda: client.stream("helper", "say xyzzy").answer().text)
    troupe_server.start()
    assert answer.result(60) == "xyzzy"
    assert len(list(client.runs.list())) == 1


def test_call_outlasts_kill(troupe_server: TroupeServer, pool: ThreadPoolExecutor) -> None:
    author = Author()

    @agent("worker")
    def worker(turn: Turn) -> str:
        with author:
            author.go_on.wait(30)
            return "worked on " + turn.message

    client = troupe_server.client
    with worker.start(troupe_server.url):
        answer = pool.submit(client.call, "worker", "it")
        assert author.started.wait(30)
        troupe_server.restart()
        author.go_on.set()
        assert answer.result(60).text == "worked on it"
    assert (author.begun, author.failures) == (1, [])
    assert len(list(client.runs.list())) == 1


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_call_of_a_turn_outlasts_kill(troupe_server: TroupeServer, pool: ThreadPoolExecutor, kind: str) -> None:
    outer, inner = Author(), Author()

    @agent("inner")
    def callee(turn: Turn) -> str:
        with inner:
            inner.go_on.wait(30)
            return "inner " + turn.message

    def blocking(turn: Turn) -> str:
        with outer:
            return turn.call("inner", "a").text + ", " + turn.call("inner", "b").text

    async def coroutine(turn: AsyncTurn) -> str:
        with outer:
            return (await turn.call("inner", "a")).text + ", " + (await turn.call("inner", "b")).text

    caller: Agent = agent("outer")(blocking if kind == "blocking" else coroutine)
    client = troupe_server.client
    with callee.start(troupe_server.url), caller.start(troupe_server.url):
        answer = pool.submit(client.call, "outer", "go")
        assert inner.started.wait(30)
        troupe_server.restart()
        inner.go_on.set()
        got = answer.result(60)
        assert got.text == "inner a, inner b"
        assert len(client.runs.tree(got.run_id)) == 3
    assert (outer.begun, outer.failures, inner.begun, inner.failures) == (1, [], 2, [])


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_tool_that_waits_for_approval_outlasts_kill(troupe_server: TroupeServer, ledger: Ledger, kind: str) -> None:
    author = Author()
    args = {"amount": 20, "to": "anna"}

    def blocking(turn: Turn) -> str:
        with author:
            return f"receipt {turn.tool.invoke('payments.transfer', args)['receipt']}"

    async def coroutine(turn: AsyncTurn) -> str:
        with author:
            return f"receipt {(await turn.tool.invoke('payments.transfer', args))['receipt']}"

    payer: Agent = agent("payer")(blocking if kind == "blocking" else coroutine)
    client = troupe_server.client
    declare_payments(client, ledger.url)
    with payer.start(troupe_server.url):
        run_id = client.start("payer", "pay")
        approval = await_approval(client, run_id)
        assert approval.args_summary == "pays 20 to anna"
        for _ in range(10):
            troupe_server.restart()
        assert [a.approval_id for a in client.approvals.list()] == [approval.approval_id]
        assert ledger.entries == []
        assert client.approvals.approve(approval.approval_id, "asked Anna").status == "APPROVED"
        assert client.runs.wait(run_id, 60).text == "receipt 1"
        assert client.approvals.wait(approval.approval_id).reason == "asked Anna"
        assert client.tools.wait(approval.tool_call_id).result == {"receipt": 1}
    assert len(ledger.entries) == 1
    assert (author.begun, author.failures) == (1, [])


def test_twenty_kills_around_the_approval(troupe_server: TroupeServer, ledger: Ledger) -> None:
    """The server is killed while a call waits, after the decision, and at any point of its execution."""
    author = Author()

    @agent("payer")
    async def payer(turn: AsyncTurn) -> str:
        with author:
            await turn.tool.invoke("payments.transfer", {"amount": 1, "to": turn.message})
            return "paid " + turn.message

    client = troupe_server.client
    declare_payments(client, ledger.url, idempotent=True)
    with payer.start(troupe_server.url):
        for i in range(20):
            run_id = client.start("payer", f"p{i}")
            approval = await_approval(client, run_id)
            if i % 2 == 0:
                troupe_server.restart()
            client.approvals.approve(approval.approval_id)
            if i % 4 != 0:
                troupe_server.restart()
            assert client.runs.wait(run_id, 60).text == f"paid p{i}"
    assert len({key for key, _ in ledger.entries}) == len({body for _, body in ledger.entries}) == 20
    assert (author.begun, author.failures) == (20, [])


def test_tool_that_is_performed_outlasts_kill(troupe_server: TroupeServer, ledger: Ledger) -> None:
    """An idempotent tool is requested again with the same key, so its service performs it once."""
    author = Author()

    @agent("payer")
    def payer(turn: Turn) -> str:
        with author:
            turn.tool.invoke("payments.transfer", {"amount": 20, "to": "anna"})
            return "paid"

    client = troupe_server.client
    declare_payments(client, ledger.url, idempotent=True)
    ledger.gate.clear()
    with payer.start(troupe_server.url):
        run_id = client.start("payer", "pay")
        client.approvals.approve(await_approval(client, run_id).approval_id)
        assert ledger.requested.wait(30)
        troupe_server.kill()
        ledger.gate.set()
        troupe_server.start()
        assert client.runs.wait(run_id, 60).text == "paid"
    assert len({key for key, _ in ledger.entries}) == 1, "all attempts have one key"
    assert (author.begun, author.failures) == (1, [])


PAYER = """
import sys
from troupe import Turn, agent

@agent("payer")
def payer(turn: Turn) -> str:
    print("begun", flush=True)
    first = turn.call("helper", "say " + turn.message).text
    receipt = turn.tool.invoke("payments.transfer", {"amount": 20, "to": first})
    return f"paid {first}: {receipt['receipt']}"

payer.serve(sys.argv[1], listen=sys.argv[2])
"""


def test_repeated_turn_gets_the_same_results(troupe_server: TroupeServer, ledger: Ledger, tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """The process of the agent is killed. The next one executes the turn again, with one effect."""
    script = tmp_path / "payer.py"
    script.write_text(PAYER)
    client = troupe_server.client
    client.agents.create("helper")
    declare_payments(client, ledger.url)

    def start(listen: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, str(script), troupe_server.url, listen], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return pool.submit(process.stdout.readline).result(60).strip()

    process = start("127.0.0.1:0")
    try:
        registered = line(process)
        assert registered.startswith("registered payer at http://"), registered
        address = registered.rpartition("//")[2]
        run_id = client.start("payer", "anna")
        approval = await_approval(client, run_id)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        process = start(address)
        assert sorted([line(process), line(process)]) == ["begun", registered], "the turn may begin before the registration"
        troupe_server.restart()
        assert [a.approval_id for a in client.approvals.list()] == [approval.approval_id]
        client.approvals.approve(approval.approval_id)
        assert client.runs.wait(run_id, 60).text == "paid anna: 1"
        assert len(client.runs.tree(run_id)) == 2, "the helper was called once"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert len(ledger.entries) == 1


def test_cancelled_run_ends_its_turn(troupe_server: TroupeServer, ledger: Ledger) -> None:
    author = Author()
    ended = threading.Event()

    @agent("payer")
    def payer(turn: Turn) -> str:
        try:
            with author:
                turn.tool.invoke("payments.transfer", {"amount": 20, "to": "anna"})
                return "paid"
        finally:
            ended.set()

    client = troupe_server.client
    declare_payments(client, ledger.url)
    with payer.start(troupe_server.url):
        run_id = client.start("payer", "pay")
        await_approval(client, run_id)
        client.runs.cancel(run_id)
        assert ended.wait(60)
        with pytest.raises(RunCancelled) as e:
            client.runs.wait(run_id)
        assert (e.value.code, e.value.run_id) == ("cancelled", run_id)
    assert [type(f).__name__ for f in author.failures] == ["TurnCancelled"]
    assert ledger.entries == []


