# SPDX-License-Identifier: Apache-2.0
"""A turn: one message that an agent works on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

import httpx

from ._errors import InvalidRequest, NotFound, Refusal, ToolFailed, TroupeError, TurnCancelled, TurnDiverged
from ._flow import ANSWER_SECONDS, Flow, Lost, Patience, Sleep, drive, drive_async, request, segment
from ._ops import POLL_MS, Ops, single
from ._types import Answer, Context, Json, Message, Outcome, SessionState, ToolCall

T = TypeVar("T")

# Bounds of the events of one answer, those of the server.
EVENTS_MAX = 5000
EVENT_BYTES_MAX = 4 << 20

# Pieces of an answer that are events of their own; later ones are joined up to a size, so that an
# answer of any number of pieces has at most EVENTS_MAX events.
SINGLE_PIECES_MAX = 1000
JOINED_BYTES = 2 << 10

# Time that a server may be away while a turn works, in seconds. The turn is cancelled before.
OUTAGE_SECONDS = 600.0


@dataclass(frozen=True)
class Invocation:
    """The request of the server for one turn."""

    agent_id: str
    session_id: str
    run_id: str
    content: str
    messages: tuple[Message, ...] = ()
    user_id: str = ""
    project_id: str = ""
    token: str = ""
    traceparent: str = ""
    tracestate: str = ""
    outcome: Outcome | None = None

    @classmethod
    def of(cls, body: bytes, headers: Mapping[str, str]) -> Invocation:
        try:
            o = json.loads(body)
            content = o["input_message"]["content"]
            provenance = o["input_message"].get("provenance")
            messages = tuple(Message.of(m) for m in o.get("messages") or ())
            context = o.get("context") or {}
            run = str(o.get("run_id") or headers.get("x-run-id") or "")
            if not isinstance(content, str) or not run:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidRequest(
                "invalid_request", "want a JSON object with run_id and input_message.content", status=400, field="input_message"
            ) from None
        return cls(
            str(o.get("agent_id") or ""),
            str(o.get("session_id") or headers.get("x-session-id") or ""),
            run,
            content,
            messages,
            str(context.get("user_id") or ""),
            str(context.get("project_id") or ""),
            headers.get("x-run-token", ""),
            headers.get("traceparent", ""),
            headers.get("tracestate", ""),
            Outcome.of(str(provenance["correlationId"]), json.loads(content)) if provenance else None,
        )


def frame_of(event: str, data: Mapping[str, Any]) -> bytes:
    """Returns an event as bytes."""
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def version_of(noted: Json) -> int:
    """Returns the version in the answer to a note, 0 if there is no entry any more."""
    return int(noted.get("version", 0)) if isinstance(noted, dict) else 0


def correlation_of(pending: Json) -> str:
    """Returns the correlation in the immediate answer to an agent_call."""
    return str(pending["correlationId"]) if isinstance(pending, dict) else ""


class Execution:
    """The execution of one turn.

    It belongs to the run and not to a connection: if the server is killed, the turn goes on, and
    the next invocation of the same run gets its events from the first one on.
    """

    def __init__(self, invocation: Invocation, digest: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self.invocation, self.digest = invocation, digest
        self.attached = 0  # open connections of the server
        self.finished = False
        self.cancelled = threading.Event()
        self.on_cancel: Callable[[], None] = lambda: None
        self.size = 0
        self.lost_at = -1e9  # time of the last request without an answer
        self._loop = loop
        self._lock = threading.Lock()
        self._frames: list[bytes] = []
        self._pieces = 0
        self._joined, self._joined_size = list[str](), 0
        self._readers: set[asyncio.Event] = set()

    def emit(self, event: str, data: Mapping[str, Any]) -> None:
        """Adds an event of the answer; from any thread."""
        try:
            frame = frame_of(event, data)
        except (TypeError, ValueError) as e:
            raise InvalidRequest("invalid_request", f"the data of the event {event} is no JSON: {e}") from None
        with self._lock:
            if self.finished:
                return
            self._flush()
            if event == "state":
                self._check(frame)
            self._append(frame)
            self.finished = event in ("done", "error")
        self.wake()

    def piece(self, text: str) -> None:
        """Adds a piece of the answer; from any thread."""
        with self._lock:
            if self.finished:
                return
            self._pieces += 1
            self._joined.append(text)
            self._joined_size += len(text)
            if self._pieces > SINGLE_PIECES_MAX and self._joined_size < JOINED_BYTES:
                return
            self._flush()
        self.wake()

    def _flush(self) -> None:
        if self._joined:
            frame = frame_of("delta", {"text": "".join(self._joined), "run_id": self.invocation.run_id})
            self._joined, self._joined_size = [], 0
            self._check(frame)
            self._append(frame)

    def _check(self, frame: bytes) -> None:
        if len(self._frames) >= EVENTS_MAX or self.size + len(frame) > EVENT_BYTES_MAX:
            raise TroupeError("events_exceeded", f"the answer has more than {EVENTS_MAX} events or {EVENT_BYTES_MAX} bytes")

    def _append(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.size += len(frame)

    def wake(self) -> None:
        """Lets the connections read on; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop is closed: the agent stops
            pass

    def _wake(self) -> None:
        for reader in self._readers:
            reader.set()

    async def read(self, send: Callable[[bytes, bool], Any]) -> None:
        """Sends all events, from the first one on, until the last or the cancellation."""
        news = asyncio.Event()
        self._readers.add(news)
        try:
            at = 0
            while True:
                news.clear()
                with self._lock:
                    frames, finished = self._frames[at:], self.finished
                at += len(frames)
                if frames or finished:
                    await send(b"".join(frames), not finished)
                if finished or self.cancelled.is_set():
                    return
                await news.wait()
        finally:
            self._readers.discard(news)

    def cancel(self) -> None:
        """Ends the turn, because the run has ended."""
        if not self.finished and not self.cancelled.is_set():
            self.cancelled.set()
            self.on_cancel()
            self._wake()


class _Base:
    """What both kinds of turns share. Its flows perform no I/O."""

    def __init__(self, execution: Execution, server: httpx.URL) -> None:
        self._x = execution
        self._server = server
        self._ops = Ops(Patience(outage=OUTAGE_SECONDS, busy=60.0))
        self._count = 0
        self._lock = threading.Lock()
        self._usage: dict[str, int] = {}

    @property
    def message(self) -> str:
        """The message to answer."""
        return self._x.invocation.content

    @property
    def messages(self) -> list[Message]:
        """The earlier messages of the conversation, oldest first."""
        return list(self._x.invocation.messages)

    @property
    def agent_id(self) -> str:
        return self._x.invocation.agent_id

    @property
    def run_id(self) -> str:
        return self._x.invocation.run_id

    @property
    def session_id(self) -> str:
        return self._x.invocation.session_id

    @property
    def user_id(self) -> str:
        return self._x.invocation.user_id

    @property
    def project_id(self) -> str:
        return self._x.invocation.project_id

    @property
    def traceparent(self) -> str:
        """W3C trace context of the run, for your own requests. Requests of the turn have it."""
        return self._x.invocation.traceparent

    @property
    def openai(self) -> dict[str, Any]:
        """Arguments of a client of the package openai, which then uses the models of the server.

            client = OpenAI(**turn.openai)  # or AsyncOpenAI, or ChatOpenAI of langchain-openai
            client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": turn.message}])

        The run records each request with its tokens, and neither prompt nor answer. The key is that of
        the run and ends with it, so make a client for each turn.
        """
        i = self._x.invocation
        if not i.token:
            raise InvalidRequest("invalid_request", "the request of the server had no header x-run-token: pass it on to /invoke unchanged")
        arguments: dict[str, Any] = {"base_url": str(self._server).rstrip("/") + "/v1", "api_key": i.token}
        trace = {name: value for name, value in (("traceparent", i.traceparent), ("tracestate", i.tracestate)) if i.traceparent and value}
        if trace:
            arguments["default_headers"] = trace
        return arguments

    @property
    def cancelled(self) -> bool:
        """Reports whether the run has ended, for long work between operations."""
        return self._x.cancelled.is_set()

    def delta(self, text: str) -> None:
        """Adds a piece of the answer, which clients see at once."""
        if text:
            self._x.piece(text)

    def state(self, state: str, detail: Json = None) -> None:
        """Shows a state to clients, such as "searching"."""
        self._x.emit("state", {"state": state} if detail is None else {"state": state, "detail": detail})

    def usage(self, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Adds tokens that the turn has used."""
        for name, n in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
            self._usage[name] = self._usage.get(name, 0) + n

    def _headers(self) -> dict[str, str]:
        i = self._x.invocation
        headers = {"x-run-token": i.token}
        if i.traceparent:
            headers["traceparent"] = i.traceparent
            if i.tracestate:
                headers["tracestate"] = i.tracestate
        return headers

    def _key(self, name: str | None) -> str:
        """Returns the key of the next operation.

        A repeated turn makes the same operations in the same order, so it draws the same keys and
        gets the same results.
        """
        if name is not None:
            if not (0 < len(name) <= 200 and name.isascii() and name.isprintable()):
                raise InvalidRequest("invalid_request", f"key {name[:40]!r}: want 1 to 200 printable characters of ASCII", field="key")
            return f"{self.run_id}.{name}"
        with self._lock:
            self._count += 1
            return f"{self.run_id}:{self._count}"

    def _operation(self, make: Callable[[], Flow[T]]) -> Flow[T]:
        """Performs an operation until it has an outcome or the run has ended."""
        while True:
            try:
                return (yield from self._watched(make()))
            except NotFound as e:
                if e.code != "run_not_found":
                    raise
                # The server restarts, or the run has ended. The connection tells which.
                if self._x.attached > 0 and time.monotonic() - self._x.lost_at > 15:
                    raise TurnCancelled(str(e)) from None
                yield Sleep(0.5)
            except Refusal as e:
                if e.status == 422:
                    raise TurnDiverged("turn_diverged", e.message, status=422, run_id=self.run_id) from e
                raise

    def _watched(self, flow: Flow[T]) -> Flow[T]:
        result: Any = None
        while True:
            if self._x.cancelled.is_set():
                raise TurnCancelled("the run has ended")
            try:
                effect = flow.send(result)
            except StopIteration as done:
                value: T = done.value
                return value
            result = yield effect
            if isinstance(result, Lost):
                self._x.lost_at = time.monotonic()

    def _call(self, agent: str, content: str, session: str | None, timeout: float | None, priority: str | None, key: str | None) -> Flow[Answer]:
        body: dict[str, Any] = {"message": content}
        if session is not None:
            body["session"] = session
        if timeout is not None:
            body["timeout_ms"] = max(1, round(timeout * 1000))
        if priority is not None:
            body["priority"] = priority
        named = self._key(key)

        def make() -> Flow[Answer]:
            flow = request(
                "POST", f"/v1/agents/{segment(agent)}:invoke", body=body, key=named, headers=self._headers(), timeout=ANSWER_SECONDS,
                patience=self._ops.patience,
            )
            return single(flow, Answer.of)

        return self._operation(make)

    def _tool(self, name: str, args: Mapping[str, Json] | None, key: str | None) -> Flow[Json]:
        body = {"args": dict(args or {}), "timeout_ms": POLL_MS}
        named = self._key(key)

        def make() -> Generator[Any, Any, Json]:
            flow = request(
                "POST", f"/v1/tools/{segment(name)}:invoke", body=body, key=named, headers=self._headers(), timeout=POLL_MS / 1000 + 30,
                patience=self._ops.patience,
            )
            call: ToolCall = yield from single(flow, ToolCall.of)
            if not call.ended:
                call = yield from self._ops.wait_tool_call(call.tool_call_id, None, self._headers())
            if call.status != "succeeded":
                if call.error_code == "cancelled":  # with its run, whose connection is about to close
                    yield Sleep(5.0)
                raise ToolFailed(call.error_code or "call_rejected", call.error_message or f"{name} failed", tool_call_id=call.tool_call_id)
            return call.result

        return self._operation(make)

    def _agent_call(
        self, agent: str, skill: str, input: Mapping[str, Json] | None, session: str | None, timeout: float | None, mode: str | None, key: str | None
    ) -> Flow[Json]:
        args: dict[str, Json] = {"agent": agent if session is None else f"{agent}/{session}", "skill": skill, "input": dict(input or {})}
        if timeout is not None:
            args["timeout"] = max(1, round(timeout * 1000))
        if mode is not None:
            args["mode"] = mode
        return self._tool("agent_call", args, key)

    def _remind(self, text: str, after: float | None, at: datetime | None, key: str | None) -> Flow[Json]:
        args: dict[str, Json] = {"text": text}
        if after is not None:
            args["after"] = max(1, round(after * 1000))
        if at is not None:
            args["at"] = at.astimezone(timezone.utc).isoformat()
        return self._tool("remind", args, key)

    def _note(self, kind: str, value: Json, name: str | None, key: str | None) -> Flow[Json]:
        return self._tool("note_session", {"kind": kind, "value": value, **({} if name is None else {"name": name})}, key)

    def _read_session(self, output: str | None, key: str | None) -> Flow[Json]:
        return self._tool("read_session", {} if output is None else {"output": output}, key)

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of an agent_call or a reminder that is the message of this turn, or None if it is another message."""
        return self._x.invocation.outcome

    def _create_context(self, data: Json, owner_type: str | None, owner_id: str | None, key: str | None) -> Flow[Context]:
        named = self._key(key)
        return self._operation(lambda: self._ops.create_context(data, None, owner_type, owner_id, named, self._headers()))

    def _get_context(self, context_key: str, version: int | None) -> Flow[Context]:
        return self._operation(lambda: self._ops.context(context_key, version, self._headers()))

    def _put_context(self, context_key: str, data: Json, version: int | None, key: str | None) -> Flow[Context]:
        named = self._key(key)
        return self._operation(lambda: self._ops.put_context(context_key, data, version, named, self._headers()))

    def _delete_context(self, context_key: str) -> Flow[None]:
        return self._operation(lambda: self._ops.delete_context(context_key, self._headers()))


class Turn(_Base):
    """A turn of a function that blocks. Its operations may be made by several threads, with `key`."""

    def __init__(self, execution: Execution, http: httpx.Client) -> None:
        super().__init__(execution, http.base_url)
        self._http = http
        self.tool = ToolUse(self)
        self.context = TurnContexts(self)

    def _do(self, flow: Flow[T]) -> T:
        return drive(flow, self._http, self._sleep)

    def _sleep(self, seconds: float) -> None:
        if self._x.cancelled.wait(seconds):
            raise TurnCancelled("the run has ended")

    def call(
        self,
        agent: str,
        content: str,
        *,
        session: str | None = None,
        timeout: float | None = None,
        priority: str | None = None,
        key: str | None = None,
    ) -> Answer:
        """Calls another agent on behalf of the run, with its chain, depth, time and budget.

        A refusal is raised. key names the operation if the order of operations may differ between
        two executions of the turn, as in threads.
        """
        return self._do(self._call(agent, content, session, timeout, priority, key))


    def agent_call(
        self,
        agent: str,
        skill: str,
        input: Mapping[str, Json] | None = None,
        *,
        session: str | None = None,
        timeout: float | None = None,
        mode: str | None = None,
        key: str | None = None,
    ) -> str:
        """Asks another agent for a skill without waiting, and returns the correlation of the call.

        The outcome is the message of a later turn of the same session: see outcome. timeout is in
        seconds, 60 if absent. mode is "execute" or "critique".
        """
        return correlation_of(self._do(self._agent_call(agent, skill, input, session, timeout, mode, key)))

    def remind(self, text: str, *, after: float | None = None, at: datetime | None = None, key: str | None = None) -> str:
        """Sends the agent a message after some seconds or at a time, and returns its correlation.

        It is the message of a later turn of the same session, over restarts: see outcome.reminder.
        """
        return correlation_of(self._do(self._remind(text, after, at, key)))

    def note(self, kind: str, value: Json, name: str | None = None, *, key: str | None = None) -> int:
        """Notes what the other agents of the session should know, and returns the version of the entry.

        kind is "decision", "finding", "data", "constraint", "assumption", or "state", that of the agent
        itself. An entry of the same kind and name is replaced. The value None removes it, and returns 0.
        """
        return version_of(self._do(self._note(kind, value, name, key)))

    def session_state(self, *, key: str | None = None) -> SessionState:
        """Returns what the agents of the session have noted, and the state of each.

        A repeated turn gets what the first one has read.
        """
        return SessionState.of(self._do(self._read_session(None, key)))

    def session_output(self, ref: str, *, key: str | None = None) -> Json:
        """Returns the result with a ref in prior_outputs, which was too long to be handed over."""
        return self._do(self._read_session(ref, key))


class ToolUse:
    """The tools that a turn uses."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def invoke(self, name: str, args: Mapping[str, Json] | None = None, *, key: str | None = None) -> Json:
        """Uses a declared tool and returns its result, or raises ToolFailed.

        If the call waits for a person, it returns after the decision, also over restarts of the
        server. The tool is performed once, even if the turn is executed again.
        """
        return self._turn._do(self._turn._tool(name, args, key))


class TurnContexts:
    """JSON values that the agent keeps in the session of its run."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def create(self, data: Json, *, owner_type: str | None = None, owner_id: str | None = None, key: str | None = None) -> Context:
        """Stores a value. Its context_key finds it again."""
        return self._turn._do(self._turn._create_context(data, owner_type, owner_id, key))

    def get(self, context_key: str, version: int | None = None) -> Context:
        """Returns the newest version, or the given one."""
        return self._turn._do(self._turn._get_context(context_key, version))

    def put(self, context_key: str, data: Json, version: int | None = None, *, key: str | None = None) -> Context:
        """Stores the next version; with version only if that is the current one."""
        return self._turn._do(self._turn._put_context(context_key, data, version, key))

    def delete(self, context_key: str) -> None:
        """Deletes all versions."""
        self._turn._do(self._turn._delete_context(context_key))


class AsyncTurn(_Base):
    """A turn of a coroutine."""

    def __init__(self, execution: Execution, http: httpx.AsyncClient) -> None:
        super().__init__(execution, http.base_url)
        self._http = http
        self.tool = AsyncToolUse(self)
        self.context = AsyncTurnContexts(self)

    async def _do(self, flow: Flow[T]) -> T:
        try:
            return await drive_async(flow, self._http)
        except TurnCancelled as e:
            raise asyncio.CancelledError(str(e)) from None

    async def call(
        self,
        agent: str,
        content: str,
        *,
        session: str | None = None,
        timeout: float | None = None,
        priority: str | None = None,
        key: str | None = None,
    ) -> Answer:
        """Calls another agent on behalf of the run, with its chain, depth, time and budget.

        A refusal is raised. key names the operation if the order of operations may differ between
        two executions of the turn, as in tasks.
        """
        return await self._do(self._call(agent, content, session, timeout, priority, key))


    async def agent_call(
        self,
        agent: str,
        skill: str,
        input: Mapping[str, Json] | None = None,
        *,
        session: str | None = None,
        timeout: float | None = None,
        mode: str | None = None,
        key: str | None = None,
    ) -> str:
        """Asks another agent for a skill without waiting, and returns the correlation of the call.

        The outcome is the message of a later turn of the same session: see outcome. timeout is in
        seconds, 60 if absent. mode is "execute" or "critique".
        """
        return correlation_of(await self._do(self._agent_call(agent, skill, input, session, timeout, mode, key)))

    async def remind(self, text: str, *, after: float | None = None, at: datetime | None = None, key: str | None = None) -> str:
        """Sends the agent a message after some seconds or at a time, and returns its correlation.

        It is the message of a later turn of the same session, over restarts: see outcome.reminder.
        """
        return correlation_of(await self._do(self._remind(text, after, at, key)))

    async def note(self, kind: str, value: Json, name: str | None = None, *, key: str | None = None) -> int:
        """Notes what the other agents of the session should know, and returns the version of the entry.

        kind is "decision", "finding", "data", "constraint", "assumption", or "state", that of the agent
        itself. An entry of the same kind and name is replaced. The value None removes it, and returns 0.
        """
        return version_of(await self._do(self._note(kind, value, name, key)))

    async def session_state(self, *, key: str | None = None) -> SessionState:
        """Returns what the agents of the session have noted, and the state of each.

        A repeated turn gets what the first one has read.
        """
        return SessionState.of(await self._do(self._read_session(None, key)))

    async def session_output(self, ref: str, *, key: str | None = None) -> Json:
        """Returns the result with a ref in prior_outputs, which was too long to be handed over."""
        return await self._do(self._read_session(ref, key))


class AsyncToolUse:
    """The tools that a turn uses."""

    def __init__(self, turn: AsyncTurn) -> None:
        self._turn = turn

    async def invoke(self, name: str, args: Mapping[str, Json] | None = None, *, key: str | None = None) -> Json:
        """Uses a declared tool and returns its result, or raises ToolFailed.

        If the call waits for a person, it returns after the decision, also over restarts of the
        server. The tool is performed once, even if the turn is executed again.
        """
        return await self._turn._do(self._turn._tool(name, args, key))


class AsyncTurnContexts:
    """JSON values that the agent keeps in the session of its run."""

    def __init__(self, turn: AsyncTurn) -> None:
        self._turn = turn

    async def create(self, data: Json, *, owner_type: str | None = None, owner_id: str | None = None, key: str | None = None) -> Context:
        """Stores a value. Its context_key finds it again."""
        return await self._turn._do(self._turn._create_context(data, owner_type, owner_id, key))

    async def get(self, context_key: str, version: int | None = None) -> Context:
        """Returns the newest version, or the given one."""
        return await self._turn._do(self._turn._get_context(context_key, version))

    async def put(self, context_key: str, data: Json, version: int | None = None, *, key: str | None = None) -> Context:
        """Stores the next version; with version only if that is the current one."""
        return await self._turn._do(self._turn._put_context(context_key, data, version, key))

    async def delete(self, context_key: str) -> None:
        """Deletes all versions."""
        await self._turn._do(self._turn._delete_context(context_key))
