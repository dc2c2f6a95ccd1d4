# SPDX-License-Identifier: Apache-2.0
"""Servers written with the package mcp, whose tools one completion of a model calls in parallel."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from troupe.testing import Factory

pytest.importorskip("mcp")

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

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


def test_agents_are_tools(tmp_path: Path, troupe_servers: Factory) -> None:
    """The client of the package mcp starts troupe mcp, and continues a conversation."""
    server = troupe_servers()
    server.client.agents.create("scribe", description="Writes.")

    async def converse() -> tuple[list[str], Any, Any]:
        program = StdioServerParameters(command=os.environ["TROUPE_BIN"], args=["mcp", "--server", server.url])
        async with stdio_client(program) as (reader, writer), ClientSession(reader, writer) as session:
            await session.initialize()
            names = [tool.name for tool in (await session.list_tools()).tools]
            first = await session.call_tool("ask_scribe", {"message": "say one"})
            about = dict(first.structured_content or {})
            return names, first, await session.call_tool("ask_scribe", {"message": "list my messages", "session_id": about["session_id"]})

    names, first, second = asyncio.run(converse())
    assert sorted(names) == ["ask_scribe", "cancel_run", "wait_for_run"]
    assert (first.content[0].text, second.content[0].text) == ("one", "1. say one")
