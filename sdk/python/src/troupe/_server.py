# SPDX-License-Identifier: Apache-2.0
"""A small HTTP/1.1 server for one ASGI application, for scripts and tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import h11

log = logging.getLogger("troupe")

ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
SendMessage = Callable[[ASGIMessage], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, SendMessage], Awaitable[None]]

CONNECTIONS_MAX = 1024
IDLE_SECONDS = 75.0  # until a request begins or continues
HEAD_BYTES_MAX = 64 << 10
READ_BYTES = 64 << 10


class Disconnected(Exception):
    """The client has closed the connection."""


class Server:
    """Serves an application until it is closed."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ("", 0)

    async def listen(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._accept, host, port)
        name = self._server.sockets[0].getsockname()
        self.address = (str(name[0]), int(name[1]))

    async def close(self) -> None:
        """Closes the listener and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await _Connection(self._app, reader, writer).serve()
        except (Disconnected, ConnectionError, h11.RemoteProtocolError, h11.LocalProtocolError, asyncio.TimeoutError):
            pass
        except asyncio.CancelledError:
            pass  # close cancels connections; the task ends here
        except Exception:
            log.exception("a connection failed")
        finally:
            self._connections.discard(task)
            writer.close()


class _Connection:
    def __init__(self, app: Application, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._app, self._reader, self._writer = app, reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._ended = False  # the request is complete
        self._gone = False

    async def _read(self, timeout: float | None) -> None:
        data = await asyncio.wait_for(self._reader.read(READ_BYTES), timeout)
        if not data:
            self._gone = True
        self._http.receive_data(data)

    async def _event(self) -> Any:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            await self._read(IDLE_SECONDS)

    async def _write(self, data: bytes | None) -> None:
        if data:
            self._writer.write(data)
            await self._writer.drain()

    async def serve(self) -> None:
        while True:
            event = await self._event()
            if not isinstance(event, h11.Request):
                return
            self._ended = False
            await self._respond(event)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _respond(self, event: h11.Request) -> None:
        path, _, query = event.target.partition(b"?")
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": event.http_version.decode(),
            "method": event.method.decode(),
            "scheme": "http",
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in event.headers],
        }
        begun = False

        async def receive() -> ASGIMessage:
            while not self._ended:
                part = await self._event()
                if isinstance(part, h11.Data):
                    return {"type": "http.request", "body": bytes(part.data), "more_body": True}
                if isinstance(part, h11.EndOfMessage):
                    self._ended = True
                    return {"type": "http.request", "body": b"", "more_body": False}
                raise Disconnected
            while not self._gone:
                await self._read(None)
            return {"type": "http.disconnect"}

        async def send(message: ASGIMessage) -> None:
            nonlocal begun
            if self._gone:
                raise Disconnected
            if message["type"] == "http.response.start":
                begun = True
                await self._write(self._http.send(h11.Response(status_code=message["status"], headers=list(message.get("headers", [])))))
            elif message["type"] == "http.response.body":
                if message.get("body"):
                    await self._write(self._http.send(h11.Data(data=message["body"])))
                if not message.get("more_body"):
                    await self._write(self._http.send(h11.EndOfMessage()))

        try:
            await self._app(scope, receive, send)
        except Disconnected:
            raise
        except Exception:
            log.exception("a request failed")
            if not begun:
                await send({"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"0")]})
                await send({"type": "http.response.body"})
            raise Disconnected from None
