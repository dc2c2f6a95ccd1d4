# SPDX-License-Identifier: Apache-2.0
"""Agents and clients of the Troupe runtime.

    from troupe import Turn, agent

    @agent
    def echo(turn: Turn) -> str:
        return turn.message

    echo.serve()
"""

from ._agent import Agent, Running, agent
from ._async_client import AsyncClient
from ._client import Client
from ._errors import (
    Busy,
    Conflict,
    InvalidRequest,
    NotFound,
    Refusal,
    RunCancelled,
    RunFailed,
    RunOpen,
    ToolFailed,
    TroupeError,
    TurnCancelled,
    TurnDiverged,
    Unauthorized,
    Unreachable,
)
from ._stream import AsyncStream, Stream
from ._turn import AsyncTurn, Turn
from ._types import AgentInfo, Answer, Approval, Capability, Context, Event, Message, Note, Outcome, Run, Session, SessionState, Tool, ToolCall, Usage

__version__ = "0.1.0"

__all__ = [
    "Agent", "AgentInfo", "Answer", "Approval", "AsyncClient", "AsyncStream", "AsyncTurn", "Busy", "Capability", "Client", "Conflict", "Context", "Event",
    "InvalidRequest", "Message", "NotFound", "Note", "Outcome", "Refusal", "Run", "RunCancelled", "RunFailed", "RunOpen", "Running", "Session",
    "SessionState", "Stream", "Tool", "ToolCall", "ToolFailed", "TroupeError", "Turn", "TurnCancelled", "TurnDiverged", "Unauthorized", "Unreachable", "Usage", "agent",
]
