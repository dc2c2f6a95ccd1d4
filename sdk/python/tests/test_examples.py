# SPDX-License-Identifier: Apache-2.0
"""The examples, each as a process, with a payment that waits for a person over a kill -9."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import ROOT, Ledger

from troupe.testing import TroupeServer

FRAMEWORKS = {"langgraph": ("graph", "langchain_openai"), "openai-agents": ("treasurer", "agents")}


@contextmanager
def example(name: str, server: TroupeServer, *more: str, listen: str = "127.0.0.1:0") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs an example until the end of the block, and returns its process and its address."""
    script = ROOT / "examples" / name / "agent.py"
    command = [sys.executable, str(script), "--server", server.url, "--listen", listen, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("registered "), line
        yield process, line.strip().rpartition("//")[2]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_python(troupe_server: TroupeServer) -> None:
    client = troupe_server.client
    client.agents.create("helper")
    with example("python", troupe_server, "--agent-id", "scribe") as (process, _):
        assert client.call("scribe", "say to be").text == "I counted 3 words. The helper answered: to be"
        process.terminate()
        assert process.wait(30) == 0
    with example("python", troupe_server, "--ask", "nobody") as _:
        assert "agent_not_found" in client.call("scribe", "one").text


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_framework(name: str, troupe_server: TroupeServer, ledger: Ledger) -> None:
    agent_id, package = FRAMEWORKS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the packages of examples/{name} are not installed")
    client = troupe_server.client
    client.agents.create("helper")
    client.tools.declare(tool_name="payments.transfer", url=ledger.url, policy="require_approval", on_failure="return_error")
    message = 'use ask {"agent_id": "helper", "message": "say anna"}\nuse transfer {"to": "anna", "amount": 20}'

    def approval_of(run_id: str) -> str:
        for e in client.runs.events(run_id):
            if e.type == "approval_required":
                return str(e.payload["approval_id"])
            assert not e.ends, e
        raise AssertionError

    with example(name, troupe_server) as (process, address):
        run_id = client.start(agent_id, message, session="trip")
        approval = approval_of(run_id)
        troupe_server.restart()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with example(name, troupe_server, listen=address):
            client.approvals.approve(approval)
            assert client.runs.wait(run_id, 120).text == 'anna\n{"receipt": 1}'
            assert len(client.runs.tree(run_id)) == 2, "the helper was called once"
            assert client.call(agent_id, "hello", session="trip").text == "You said: hello"
            run_id = client.start(agent_id, 'use transfer {"to": "bob", "amount": 1}', session="trip")
            client.approvals.reject(approval_of(run_id), "no")
            assert "approval_rejected" in client.runs.wait(run_id, 120).text
            requests = [e.payload for e in client.runs.events(run_id) if e.type == "llm_call_started"]
            assert [(r["name"], "request_id" in r) for r in requests] == [("scripted", True)] * 2
            assert client.runs.get(run_id).usage.total_tokens > 0
    assert len(ledger.entries) == 1
