# SPDX-License-Identifier: Apache-2.0
"""The client for coroutines. It has the methods of the client that blocks."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import httpx

from ._client import default_headers, limits, server_url, tls, trusts_environment
from ._flow import Flow, Patience, drive_async
from ._ops import Ops, new_key
from ._stream import AsyncStream, Follower
from ._types import AgentInfo, Answer, Approval, Context, Message, Object, Run, Session, Tool, ToolCall

T = TypeVar("T")


class AsyncClient:
    """A client for coroutines of one event loop.

    url defaults to TROUPE_SERVER, then http://127.0.0.1:8283; key to TROUPE_KEY. user is the user
    that a key with act_as_user acts for. patience is the time in seconds that the server may be
    unreachable, as during a restart, before a method raises Unreachable.
    """

    def __init__(self, url: str | None = None, *, key: str | None = None, user: str | None = None, patience: float = 60.0) -> None:
        self.url = server_url(url)
        self._ops = Ops(Patience(outage=patience))
        self._http = httpx.AsyncClient(
            base_url=self.url, headers=default_headers(key, user), limits=limits(), verify=tls(), trust_env=trusts_environment(self.url)
        )
        self.agents = AsyncAgents(self)
        self.approvals = AsyncApprovals(self)
        self.contexts = AsyncContexts(self)
        self.runs = AsyncRuns(self)
        self.sessions = AsyncSessions(self)
        self.tools = AsyncTools(self)

    async def _do(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._http)

    async def _pages(self, path: str, name: str, of: Any, **params: Any) -> AsyncIterator[Any]:
        cursor: str | None = None
        while True:
            items, cursor = await self._do(self._ops.page(path, name, of, cursor, params))
            for item in items:
                yield item
            if cursor is None:
                return

    async def call(
        self,
        agent: str,
        content: str,
        *,
        session: str | None = None,
        timeout: float | None = None,
        run_timeout: float | None = None,
        if_busy: str | None = None,
        priority: str | None = None,
        key: str | None = None,
    ) -> Answer:
        """Sends a message to an agent and returns its answer.

        It waits also while a person decides about a tool call. timeout is the time in seconds to
        wait for the answer; then RunOpen is raised and the run continues. run_timeout is the time
        of the run itself. key is an idempotency key of your own; the default is a fresh one.
        """
        path, body = self._ops.message(agent, content, session, run_timeout, if_busy, priority)
        return await self._do(self._ops.call(path, body, key or new_key(), timeout))

    async def start(
        self,
        agent: str,
        content: str,
        *,
        session: str | None = None,
        run_timeout: float | None = None,
        if_busy: str | None = None,
        priority: str | None = None,
        key: str | None = None,
    ) -> str:
        """Sends a message and returns the ID of its run, which continues."""
        path, body = self._ops.message(agent, content, session, run_timeout, if_busy, priority)
        return await self._do(self._ops.start(path, body, key or new_key()))

    def stream(
        self,
        agent: str,
        content: str,
        *,
        session: str | None = None,
        run_timeout: float | None = None,
        if_busy: str | None = None,
        priority: str | None = None,
        key: str | None = None,
    ) -> AsyncStream:
        """Sends a message and returns the events of its run as they happen."""
        path, body = self._ops.message(agent, content, session, run_timeout, if_busy, priority)
        return AsyncStream(self._http, self._ops.follow(path, body, key or new_key()))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _AsyncPart:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._ops = client._ops

    async def _do(self, flow: Flow[T]) -> T:
        return await self._client._do(flow)


class AsyncRuns(_AsyncPart):
    """Runs of the user."""

    def list(self, **filters: str | int) -> AsyncIterator[Run]:
        """Returns runs, newest first. Filters are those of GET /v1/runs, such as status."""
        return self._client._pages("/v1/runs", "runs", Run.of, **filters)

    async def get(self, run_id: str) -> Run:
        """Returns the state of a run."""
        return await self._do(self._ops.run(run_id))

    async def tree(self, run_id: str) -> builtins.list[Run]:
        """Returns a run and the runs below it, in the order of the calls."""
        return await self._do(self._ops.tree(run_id))

    async def wait(self, run_id: str, timeout: float | None = None) -> Answer:
        """Waits for the answer of a run. It raises RunFailed, or RunOpen after the time."""
        return await self._do(self._ops.wait_run(run_id, timeout))

    async def cancel(self, run_id: str) -> str:
        """Cancels a run and the calls it waits for. Returns its status."""
        return await self._do(self._ops.cancel(run_id))

    async def retry(self, run_id: str) -> str:
        """Replays a parked run again, after its agent was corrected, and returns its status.

        It raises a Refusal with the code call_rejected if the run still diverges, and names where.
        """
        return await self._do(self._ops.retry(run_id))

    async def signal(self, run_id: str, name: str, payload: Any = None, *, key: str | None = None) -> None:
        """Answers a run that waits for a signal."""
        await self._do(self._ops.signal(run_id, name, payload, key or new_key()))

    def events(self, run_id: str, *, after: str = "", tree: bool = False) -> AsyncStream:
        """Returns the events of a run behind a cursor: those that exist, then those to come."""
        return AsyncStream(self._client._http, Follower(None, run_id, after, tree, self._ops.patience))


class AsyncSessions(_AsyncPart):
    """Sessions of the user."""

    def list(self) -> AsyncIterator[Session]:
        """Returns all sessions."""
        return self._client._pages("/v1/sessions", "sessions", Session.of)

    async def get(self, session_id: str) -> Session:
        """Returns one session."""
        return await self._do(self._ops.session(session_id))

    async def create(self, session_id: str | None = None, *, title: str | None = None, metadata: Object | None = None) -> Session:
        """Creates or describes a session. It is not needed before a message."""
        return await self._do(self._ops.create_session(session_id, title, metadata, new_key()))

    async def delete(self, session_id: str, *, cancel: bool = False) -> None:
        """Deletes a session with its messages, runs, events and contexts. cancel ends its open runs."""
        await self._do(self._ops.delete_session(session_id, cancel))

    async def messages(self, session_id: str, *, agent: str | None = None, limit: int = 50, before: str | None = None) -> builtins.list[Message]:
        """Returns the latest messages, or those before a message_id, oldest first."""
        return (await self._do(self._ops.messages(session_id, agent, limit, before)))[0]

    async def history(self, session_id: str, *, agent: str | None = None) -> AsyncIterator[Message]:
        """Returns all messages, newest first."""
        before: str | None = None
        while True:
            page, before = await self._do(self._ops.messages(session_id, agent, 200, before))
            for message in reversed(page):
                yield message
            if before is None:
                return

    async def append(self, session_id: str, role: str, content: str, *, agent: str | None = None, key: str | None = None) -> str:
        """Appends a message and runs nothing; needs the scope operator. Returns its message_id."""
        return await self._do(self._ops.append(session_id, role, content, agent, key or new_key()))


class AsyncApprovals(_AsyncPart):
    """Tool calls that wait for a person."""

    def list(self) -> AsyncIterator[Approval]:
        """Returns those that wait, the oldest first."""
        return self._client._pages("/v1/approvals", "approvals", Approval.of)

    async def get(self, approval_id: str) -> Approval:
        """Returns one, also after the decision."""
        return await self._do(self._ops.approval(approval_id))

    async def approve(
        self, approval_id: str, reason: str | None = None, *, raise_tokens: int | None = None, raise_money: float | None = None
    ) -> Approval:
        """Approves a call, which the server performs, or a budget.

        A budget gets as many tokens and as much money, in units of the server's currency, as is given here; without both as much again.
        """
        return await self._do(self._ops.decide(approval_id, "approve", reason, new_key(), raise_tokens, raise_money))

    async def reject(self, approval_id: str, reason: str | None = None) -> Approval:
        """Rejects a call: it fails with the code approval_rejected."""
        return await self._do(self._ops.decide(approval_id, "reject", reason, new_key()))

    async def wait(self, approval_id: str, timeout: float | None = None) -> Approval:
        """Waits for the decision. Returns the approval, PENDING if the time ended first."""
        return await self._do(self._ops.wait_approval(approval_id, timeout))


class AsyncTools(_AsyncPart):
    """Declared tools and their calls."""

    def list(self) -> AsyncIterator[Tool]:
        """Returns all tools."""
        return self._client._pages("/v1/tools", "tools", Tool.of)

    async def get(self, name: str) -> Tool:
        """Returns one tool with its fields in raw."""
        return await self._do(self._ops.tool(name))

    async def declare(self, **fields: Any) -> Object:
        """Declares or replaces a tool, with the fields of a tool file; needs the scope operator."""
        return await self._do(self._ops.declare_tool(fields))

    async def delete(self, name: str) -> None:
        """Deletes a tool."""
        await self._do(self._ops.delete_tool(name))

    async def call(self, tool_call_id: str) -> ToolCall:
        """Returns the state of a tool call."""
        return await self._do(self._ops.tool_call(tool_call_id))

    async def wait(self, tool_call_id: str, timeout: float | None = None) -> ToolCall:
        """Waits for the end of a tool call. Returns its state, pending if the time ended first."""
        return await self._do(self._ops.wait_tool_call(tool_call_id, timeout))


class AsyncAgents(_AsyncPart):
    """Agents of the deployment."""

    def list(self) -> AsyncIterator[AgentInfo]:
        """Returns all agents."""
        return self._client._pages("/v1/agents", "agents", AgentInfo.of)

    async def get(self, agent_id: str) -> AgentInfo:
        """Returns one agent."""
        return await self._do(self._ops.agent(agent_id))

    async def create(self, name: str, **fields: Any) -> Object:
        """Creates or changes a declared agent, with the fields of an agent file."""
        return await self._do(self._ops.create_agent({"name": name, **fields}))

    async def register(self, agent_id: str, endpoint: str, **fields: Any) -> Object:
        """Registers an external agent. An agent of this package registers itself."""
        return await self._do(self._ops.register_agent({"agent_id": agent_id, "endpoint": endpoint, **fields}))

    async def delete(self, agent_id: str) -> None:
        """Deletes an agent."""
        await self._do(self._ops.delete_agent(agent_id))


class AsyncContexts(_AsyncPart):
    """JSON values with versions that are kept in a session."""

    async def create(self, session_id: str, data: Any, *, owner_type: str | None = None, owner_id: str | None = None) -> Context:
        """Stores a value in a session."""
        return await self._do(self._ops.create_context(data, session_id, owner_type, owner_id, new_key()))

    async def get(self, context_key: str, version: int | None = None) -> Context:
        """Returns the newest version, or the given one."""
        return await self._do(self._ops.context(context_key, version))

    async def put(self, context_key: str, data: Any, version: int | None = None) -> Context:
        """Stores the next version; with version only if that is the current one."""
        return await self._do(self._ops.put_context(context_key, data, version, new_key()))

    async def delete(self, context_key: str) -> None:
        """Deletes all versions."""
        await self._do(self._ops.delete_context(context_key))
