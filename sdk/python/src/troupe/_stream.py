# SPDX-License-Identifier: Apache-2.0
"""Streams of events that continue by themselves after a lost connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass

import httpx

from ._errors import Refusal, RunCancelled, RunFailed, TroupeError, Unreachable
from ._flow import CONNECT_SECONDS, Patience, Reply, Send, backoff, is_transient, problem_of
from ._types import Answer, Event, Object, Usage

# Maximum size of one frame in bytes. The text of run_done has at most 1 MiB.
FRAME_BYTES_MAX = 16 << 20

# Maximum silence of a stream in seconds: the server sends a comment every 15 s.
SILENCE_SECONDS = 45.0


@dataclass(frozen=True)
class Frame:
    """One Server-Sent Event."""

    event: str
    data: str
    id: str = ""


class Parser:
    """Splits the bytes of a stream into frames, as the HTML standard defines."""

    def __init__(self) -> None:
        self._rest = b""
        self._event, self._data, self._id = "", list[str](), ""
        self._size = 0

    def feed(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        buffer = self._rest + data
        start = 0
        while True:
            at = -1
            for mark in (b"\n", b"\r"):
                found = buffer.find(mark, start)
                if found >= 0 and (at < 0 or found < at):
                    at = found
            if at < 0 or buffer[at : at + 1] == b"\r" and at + 1 == len(buffer):  # a line feed may follow
                break
            self._line(buffer[start:at].decode("utf-8", "replace"), frames)
            start = at + (2 if buffer[at : at + 2] == b"\r\n" else 1)
        self._rest = buffer[start:]
        self._check(len(self._rest))
        return frames

    def _check(self, more: int) -> None:
        if self._size + more > FRAME_BYTES_MAX:
            raise Refusal("not_an_answer", f"an event has more than {FRAME_BYTES_MAX} bytes")

    def _line(self, line: str, frames: list[Frame]) -> None:
        if not line:
            if self._data:
                frames.append(Frame(self._event, "\n".join(self._data), self._id))
            self._event, self._data, self._size = "", [], 0
            return
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
            self._size += len(value)
            self._check(0)
        elif name == "id" and "\0" not in value:
            self._id = value


class AnswerText:
    """The answer of a run as received so far."""

    def __init__(self) -> None:
        self._pieces: list[tuple[object, int, str]] = []
        self._done: str | None = None

    def apply(self, e: Event) -> None:
        at = (e.payload.get("step"), e.payload.get("index"))
        if e.type == "agent_invoke_started" or e.type == "llm_call_started" and "request_id" not in e.payload:
            self._pieces = []
        elif e.type == "agent_stream_delta":
            self._pieces.append((at, e.seq, e.text))
        elif e.type == "attempt" and e.payload.get("discards_after"):
            last = int(e.payload["discards_after"])
            self._pieces = [p for p in self._pieces if p[0] != at or p[1] <= last]
        elif e.type == "run_done":
            self._done = e.text

    @property
    def text(self) -> str:
        return self._done if self._done is not None else "".join(p[2] for p in self._pieces)


class Follower:
    """The state of a stream over its connections. It performs no I/O."""

    def __init__(self, first: Send | None, run_id: str = "", after: str = "", tree: bool = False, patience: Patience = Patience()) -> None:
        self._first, self._tree, self._patience = first, tree, patience
        self.run_id, self.cursor = run_id, after
        self.ended = False
        self.answer_text = AnswerText()
        self.last: Event | None = None
        self.session_id = self.agent_id = ""
        self._parser = Parser()
        self._attempt = 0
        self._failing_since = -1.0
        self._wait = 0.0

    def connect(self) -> Send:
        """Returns the request for the events that follow."""
        self._parser = Parser()
        self._wait = 0.0
        if self._first is not None and not self.run_id:
            return self._first
        headers = {"accept": "text/event-stream"}
        if self.cursor:
            headers["last-event-id"] = self.cursor
        return Send("GET", f"/v1/runs/{self.run_id}/events", None, headers, {"tree": "1"} if self._tree else {}, SILENCE_SECONDS)

    def opened(self, headers: Mapping[str, str]) -> None:
        self.run_id = headers.get("x-run-id", "") or self.run_id

    def feed(self, data: bytes) -> list[Event]:
        """Returns the events of the next bytes."""
        events: list[Event] = []
        for frame in self._parser.feed(data):
            if frame.event == "stream_closed":
                self._closed(frame.data)
                continue
            try:
                e = Event.of(json.loads(frame.data), frame.id)
            except (ValueError, AttributeError):
                raise Refusal("not_an_answer", f"an event is {frame.data[:80]!r}") from None
            self._attempt, self._failing_since = 0, -1.0
            self.cursor = frame.id or self.cursor
            self.run_id = self.run_id or e.run_id
            if e.run_id == self.run_id:
                self.last = e
                self.answer_text.apply(e)
                actor = str(e.payload.get("actor") or "")
                if "/" in actor and e.type in ("user_input", "run_started"):
                    self.agent_id, _, self.session_id = actor.partition("/")
                self.ended = self.ended or e.ends
            events.append(e)
        return events

    def _closed(self, data: str) -> None:
        try:
            reason = json.loads(data)
        except ValueError:
            reason = {}
        text = str(reason.get("reason") or reason.get("code") or data) if isinstance(reason, dict) else data
        if text == "revoked":
            raise Refusal("unauthorized", "the key of the stream was revoked", status=401)
        self._wait = 0.5  # draining, slow_reader, broken: the next connection continues

    def failed(self, error: Exception | None) -> float:
        """Returns the delay before the next connection, after one that ended early."""
        now = time.monotonic()
        self._failing_since = now if self._failing_since < 0 else self._failing_since
        if now - self._failing_since > self._patience.outage:
            raise Unreachable("server_unreachable", f"events of run {self.run_id or '(new)'}: {error or 'the stream ends early'}") from error
        self._attempt += 1
        return max(backoff(self._attempt), self._wait)

    def refused(self, reply: Reply) -> float:
        """Returns the delay before the next connection, after a refusal."""
        r = problem_of(reply)
        if r.code == "agent_busy" or is_transient(r):
            return max(self.failed(r), min(r.retry_after, 5.0))
        raise r

    def outcome(self) -> Answer:
        """Returns the answer after the last event."""
        e = self.last
        if e is None or not e.ends:
            raise TroupeError("run_open", f"run {self.run_id} has not ended", run_id=self.run_id)
        return answer_of(e, self.agent_id, self.session_id)


def answer_of(e: Event, agent_id: str = "", session_id: str = "") -> Answer:
    """Returns the answer in the last event of a run, or raises RunFailed."""
    if e.type == "run_done":
        status = str(e.payload.get("status") or "succeeded")
        warnings = tuple(str(w) for w in e.payload.get("warnings") or ())
        return Answer(e.text, e.run_id, agent_id, session_id, status, warnings, Usage.of(e.payload.get("usage")))
    raise failure_of(e.payload.get("error"), e.run_id, cancelled=e.type == "run_cancelled")


def failure_of(error: Object | None, run_id: str, cancelled: bool = False) -> RunFailed:
    """Returns the exception for the error of a run."""
    error = error or {}
    kind = RunCancelled if cancelled else RunFailed
    return kind(
        str(error.get("code") or ("cancelled" if cancelled else "call_rejected")),
        str(error.get("detail") or error.get("message") or ("the run was cancelled" if cancelled else "the run failed")),
        run_id=run_id,
        field=str(error.get("field") or ""),
        scope=str(error.get("scope") or ""),
        chain=tuple(str(c) for c in error.get("call_chain") or ()),
        retry_after=float(error.get("retry_after_ms") or 0) / 1000,
    )


def _timeout() -> httpx.Timeout:
    return httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)


class _Handle:
    """What a stream knows besides its events."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    @property
    def run_id(self) -> str:
        """ID of the run; empty before the first event."""
        return self._follower.run_id

    @property
    def session_id(self) -> str:
        """Session of the run; empty before its first events."""
        return self._follower.session_id

    @property
    def cursor(self) -> str:
        """ID of the last event, to continue in another process."""
        return self._follower.cursor

    @property
    def text(self) -> str:
        """The answer as received so far. A retry may have replaced pieces of it."""
        return self._follower.answer_text.text


def _read(connect: Callable[[], httpx.Client], f: Follower) -> Iterator[Event]:
    """Reads the events of a follower.

    The connection is not one of the client's pool: an abandoned generator is closed by the garbage
    collector, in a thread that may hold the lock of that pool.
    """
    with connect() as http:
        while not f.ended:
            send = f.connect()
            try:
                with http.stream(
                    send.method, send.path, content=send.body, headers=send.headers, params=send.params or None, timeout=_timeout()
                ) as r:
                    if r.status_code == 204:
                        return
                    if r.status_code >= 400:
                        delay = f.refused(Reply(r.status_code, r.headers, r.read()))
                    else:
                        f.opened(r.headers)
                        for data in r.iter_raw():
                            yield from f.feed(data)
                            if f.ended:
                                return
                        delay = f.failed(None)
            except httpx.TransportError as lost:
                delay = f.failed(lost)
            time.sleep(delay)


async def _read_async(http: httpx.AsyncClient, f: Follower) -> AsyncIterator[Event]:
    while not f.ended:
        send = f.connect()
        try:
            async with http.stream(
                send.method, send.path, content=send.body, headers=send.headers, params=send.params or None, timeout=_timeout()
            ) as r:
                if r.status_code == 204:
                    return
                if r.status_code >= 400:
                    delay = f.refused(Reply(r.status_code, r.headers, await r.aread()))
                else:
                    f.opened(r.headers)
                    async for data in r.aiter_raw():
                        for e in f.feed(data):
                            yield e
                        if f.ended:
                            return
                    delay = f.failed(None)
        except httpx.TransportError as lost:
            delay = f.failed(lost)
        await asyncio.sleep(delay)


class Stream(_Handle):
    """The events of a run, each once and in order, over restarts of the server."""

    def __init__(self, connect: Callable[[], httpx.Client], follower: Follower) -> None:
        super().__init__(follower)
        self._events = _read(connect, follower)

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def answer(self) -> Answer:
        """Reads to the end and returns the answer, or raises RunFailed."""
        for _ in self:
            pass
        return self._follower.outcome()

    def close(self) -> None:
        """Ends the stream. The run continues."""
        close = getattr(self._events, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(_Handle):
    """The events of a run, each once and in order, over restarts of the server."""

    def __init__(self, http: httpx.AsyncClient, follower: Follower) -> None:
        super().__init__(follower)
        self._events = _read_async(http, follower)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def __anext__(self) -> Event:
        return await self._events.__anext__()

    async def answer(self) -> Answer:
        """Reads to the end and returns the answer, or raises RunFailed."""
        async for _ in self:
            pass
        return self._follower.outcome()

    async def aclose(self) -> None:
        """Ends the stream. The run continues."""
        close = getattr(self._events, "aclose", None)
        if close is not None:
            await close()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
