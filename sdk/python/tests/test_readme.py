# SPDX-License-Identifier: Apache-2.0
"""The programs of README.md, as a reader saves and runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT, Ledger

from troupe.testing import Factory


def programs() -> dict[str, str]:
    page = (ROOT / "sdk" / "python" / "README.md").read_text()
    cashier, test, client = re.findall(r"```python\n(.*?)```", page, re.S)
    (tool,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    return {"cashier.py": cashier, "test_cashier.py": test, "client.py": client, "transfer.toml": tool}


def test_agent_and_its_test(tmp_path: Path) -> None:
    for name, text in programs().items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_cashier.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tool_file(tmp_path: Path, troupe_servers: Factory, ledger: Ledger) -> None:
    text = programs()
    (tmp_path / "cashier.py").write_text(text["cashier.py"].replace("127.0.0.1:9001", "127.0.0.1:0"))
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "transfer.toml").write_text(text["transfer.toml"].replace("http://127.0.0.1:9000/payments", ledger.url))
    server = troupe_servers(agents=agents)
    env = {**os.environ, "TROUPE_SERVER": server.url}
    process = subprocess.Popen([sys.executable, "cashier.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("registered cashier")
        run = server.client.start("cashier", "anna")
        for e in server.client.runs.events(run):
            if e.type == "approval_required":
                server.client.approvals.approve(str(e.payload["approval_id"]))
        assert server.client.runs.wait(run).text == "Paid, receipt 1."
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
    assert len(ledger.entries) == 1


def test_client(tmp_path: Path, troupe_servers: Factory) -> None:
    (tmp_path / "client.py").write_text(programs()["client.py"])
    server = troupe_servers(agents=ROOT / "examples" / "team")
    env = {**os.environ, "TROUPE_SERVER": server.url}
    done = subprocess.run([sys.executable, "client.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("xyzzy ") and lines[-1] == "1. Ask the helper agent to say xyzzy", done.stdout + done.stderr
