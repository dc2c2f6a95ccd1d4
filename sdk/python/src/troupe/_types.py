# SPDX-License-Identifier: Apache-2.0
"""Values of the HTTP API. Fields that a newer server adds are in `raw`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

Json = Any  # a JSON value
Object = Mapping[str, Any]


@dataclass(frozen=True)
class Usage:
    """Tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0

    @classmethod
    def of(cls, o: Object | None) -> Usage:
        o = o or {}
        return cls(int(o.get("input_tokens", 0)), int(o.get("output_tokens", 0)), int(o.get("total_tokens", 0)))


@dataclass(frozen=True)
class Message:
    """A message of a conversation."""

    role: str
    content: str
    message_id: str = ""
    origin: str = ""
    run_id: str = ""
    created_at: str = ""

    @classmethod
    def of(cls, o: Object) -> Message:
        names = ("role", "content", "message_id", "origin", "run_id", "created_at")
        return cls(*(str(o.get(name, "")) for name in names))


@dataclass(frozen=True)
class Capability:
    """What an agent does for others: with @agent(provides=[Capability("DOC_GENERATE", "Writes a document.")]).

    The message of such a turn is the request of the contract as JSON, and the answer is its response, or the
    result alone.
    """

    code: str  # words of capitals joined by "_"
    description: str
    version: str = ""
    timeout: float | None = None  # in seconds, of a request that names none
    user_text: str = ""  # a line for users
    input_schema: Object | None = None  # JSON Schemas of objects; the server checks both
    output_schema: Object | None = None
    example: Object | None = None  # inputs that fit

    def fields(self) -> dict[str, Json]:
        """The declaration as the server reads it."""
        all: dict[str, Json] = {"code": self.code, "description": self.description, "version": self.version, "user_text": self.user_text}
        all.update(input_schema=self.input_schema, output_schema=self.output_schema, example=self.example)
        if self.timeout is not None:
            all["timeout_ms"] = max(1, round(self.timeout * 1000))
        return {name: value for name, value in all.items() if value not in (None, "")}


@dataclass(frozen=True)
class Outcome:
    """What came back from an agent_call, or a reminder."""

    correlation: str  # that agent_call or remind has returned
    status: str  # completed, error or timeout
    output: Json = None
    confidence: float = 0.0  # from 0 to 1
    assumptions: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    error_code: str = ""
    error_message: str = ""  # also of a timeout
    reminder: str = ""  # text of a reminder

    @classmethod
    def of(cls, correlation: str, o: Object) -> Outcome:
        error = o.get("error") or {}
        return cls(
            correlation,
            str(o.get("status", "")),
            o.get("output"),
            float(o.get("confidence", 0.0)),
            tuple(o.get("assumptions", ())),
            tuple(o.get("caveats", ())),
            str(error.get("code", "")),
            str(error.get("message", "") or o.get("message", "")),
            str(o.get("text", "")) if o.get("kind") == "reminder" else "",
        )


@dataclass(frozen=True)
class Answer:
    """The answer of an agent."""

    text: str
    run_id: str
    agent_id: str = ""
    session_id: str = ""
    status: str = "succeeded"  # or partial
    warnings: tuple[str, ...] = ()
    usage: Usage = Usage()  # of the run
    tree_usage: Usage = Usage()  # with all calls that answered it

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of(cls, o: Object) -> Answer:
        return cls(
            str(o.get("content", "")),
            str(o.get("run_id", "")),
            str(o.get("agent_id", "")),
            str(o.get("session_id", "")),
            str(o.get("status", "")),
            tuple(o.get("warnings") or ()),
            Usage.of(o.get("usage")),
            Usage.of(o.get("tree_usage")),
        )


@dataclass(frozen=True)
class Event:
    """An event of a run."""

    type: str
    run_id: str
    seq: int
    ts: str
    payload: Object
    id: str = ""  # cursor behind this event

    @property
    def text(self) -> str:
        """Text of the event, such as a piece of an answer."""
        return str(self.payload.get("text") or "")

    @property
    def ends(self) -> bool:
        """Reports whether the event ends its run."""
        return self.type in ("run_done", "run_failed", "run_cancelled")

    @classmethod
    def of(cls, o: Object, id: str = "") -> Event:
        return cls(
            str(o.get("type", "")), str(o.get("run_id", "")), int(o.get("seq", 0)), str(o.get("ts", "")), o.get("payload") or {}, id
        )


@dataclass(frozen=True)
class Run:
    """The state of a run."""

    run_id: str
    agent_id: str
    session_id: str
    status: str  # such as RUNNING, PAUSED_WAITING_APPROVAL, DONE, FAILED, CANCELLED
    text: str = ""
    root_run_id: str = ""
    parent_run_id: str = ""
    usage: Usage = Usage()
    tree_usage: Usage = Usage()
    raw: Object = field(default_factory=dict, repr=False, compare=False)
    agent_state: str = ""  # Queued, Running, Waiting, Paused or Parked; "" once the run has ended
    error: Object = field(default_factory=dict, compare=False)  # code, reason, message, detail: why the run failed or is parked

    @property
    def ended(self) -> bool:
        return bool(self.raw.get("ended_at")) or self.status in ("DONE", "FAILED", "CANCELLED")

    @classmethod
    def of(cls, o: Object) -> Run:
        def text(name: str) -> str:
            return str(o.get(name) or "")

        return cls(
            text("run_id"),
            text("agent_id"),
            text("session_id"),
            text("status"),
            text("text"),
            text("root_run_id"),
            text("parent_run_id"),
            Usage.of(o.get("usage")),
            Usage.of(o.get("tree_usage")),
            o,
            text("agent_state"),
            o.get("error") or {},
        )


@dataclass(frozen=True)
class Session:
    """A session of a user."""

    session_id: str
    title: str = ""
    metadata: Object = field(default_factory=dict)
    created_at: str = ""
    updated_at: str = ""
    agents: tuple[Object, ...] = ()
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, o: Object) -> Session:
        return cls(
            str(o.get("session_id", "")),
            str(o.get("title") or ""),
            o.get("metadata") or {},
            str(o.get("created_at") or ""),
            str(o.get("updated_at") or ""),
            tuple(o.get("agents") or ()),
            o,
        )


@dataclass(frozen=True)
class Approval:
    """A tool call or a budget that waits for a person, or that a person decided about."""

    approval_id: str
    status: str  # PENDING, APPROVED, REJECTED or EXPIRED
    tool_call_id: str
    tool_name: str
    args: Json
    args_summary: str
    run_id: str
    root_run_id: str
    agent_id: str
    session_id: str
    expires_at: str = ""
    decided_by: str = ""
    reason: str = ""
    raw: Object = field(default_factory=dict, repr=False, compare=False)
    kind: str = "tool"  # or budget: of a request to the model tool_name beyond the budget of its run

    @classmethod
    def of(cls, o: Object) -> Approval:
        def text(name: str) -> str:
            return str(o.get(name) or "")

        return cls(
            text("approval_id"),
            text("status"),
            text("tool_call_id"),
            text("tool_name"),
            o.get("args"),
            text("args_summary"),
            text("run_id"),
            text("root_run_id"),
            text("agent_id"),
            text("session_id"),
            text("expires_at"),
            text("decided_by"),
            text("reason"),
            o,
            text("kind") or "tool",
        )


@dataclass(frozen=True)
class ToolCall:
    """The state of a tool call."""

    tool_call_id: str
    status: str  # succeeded, pending or failed
    result: Json = None
    error_code: str = ""
    error_message: str = ""
    state: str = ""
    tool_name: str = ""
    run_id: str = ""
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.status != "pending"

    @classmethod
    def of(cls, o: Object) -> ToolCall:
        error = o.get("error") or {}
        return cls(
            str(o.get("tool_call_id", "")),
            str(o.get("status", "")),
            o.get("result"),
            str(error.get("code", "")),
            str(error.get("message", "")),
            str(o.get("state", "")),
            str(o.get("tool_name", "")),
            str(o.get("run_id", "")),
            o,
        )


@dataclass(frozen=True)
class Context:
    """A version of a JSON value that is kept in a session."""

    context_key: str
    version: int
    data: Json = None
    owner_type: str = ""
    owner_id: str = ""
    created_at: str = ""

    @classmethod
    def of(cls, o: Object, data: Json = None) -> Context:
        return cls(
            str(o.get("context_key", "")),
            int(o.get("version", 0)),
            o.get("data", data),
            str(o.get("owner_type", "")),
            str(o.get("owner_id", "")),
            str(o.get("created_at", "")),
        )


@dataclass(frozen=True)
class Note:
    """What an agent has noted for the others of its session."""

    kind: str  # decision, finding, data, constraint or assumption
    value: Json
    name: str = ""
    version: int = 0
    agent_id: str = ""
    run_id: str = ""
    at: str = ""

    @classmethod
    def of(cls, o: Object) -> Note:
        return cls(
            str(o.get("kind", "")),
            o.get("value"),
            str(o.get("name", "")),
            int(o.get("version", 0)),
            str(o.get("agent_id", "")),
            str(o.get("run_id", "")),
            str(o.get("at", "")),
        )


@dataclass(frozen=True)
class SessionState:
    """What the agents of a session share. It is a record, not an instruction."""

    notes: tuple[Note, ...] = ()
    agents: Object = field(default_factory=dict)  # by agent: its state, with version, run_id and at
    workflow: Json = None  # the steps of one that is under way or waits for the user

    @classmethod
    def of(cls, o: Object) -> SessionState:
        return cls(tuple(Note.of(n) for n in o.get("notes") or ()), o.get("agents") or {}, o.get("workflow"))


@dataclass(frozen=True)
class AgentInfo:
    """A registered agent."""

    agent_id: str
    name: str = ""
    kind: str = ""
    endpoint: str = ""
    status: str = ""  # healthy, unhealthy or unknown
    capabilities: tuple[str, ...] = ()
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, o: Object) -> AgentInfo:
        return cls(
            str(o.get("agent_id", "")),
            str(o.get("name") or ""),
            str(o.get("kind") or ""),
            str(o.get("endpoint") or ""),
            str(o.get("status") or ""),
            tuple(o.get("capabilities") or ()),
            o,
        )


@dataclass(frozen=True)
class Tool:
    """A declared tool."""

    tool_name: str
    kind: str = ""
    description: str = ""
    policy: str = ""
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, o: Object) -> Tool:
        return cls(str(o.get("tool_name", "")), str(o.get("kind") or ""), str(o.get("description") or ""), str(o.get("policy") or ""), o)
