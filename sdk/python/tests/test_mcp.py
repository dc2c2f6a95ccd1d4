# SPDX-License-Identifier: Apache-2.0
"""Servers written with the package mcp, whose tools one completion of a model calls in parallel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from troupe.testing import Factory

pytest.importorskip("mcp")
PROGRAM = str(Path(__file__).with_name("mcp_server.py"))


def test_both_transports(tmp_path: Path, troupe_servers: Factory) -> None:
    web = subprocess.Popen([sys.executable, PROGRAM, "http"], stdout=subprocess.PIPE, text=True)
    assert web.stdout is not None
    try:
        url = web.stdout.readline().strip()
        (tmp_path / "servers.toml").write_text(
            f"[mcp.pipe]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(PROGRAM)}]\n\n[mcp.web]\nurl = {json.dumps(url)}\n"
        )
        (tmp_path / "host.toml").write_text(
            'name = "host"\nmodel = "scripted"\ndescription = "Lets others meet."\ntools = ["pipe.meet", "pipe.end", "web.meet"]\n'
        )
        client = troupe_servers(agents=tmp_path).client
        calls = [f'use {server}.meet {{"name": "{name}"}}' for name in ("anna", "ben") for server in ("pipe", "web")]
        answer = client.call("host", "\n".join(calls))
        assert answer.text.count("anna and ben") == 4, answer.text

        # A server that ends in the middle of a call has perhaps performed it, and is started again.
        assert "outcome_unknown" in client.call("host", "use pipe.end {}").text
    finally:
        web.kill()
        web.wait(30)
        web.stdout.close()
