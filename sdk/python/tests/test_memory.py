# SPDX-License-Identifier: Apache-2.0
"""An agent in Python that remembers over sessions and a killed server, and forgets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from troupe import Agent, Turn
from troupe.testing import Factory


def test_agent_recalls_and_forgets(tmp_path: Path, troupe_servers: Factory) -> None:
    def clerk(turn: Turn) -> str:
        tool, _, args = turn.message.partition(" ")
        return json.dumps(turn.tool.invoke(tool, json.loads(args)))

    config = tmp_path / "troupe.toml"
    config.write_text("[memory]\nenabled = true\n")
    server = troupe_servers(config=config)
    agent = Agent(clerk, memory={"search": True, "create": True, "forget": True, "scope": ["workspace"]})
    with agent.start(server.url):
        assert '"created"' in server.client.call("clerk", 'memory_create {"entity": "Ada", "content": "drinks oolong"}', session="s-1").text
        server.kill()
        server.start()
        found = json.loads(server.client.call("clerk", 'memory_search {"query": "who drinks oolong"}', session="s-2").text)
        assert [(hit["entity"], hit["source"]["session_id"]) for hit in found["hits"]] == [("Ada", "s-1")]
        assert '"forgotten"' in server.client.call("clerk", 'memory_forget {"entity": "Ada", "reason": "asked"}', session="s-2").text
        assert json.loads(server.client.call("clerk", 'memory_search {"query": "oolong"}', session="s-3").text)["hits"] == []
        with pytest.raises(Exception, match="may not use memory_traverse"):
            server.client.call("clerk", 'memory_traverse {"from": "Ada"}')
