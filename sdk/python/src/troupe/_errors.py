# SPDX-License-Identifier: Apache-2.0
"""Exceptions. Each has the code of the server's table of errors and the remedy."""

from __future__ import annotations

from typing import Any, Mapping

# Remedies by code, in the words of docs/errors.md. A test compares the codes with that page.
REMEDIES: dict[str, str] = {
    "agent_busy": "Retry after retry_after. With scope caller, wait for an answer of an open call first.",
    "call_cycle": "Answer without the call: the target waits for this very answer. A retry cannot help.",
    "call_wait_cycle": "Finish the turn, then retry. A retry in the same turn closes the cycle again.",
    "call_depth": "Do the work here, or return enough for the caller to request it.",
    "timeout": "Request more time or less work.",
    "agent_not_found": "List the agents with client.agents.list(), or start the agent.",
    "call_rejected": "Read the message, which quotes the agent or the tool.",
    "agent_unavailable": "Retry later. With the same idempotency key the call is not executed twice.",
    "cancelled": "None: the caller, a person or a later message cancelled the call.",
    "budget_exceeded": "Call fewer agents, shorten answers with max_tokens, or grant the root more.",
    "invalid_request": "Correct the field that is named.",
    "outcome_unknown": "Inspect the outcome before a retry: the operation may have been performed.",
    "client_offline": "Retry when a device of the user is online.",
    "events_exceeded": "Send fewer pieces, or raise the limit that the message names.",
    "model_auth": "Correct the key in key_env of the model.",
    "model_not_found": "Correct the name or the URL of the model.",
    "model_rejected": "Correct the request: the message quotes the provider.",
    "approval_rejected": "Do without the call, or ask the person.",
    "approval_decided": "None: the first decision counts.",
    "policy_blocked": "Use another tool, or change the rule that is named.",
    "unauthorized": "Set TROUPE_KEY to a key of `troupe keys create`.",
    "forbidden_scope": "Use a key that has the scope that is named.",
    "forbidden": "Decide with the credentials of a person, not with those of an agent.",
    "forbidden_run": "Name one run.",
    "forbidden_user": "Omit the user, or use a key of `troupe keys create --act-as-user`.",
    "forbidden_host": "Use an address of the server, or start it with --hosts.",
    "forbidden_origin": "Start the server with --origin for that page.",
    "run_not_found": "Check the ID. The token of a run ends with the run.",
    "session_not_found": "List the sessions with client.sessions.list().",
    "session_deleted": "Choose another name for the session.",
    "tool_not_found": "List the tools with client.tools.list().",
    "tool_call_not_found": "Check the ID, and the user that the run belongs to.",
    "tool_call_ended": "None: the tool call has its result.",
    "approval_not_found": "List the approvals that wait with client.approvals.list().",
    "entity_not_found": "Check the name and the scope. What was forgotten does not come back.",
    "context_not_found": "Check the key. Contexts are deleted with their session.",
    "key_not_found": "List the keys with `troupe keys list`.",
    "not_found": "Check the URL of the server and its version.",
    "events_dropped": "Read from first_seq on, those of a session after the cursor in the message, or without a cursor if it has none.",
    "upgrade_required": "Connect to this path with a WebSocket.",
    "method_not_allowed": "Check the URL of the server and its version.",
    "session_busy": "Wait for the end of the run, or send if_busy='queue' or 'interrupt'.",
    "context_version": "Read the context, and repeat the change with its version.",
    "backup_exists": "Choose another name for the backup.",
    "storage_full": "Delete sessions, or free space on the server's disk.",
    "storage_share": "Delete sessions of this user.",
    "disk_full": "Free space on the server's disk.",
    "forbidden_folder": "Start the server with another --backups.",
    "internal": "Read the log of the server, which has the details.",
    # Codes of this package.
    "program_missing": "Set TROUPE_BIN to the server's program; `make build` makes bin/troupe.",
    "server_unreachable": "Start the server, or set TROUPE_SERVER to its URL.",
    "not_an_answer": "Check the URL: this is not the answer of a Troupe server.",
    "run_open": "Wait longer: the run continues. client.runs.wait() follows it.",
    "turn_diverged": "Make the turn deterministic, or name the operation with key=.",
    "agent_failed": "Read the traceback in the log of the agent.",
}


class TroupeError(Exception):
    """A failure with a code, a message and a remedy."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        field: str = "",
        scope: str = "",
        chain: tuple[str, ...] = (),
        retry_after: float = 0,
        run_id: str = "",
        first_seq: int = 0,
    ) -> None:
        self.code = code
        self.message = message
        self.remedy = REMEDIES.get(code, "")
        self.status = status  # HTTP status, or 0
        self.field = field  # offending part of an invalid request
        self.scope = scope  # owner of the exceeded limit, for agent_busy
        self.chain = chain  # path of a cycle
        self.retry_after = retry_after  # seconds; 0 if a retry does not help
        self.run_id = run_id  # run that failed, if it exists
        self.first_seq = first_seq  # first event that is left, for events_dropped
        super().__init__(code, message)

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        return f"{text.rstrip('.')}. {self.remedy}" if self.remedy else text


class Unreachable(TroupeError):
    """The server could not be reached within the time for retries."""


class Refusal(TroupeError):
    """The server or an agent refused a request."""


class NotFound(Refusal):
    """The named thing does not exist, or belongs to another user."""


class Unauthorized(Refusal):
    """The key is missing, wrong, or lacks a scope."""


class InvalidRequest(Refusal):
    """The input violates its schema or a limit."""


class Busy(Refusal):
    """A limit is reached."""


class Conflict(Refusal):
    """The thing has another state than the request expects."""


class RunFailed(TroupeError):
    """A run ended without an answer."""


class RunCancelled(RunFailed):
    """A run was cancelled."""


class RunOpen(TroupeError, TimeoutError):
    """A run did not end within the time that the caller waits. It continues."""


class ToolFailed(TroupeError):
    """A tool call ended without a result."""

    def __init__(self, code: str, message: str, *, tool_call_id: str = "") -> None:
        super().__init__(code, message)
        self.tool_call_id = tool_call_id


class TurnDiverged(TroupeError):
    """A repeated turn made another call than the first one under the same key."""


class TurnCancelled(BaseException):
    """The run of a turn has ended or was cancelled: nobody waits for its answer.

    It is no Exception, so that a handler for failures does not keep the turn going. Turns in
    coroutines get asyncio.CancelledError instead.
    """


def refusal_of(status: int, problem: Mapping[str, Any], retry_after: float = 0) -> Refusal:
    """Returns the exception for a problem (RFC 9457) of the server."""
    code = str(problem.get("code") or "not_an_answer")
    kind: type[Refusal] = Refusal
    if code == "agent_busy":
        kind = Busy
    elif status in (404, 410):
        kind = NotFound
    elif code == "unauthorized" or code.startswith("forbidden"):
        kind = Unauthorized
    elif code == "invalid_request":
        kind = InvalidRequest
    elif code in ("session_busy", "context_version", "approval_decided", "backup_exists", "tool_call_ended"):
        kind = Conflict
    return kind(
        code,
        str(problem.get("detail") or problem.get("title") or f"status {status}"),
        status=status,
        field=str(problem.get("field") or ""),
        scope=str(problem.get("scope") or ""),
        chain=tuple(str(c) for c in problem.get("chain") or ()),
        retry_after=float(problem.get("retry_after") or retry_after),
        run_id=str(problem.get("run_id") or ""),
        first_seq=int(problem.get("first_seq") or 0),
    )
