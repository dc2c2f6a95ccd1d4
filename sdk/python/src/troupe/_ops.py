# SPDX-License-Identifier: Apache-2.0
"""The requests of the HTTP API as flows, for both clients."""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._errors import NotFound, Refusal, RunOpen
from ._flow import ANSWER_SECONDS, Flow, Lost, Patience, Send, Sleep, backoff, request, segment
from ._stream import Follower, failure_of
from ._types import AgentInfo, Answer, Approval, Context, Event, Json, Message, Object, Run, Session, Tool, ToolCall, Usage

T = TypeVar("T")

# Time that one request waits for news, in milliseconds.
POLL_MS = 20_000


def new_key() -> str:
    """Returns a fresh idempotency key: a UUIDv7, whose time orders the session that it begins."""
    at = time.time_ns() // 1_000_000
    return str(uuid.UUID(int=(at << 80 | secrets.randbits(80)) & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62))


def single(flow: Flow[Any], convert: Callable[[Any], T]) -> Flow[T]:
    reply = yield from flow
    return convert(reply.json())


def nothing(flow: Flow[Any]) -> Flow[None]:
    yield from flow
    return None


def run_answer(r: Run) -> Answer:
    """Returns the answer of an ended run, or raises RunFailed."""
    error = r.raw.get("error")
    if r.status != "DONE" or error:
        raise failure_of(error, r.run_id, cancelled=r.status == "CANCELLED")
    warnings = tuple(str(w) for w in r.raw.get("warnings") or ())
    return Answer(r.text, r.run_id, r.agent_id, r.session_id, str(r.raw.get("outcome") or "succeeded"), warnings, r.usage, r.tree_usage)


class Ops:
    """Flows of one client."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience

    def _do(self, method: str, path: str, **more: Any) -> Flow[Any]:
        return request(method, path, patience=self.patience, **more)

    def _delete(self, path: str, **more: Any) -> Flow[None]:
        """Deletes something. After a lost answer its absence is a success."""
        flow = self._do("DELETE", path, key=new_key(), **more)
        lost, result = False, None
        while True:
            try:
                effect = flow.send(result)
            except StopIteration:
                return None
            except NotFound:
                if lost:
                    return None
                raise
            result = yield effect
            lost = lost or isinstance(effect, Send) and isinstance(result, Lost)

    # Messages.

    def message(
        self, agent: str, content: str, session: str | None, run_timeout: float | None, if_busy: str | None, priority: str | None
    ) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"content": content}
        if session is not None:
            body["session_id"] = session
        if run_timeout is not None:
            body["timeout_ms"] = max(1, round(run_timeout * 1000))
        if if_busy is not None:
            body["if_busy"] = if_busy
        if priority is not None:
            body["priority"] = priority
        return f"/v1/agents/{segment(agent)}/messages", body

    def call(self, path: str, body: Object, key: str, timeout: float | None) -> Flow[Answer]:
        if timeout is not None:
            deadline = time.monotonic() + timeout
            try:
                started = yield from self.start(path, body, key)
            except Refusal as refused:
                if refused.status != 406:  # an agent with durability none has no run to follow
                    raise
            else:
                return (yield from self.wait_run(started, max(0.0, deadline - time.monotonic())))
        reply = yield from self._do("POST", path, body=body, key=key, timeout=ANSWER_SECONDS)
        answer = reply.json()
        if reply.status == 202:
            return (yield from self.wait_run(str(answer["run_id"]), None))
        return Answer.of(answer)

    def start(self, path: str, body: Object, key: str) -> Flow[str]:
        reply = yield from self._do("POST", path, body=body, key=key, headers={"prefer": "respond-async"}, timeout=ANSWER_SECONDS)
        return str(reply.json()["run_id"])

    def follow(self, path: str, body: Object, key: str) -> Follower:
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        headers = {"accept": "text/event-stream", "content-type": "application/json", "idempotency-key": key}
        return Follower(Send("POST", path, content, headers), patience=self.patience)

    # Runs.

    def run(self, run_id: str) -> Flow[Run]:
        return single(self._do("GET", f"/v1/runs/{segment(run_id)}"), Run.of)

    def tree(self, run_id: str) -> Flow[list[Run]]:
        flow = self._do("GET", f"/v1/runs/{segment(run_id)}", params={"tree": 1})
        return single(flow, lambda o: [Run.of(r) for r in o["runs"]])

    def cancel(self, run_id: str) -> Flow[str]:
        return single(self._do("POST", f"/v1/runs/{segment(run_id)}:cancel"), lambda o: str(o["status"]))

    def retry(self, run_id: str) -> Flow[str]:
        return single(self._do("POST", f"/v1/runs/{segment(run_id)}:retry"), lambda o: str(o["status"]))

    def signal(self, run_id: str, name: str, payload: Any, key: str) -> Flow[None]:
        body = {"name": name} if payload is None else {"name": name, "payload": payload}
        return nothing(self._do("POST", f"/v1/runs/{segment(run_id)}:signal", body=body, key=key))

    def events_page(self, run_id: str, after: int, wait_ms: int) -> Flow[tuple[list[Event], int, bool]]:
        """Returns events after a number, waiting for the first one, and whether the run has ended."""
        flow = self._do(
            "GET", f"/v1/runs/{segment(run_id)}/events", params={"after": after, "wait_ms": wait_ms, "limit": 1000}, timeout=wait_ms / 1000 + 30
        )
        return single(flow, lambda o: ([Event.of(e) for e in o["events"]], int(o.get("next_after") or after), bool(o.get("ended"))))

    def wait_run(self, run_id: str, timeout: float | None) -> Flow[Answer]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            run = yield from self.run(run_id)
            if run.ended:
                return run_answer(run)
            left = remaining(deadline)
            if left <= 0:
                raise RunOpen("run_open", f"run {run_id} of {run.agent_id} is {run.status}", run_id=run_id)
            after = int(run.raw.get("last_seq") or 0)
            while left > 0:
                events, after, ended = yield from self.events_page(run_id, after, min(POLL_MS, round(left * 1000)))
                if ended or any(e.ends for e in events):
                    break
                left = remaining(deadline)

    # Approvals and tool calls.

    def approval(self, approval_id: str) -> Flow[Approval]:
        return single(self._do("GET", f"/v1/approvals/{segment(approval_id)}"), Approval.of)

    def decide(
        self, approval_id: str, decision: str, reason: str | None, key: str, raise_tokens: int | None = None, raise_money: float | None = None
    ) -> Flow[Approval]:
        body: dict[str, Json] = {"decision": decision} if reason is None else {"decision": decision, "reason": reason}
        raised: dict[str, Json] = {name: n for name, n in (("tokens", raise_tokens), ("money", raise_money)) if n is not None}
        if raised:
            body["raise"] = raised
        return single(self._do("POST", f"/v1/approvals/{segment(approval_id)}:decide", body=body, key=key), Approval.of)

    def wait_approval(self, approval_id: str, timeout: float | None) -> Flow[Approval]:
        deadline = None if timeout is None else time.monotonic() + timeout
        after = -1
        while True:
            approval = yield from self.approval(approval_id)
            left = remaining(deadline)
            if approval.status != "PENDING" or left <= 0:
                return approval
            if after < 0:  # the decision may come now: the approval is read again behind this event
                after = int((yield from self.run(approval.run_id)).raw.get("last_seq") or 0)
                continue
            while left > 0:
                events, after, ended = yield from self.events_page(approval.run_id, after, min(POLL_MS, round(left * 1000)))
                decided = ("approval_decision", "approval_expired")
                if ended or any(e.type in decided and e.payload.get("approval_id") == approval_id for e in events):
                    break
                left = remaining(deadline)
            yield Sleep(backoff(0))

    def tool_call(self, tool_call_id: str) -> Flow[ToolCall]:
        return single(self._do("GET", f"/v1/tool_calls/{segment(tool_call_id)}"), ToolCall.of)

    def wait_tool_call(self, tool_call_id: str, timeout: float | None, headers: Mapping[str, str] | None = None) -> Flow[ToolCall]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = remaining(deadline)
            wait = max(0, min(POLL_MS, round(left * 1000)))
            began = time.monotonic()
            flow = self._do(
                "POST", f"/v1/tool_calls/{segment(tool_call_id)}:wait", params={"timeout_ms": wait}, headers=headers, timeout=wait / 1000 + 30
            )
            call = yield from single(flow, ToolCall.of)
            if call.ended or left <= 0:
                return call
            if time.monotonic() - began < wait / 2000:  # a server that stops answers at once
                yield Sleep(backoff(3))

    # Sessions and contexts.

    def session(self, session_id: str) -> Flow[Session]:
        return single(self._do("GET", f"/v1/sessions/{segment(session_id)}"), Session.of)

    def create_session(self, session_id: str | None, title: str | None, metadata: Object | None, key: str) -> Flow[Session]:
        body = {k: v for k, v in (("session_id", session_id), ("title", title), ("metadata", metadata)) if v is not None}
        return single(self._do("POST", "/v1/sessions", body=body, key=key), Session.of)

    def delete_session(self, session_id: str, cancel: bool) -> Flow[None]:
        return self._delete(f"/v1/sessions/{segment(session_id)}", params={"cancel": 1} if cancel else None)

    def messages(self, session_id: str, agent: str | None, limit: int, before: str | None) -> Flow[tuple[list[Message], str | None]]:
        """Returns a page of messages, oldest first, and the cursor of the page before it."""
        flow = self._do("GET", f"/v1/sessions/{segment(session_id)}/messages", params={"agent": agent, "limit": limit, "before": before})
        return single(flow, lambda o: ([Message.of(m) for m in o["messages"]], o.get("next_before")))

    def append(self, session_id: str, role: str, content: str, agent: str | None, key: str) -> Flow[str]:
        body = {"role": role, "content": content} if agent is None else {"role": role, "content": content, "agent_id": agent}
        flow = self._do("POST", f"/v1/sessions/{segment(session_id)}/messages", body=body, key=key)
        return single(flow, lambda o: str(o["message_id"]))

    def create_context(
        self, data: Any, session_id: str | None, owner_type: str | None, owner_id: str | None, key: str, headers: Mapping[str, str] | None = None
    ) -> Flow[Context]:
        body: dict[str, Any] = {"data": data}
        body.update({k: v for k, v in (("session_id", session_id), ("owner_type", owner_type), ("owner_id", owner_id)) if v is not None})
        return single(self._do("POST", "/v1/context", body=body, key=key, headers=headers), lambda o: Context.of(o, data))

    def context(self, context_key: str, version: int | None, headers: Mapping[str, str] | None = None) -> Flow[Context]:
        return single(self._do("GET", f"/v1/context/{segment(context_key)}", params={"version": version}, headers=headers), Context.of)

    def put_context(self, context_key: str, data: Any, version: int | None, key: str, headers: Mapping[str, str] | None = None) -> Flow[Context]:
        body = {"data": data} if version is None else {"data": data, "version": version}
        flow = self._do("PUT", f"/v1/context/{segment(context_key)}", body=body, key=key, headers=headers)
        return single(flow, lambda o: Context.of({"context_key": context_key, **o}, data))

    def delete_context(self, context_key: str, headers: Mapping[str, str] | None = None) -> Flow[None]:
        return self._delete(f"/v1/context/{segment(context_key)}", headers=headers)

    # Agents and tools.

    def agent(self, agent_id: str) -> Flow[AgentInfo]:
        return single(self._do("GET", f"/v1/agents/{segment(agent_id)}"), AgentInfo.of)

    def create_agent(self, fields: Object) -> Flow[Object]:
        return single(self._do("POST", "/v1/agents", body=dict(fields)), lambda o: dict(o))

    def register_agent(self, fields: Object) -> Flow[Object]:
        return single(self._do("POST", "/v1/agents/register", body=dict(fields)), lambda o: dict(o))

    def heartbeat(self, agent_id: str) -> Flow[None]:
        return nothing(self._do("POST", f"/v1/agents/{segment(agent_id)}:heartbeat"))

    def delete_agent(self, agent_id: str) -> Flow[None]:
        return self._delete(f"/v1/agents/{segment(agent_id)}")

    def tool(self, name: str) -> Flow[Tool]:
        return single(self._do("GET", f"/v1/tools/{segment(name)}"), Tool.of)

    def declare_tool(self, fields: Object) -> Flow[Object]:
        return single(self._do("POST", "/v1/tools", body=dict(fields)), lambda o: dict(o))

    def delete_tool(self, name: str) -> Flow[None]:
        return self._delete(f"/v1/tools/{segment(name)}")

    def page(self, path: str, name: str, of: Callable[[Object], T], cursor: str | None, params: Object) -> Flow[tuple[list[T], str | None]]:
        flow = self._do("GET", path, params={**params, "cursor": cursor})
        return single(flow, lambda o: ([of(x) for x in o[name]], o.get("next_cursor")))


def remaining(deadline: float | None) -> float:
    """Returns the seconds until a deadline; a day if there is none."""
    return 86400.0 if deadline is None else deadline - time.monotonic()

