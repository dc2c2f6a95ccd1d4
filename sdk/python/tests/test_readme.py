# SPDX-License-Identifier: Apache-2.0
"""The programs of README.md, as a reader saves and runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import ROOT, Ledger

from troupe.testing import Factory, TroupeServer


def programs() -> dict[str, str]:
    page = (ROOT / "sdk" / "python" / "README.md").read_text()
    cashier, test, writer, client = re.findall(r"```python\n(.*?)```", page, re.S)
    (tool,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    return {"cashier.py": cashier, "test_cashier.py": test, "writer.py": writer, "client.py": client, "transfer.toml": tool}


def test_agent_and_its_test(tmp_path: Path) -> None:
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_cashier.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def cashier(folder: Path, servers: Factory, ledger: Ledger, policy: str) -> Iterator[TroupeServer]:
    """A server with the tool of the page and that policy, and the agent of the page beside it."""
    text = programs()
    (folder / "cashier.py").write_text(text["cashier.py"].replace("127.0.0.1:9001", "127.0.0.1:0"))
    agents = folder / "agents"
    agents.mkdir()
    tool = text["transfer.toml"].replace("http://127.0.0.1:9000/payments", ledger.url).replace("require_approval", policy)
    (agents / "transfer.toml").write_text(tool)
    server = servers(agents=agents)
    env = {**os.environ, "TROUPE_SERVER": server.url}
    process = subprocess.Popen([sys.executable, "cashier.py"], cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("registered cashier")
        yield server
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_tool_file(tmp_path: Path, troupe_servers: Factory, ledger: Ledger) -> None:
    with cashier(tmp_path, troupe_servers, ledger, "require_approval") as server:
        run = server.client.start("cashier", "anna")
        for e in server.client.runs.events(run):
            if e.type == "approval_required":
                server.client.approvals.approve(str(e.payload["approval_id"]))
        assert server.client.runs.wait(run).text == "Paid, receipt 1."
    assert len(ledger.entries) == 1


def test_client(tmp_path: Path, troupe_servers: Factory, ledger: Ledger) -> None:
    (tmp_path / "client.py").write_text(programs()["client.py"])
    with cashier(tmp_path, troupe_servers, ledger, "allow") as server:
        env = {**os.environ, "TROUPE_SERVER": server.url}
        done = subprocess.run([sys.executable, "client.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout + done.stderr
    assert lines[0].startswith("Paid, receipt 1. ") and lines[1] == "Paid, receipt 2."
    assert ['"anna"' in body for _, body in ledger.entries] == [True, False]


def test_model(tmp_path: Path, troupe_server: TroupeServer) -> None:
    (tmp_path / "writer.py").write_text(programs()["writer.py"])
    client, env = troupe_server.client, {**os.environ, "TROUPE_SERVER": troupe_server.url}
    process = subprocess.Popen([sys.executable, "writer.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("registered writer")
        first = client.call("writer", "say hello")
        assert first.text == "hello" and first.usage.total_tokens > 0
        assert client.call("writer", "list my messages", session=first.session_id).text == "1. say hello"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
