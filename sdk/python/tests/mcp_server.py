# SPDX-License-Identifier: Apache-2.0
"""A server of the Model Context Protocol, written with the package mcp.

It talks over its standard streams, or with the argument http over streamable HTTP, whose URL it prints.
"""

from __future__ import annotations

import os
import socket
import sys

import anyio
from mcp.server.mcpserver import MCPServer

server = MCPServer("meeting")
arrived: list[str] = []
complete = anyio.Event()


@server.tool()
async def meet(name: str) -> str:
    """Waits until two calls are under way, and names them."""
    arrived.append(name)
    if len(arrived) == 2:
        complete.set()
    with anyio.fail_after(30):
        await complete.wait()
    return " and ".join(sorted(arrived))


@server.tool()
async def end() -> str:
    """Ends the server in the middle of the call."""
    os._exit(1)


def serve_http() -> None:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        serve_http()
    else:
        server.run("stdio")
