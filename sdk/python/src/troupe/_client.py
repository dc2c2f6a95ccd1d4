# SPDX-License-Identifier: Apache-2.0
"""Clients of a server, blocking and asynchronous.

A method never needs a retry by its caller: a request that was lost is sent again with the same
idempotency key, and a stream continues behind its last event, also after the server was killed.
"""

from __future__ import annotations

import builtins
import os
import ssl
from collections.abc import Iterator
from typing import Any, TypeVar

import httpx

from ._errors import TroupeError
from ._flow import Flow, Patience, drive
from ._ops import Ops, new_key
from ._stream import Follower, Stream
from ._types import AgentInfo, Answer, Approval, Context, Message, Object, Run, Session, Tool, ToolCall

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8283"


def server_url(url: str | None) -> str:
    return (url or os.environ.get("TROUPE_SERVER") or DEFAULT_URL).rstrip("/")


def default_headers(key: str | None, user: str | None) -> dict[str, str]:
    headers = {"accept-encoding": "identity"}
    key = os.environ.get("TROUPE_KEY") if key is None else key
    if key:
        headers["authorization"] = "Bearer " + key
    if user:
        headers["x-user-id"] = user
    return headers


def trusts_environment(url: str) -> bool:
    """Reports whether the variables for proxies apply: a server on this machine is reached directly."""
    return httpx.URL(url).host not in ("localhost", "127.0.0.1", "::1")


def tls() -> ssl.SSLContext:
    """Trusts the usual authorities, those of SSL_CERT_FILE and SSL_CERT_DIR, and that of TROUPE_CA, wherever the server is."""
    context = httpx.create_ssl_context()
    if authority := os.environ.get("TROUPE_CA"):
        try:
            context.load_verify_locations(cafile=authority)
        except (OSError, ssl.SSLError) as error:
            raise TroupeError("invalid_request", f"TROUPE_CA: cannot read certificates in {authority}: {error}") from error
    return context


def limits() -> httpx.Limits:
    return httpx.Limits(max_connections=None, max_keepalive_connections=16)


class Client:
    """A client that blocks. It may be used by several threads.

    url defaults to TROUPE_SERVER, then http://127.0.0.1:8283; key to TROUPE_KEY. user is the user
    that a key with act_as_user acts for. patience is the time in seconds that the server may be
    unreachable, as during a restart, before a method raises Unreachable.
    """

    def __init__(self, url: str | None = None, *, key: str | None = None, user: str | None = None, patience: float = 60.0) -> None:
        self.url = server_url(url)
        self._ops = Ops(Patience(outage=patience))
        self._headers, self._tls = default_headers(key, user), tls()
        self._http = self._connect()
        self.agents = Agents(self)
        self.approvals = Approvals(self)
        self.contexts = Contexts(self)
        self.runs = Runs(self)
        self.sessions = Sessions(self)
        self.tools = Tools(self)

    def _connect(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers=self._headers, limits=limits(), verify=self._tls, trust_env=trusts_environment(self.url)
        )

    def _do(self, flow: Flow[T]) -> T:
        return drive(flow, self._http)

    def _pages(self, path: str, name: str, of: Any, **params: Any) -> Iterator[Any]:
        cursor: str | None = None
        while True:
            items, cursor = self._do(self._ops.page(path, name, of, cursor, params))
            yield from items
            if cursor is None:
                return

    def call(
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
        return self._do(self._ops.call(path, body, key or new_key(), timeout))

    def start(
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
        return self._do(self._ops.start(path, body, key or new_key()))

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
    ) -> Stream:
        """Sends a message and returns the events of its run as they happen."""
        path, body = self._ops.message(agent, content, session, run_timeout, if_busy, priority)
        return Stream(self._connect, self._ops.follow(path, body, key or new_key()))

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Part:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._ops = client._ops

    def _do(self, flow: Flow[T]) -> T:
        return self._client._do(flow)


class Runs(_Part):
    """Runs of the user."""

    def list(self, **filters: str | int) -> Iterator[Run]:
        """Returns runs, newest first. Filters are those of GET /v1/runs, such as status."""
        return self._client._pages("/v1/runs", "runs", Run.of, **filters)

    def get(self, run_id: str) -> Run:
        """Returns the state of a run."""
        return self._do(self._ops.run(run_id))

    def tree(self, run_id: str) -> builtins.list[Run]:
        """Returns a run and the runs below it, in the order of the calls."""
        return self._do(self._ops.tree(run_id))

    def wait(self, run_id: str, timeout: float | None = None) -> Answer:
        """Waits for the answer of a run. It raises RunFailed, or RunOpen after the time."""
        return self._do(self._ops.wait_run(run_id, timeout))

    def cancel(self, run_id: str) -> str:
        """Cancels a run and the calls it waits for. Returns its status."""
        return self._do(self._ops.cancel(run_id))

    def retry(self, run_id: str) -> str:
        """Replays a parked run again, after its agent was corrected, and returns its status.

        It raises a Refusal with the code call_rejected if the run still diverges, and names where.
        """
        return self._do(self._ops.retry(run_id))

    def signal(self, run_id: str, name: str, payload: Any = None, *, key: str | None = None) -> None:
        """Answers a run that waits for a signal."""
        self._do(self._ops.signal(run_id, name, payload, key or new_key()))

    def events(self, run_id: str, *, after: str = "", tree: bool = False) -> Stream:
        """Returns the events of a run behind a cursor: those that exist, then those to come."""
        return Stream(self._client._connect, Follower(None, run_id, after, tree, self._ops.patience))


class Sessions(_Part):
    """Sessions of the user."""

    def list(self) -> Iterator[Session]:
        """Returns all sessions."""
        return self._client._pages("/v1/sessions", "sessions", Session.of)

    def get(self, session_id: str) -> Session:
        """Returns one session."""
        return self._do(self._ops.session(session_id))

    def create(self, session_id: str | None = None, *, title: str | None = None, metadata: Object | None = None) -> Session:
        """Creates or describes a session. It is not needed before a message."""
        return self._do(self._ops.create_session(session_id, title, metadata, new_key()))

    def delete(self, session_id: str, *, cancel: bool = False) -> None:
        """Deletes a session with its messages, runs, events and contexts. cancel ends its open runs."""
        self._do(self._ops.delete_session(session_id, cancel))

    def messages(self, session_id: str, *, agent: str | None = None, limit: int = 50, before: str | None = None) -> builtins.list[Message]:
        """Returns the latest messages, or those before a message_id, oldest first."""
        return self._do(self._ops.messages(session_id, agent, limit, before))[0]

    def history(self, session_id: str, *, agent: str | None = None) -> Iterator[Message]:
        """Returns all messages, newest first."""
        before: str | None = None
        while True:
            page, before = self._do(self._ops.messages(session_id, agent, 200, before))
            yield from reversed(page)
            if before is None:
                return

    def append(self, session_id: str, role: str, content: str, *, agent: str | None = None, key: str | None = None) -> str:
        """Appends a message and runs nothing; needs the scope operator. Returns its message_id."""
        return self._do(self._ops.append(session_id, role, content, agent, key or new_key()))


class Approvals(_Part):
    """Tool calls that wait for a person."""

    def list(self) -> Iterator[Approval]:
        """Returns those that wait, the oldest first."""
        return self._client._pages("/v1/approvals", "approvals", Approval.of)

    def get(self, approval_id: str) -> Approval:
        """Returns one, also after the decision."""
        return self._do(self._ops.approval(approval_id))

    def approve(
        self, approval_id: str, reason: str | None = None, *, raise_tokens: int | None = None, raise_money: float | None = None
    ) -> Approval:
        """Approves a call, which the server performs, or a budget.

        A budget gets as many tokens and as much money, in units of the server's currency, as is given here; without both as much again.
        """
        return self._do(self._ops.decide(approval_id, "approve", reason, new_key(), raise_tokens, raise_money))

    def reject(self, approval_id: str, reason: str | None = None) -> Approval:
        """Rejects a call: it fails with the code approval_rejected."""
        return self._do(self._ops.decide(approval_id, "reject", reason, new_key()))

    def wait(self, approval_id: str, timeout: float | None = None) -> Approval:
        """Waits for the decision. Returns the approval, PENDING if the time ended first."""
        return self._do(self._ops.wait_approval(approval_id, timeout))


class Tools(_Part):
    """Declared tools and their calls."""

    def list(self) -> Iterator[Tool]:
        """Returns all tools."""
        return self._client._pages("/v1/tools", "tools", Tool.of)

    def get(self, name: str) -> Tool:
        """Returns one tool with its fields in raw."""
        return self._do(self._ops.tool(name))

    def declare(self, **fields: Any) -> Object:
        """Declares or replaces a tool, with the fields of a tool file; needs the scope operator."""
        return self._do(self._ops.declare_tool(fields))

    def delete(self, name: str) -> None:
        """Deletes a tool."""
        self._do(self._ops.delete_tool(name))

    def call(self, tool_call_id: str) -> ToolCall:
        """Returns the state of a tool call."""
        return self._do(self._ops.tool_call(tool_call_id))

    def wait(self, tool_call_id: str, timeout: float | None = None) -> ToolCall:
        """Waits for the end of a tool call. Returns its state, pending if the time ended first."""
        return self._do(self._ops.wait_tool_call(tool_call_id, timeout))


class Agents(_Part):
    """Agents of the deployment."""

    def list(self) -> Iterator[AgentInfo]:
        """Returns all agents."""
        return self._client._pages("/v1/agents", "agents", AgentInfo.of)

    def get(self, agent_id: str) -> AgentInfo:
        """Returns one agent."""
        return self._do(self._ops.agent(agent_id))

    def create(self, name: str, **fields: Any) -> Object:
        """Creates or changes a declared agent, with the fields of an agent file."""
        return self._do(self._ops.create_agent({"name": name, **fields}))

    def register(self, agent_id: str, endpoint: str, **fields: Any) -> Object:
        """Registers an external agent. An agent of this package registers itself."""
        return self._do(self._ops.register_agent({"agent_id": agent_id, "endpoint": endpoint, **fields}))

    def delete(self, agent_id: str) -> None:
        """Deletes an agent."""
        self._do(self._ops.delete_agent(agent_id))


class Contexts(_Part):
    """JSON values with versions that are kept in a session."""

    def create(self, session_id: str, data: Any, *, owner_type: str | None = None, owner_id: str | None = None) -> Context:
        """Stores a value in a session."""
        return self._do(self._ops.create_context(data, session_id, owner_type, owner_id, new_key()))

    def get(self, context_key: str, version: int | None = None) -> Context:
        """Returns the newest version, or the given one."""
        return self._do(self._ops.context(context_key, version))

    def put(self, context_key: str, data: Any, version: int | None = None) -> Context:
        """Stores the next version; with version only if that is the current one."""
        return self._do(self._ops.put_context(context_key, data, version, new_key()))

    def delete(self, context_key: str) -> None:
        """Deletes all versions."""
        self._do(self._ops.delete_context(context_key))
