# SPDX-License-Identifier: Apache-2.0
"""Requests with retries, as generators that perform no I/O.

A flow yields Send and Sleep and gets a Reply or a Lost for the former. The same flow is
driven by blocking code and by a coroutine, so retries exist once.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union
from urllib.parse import quote

import httpx

from ._errors import Refusal, Unreachable, refusal_of

T = TypeVar("T")

# Longest answer of the server to a request, in seconds, with a margin.
ANSWER_SECONDS = 330.0
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Send:
    """A request to perform."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 30.0


@dataclass(frozen=True)
class Sleep:
    """A delay in seconds."""

    seconds: float


@dataclass(frozen=True)
class Reply:
    """An answer of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body or b"null")
        except ValueError:
            raise Refusal("not_an_answer", f"status {self.status} with {self.body[:80]!r}", status=self.status) from None


@dataclass(frozen=True)
class Lost:
    """A request without an answer: it may have been performed."""

    error: Exception


Effect = Union[Send, Sleep]
Result = Union[Reply, Lost, None]
Flow = Generator[Effect, Result, T]


@dataclass(frozen=True)
class Patience:
    """Bounds of the retries of one request, in seconds."""

    outage: float = 60.0  # time that the server may be unreachable
    busy: float = 30.0  # time that a limit may be exceeded
    refused: float = 30.0  # time that a server may refuse because of its own state


def backoff(attempt: int) -> float:
    """Returns the delay before an attempt, in seconds."""
    return random.uniform(0.5, 1.0) * min(0.1 * 2.0 ** min(attempt, 10), 2.0)


def segment(text: str) -> str:
    """Returns a text as one segment of a path."""
    return quote(text, safe=":")


def is_transient(r: Refusal) -> bool:
    """Reports whether a refusal is the state of the server and not the outcome of a call.

    The outcome of a call names its run.
    """
    return r.status in (502, 503, 504) and not r.run_id and r.code in ("agent_unavailable", "timeout", "not_an_answer")


def problem_of(reply: Reply) -> Refusal:
    """Returns the exception for an answer that is no success."""
    try:
        problem = reply.json()
    except Refusal:
        problem = {}
    if not isinstance(problem, dict) or "code" not in problem:
        problem = {"detail": f"status {reply.status} with {reply.body[:80].decode(errors='replace')!r}"}
    try:
        after = float(reply.headers.get("retry-after", "0"))
    except ValueError:
        after = 0.0
    return refusal_of(reply.status, problem, after)


def request(
    method: str,
    path: str,
    *,
    body: Any = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str | int | None] | None = None,
    timeout: float = 30.0,
    patience: Patience = Patience(),
    clock: Callable[[], float] = time.monotonic,
) -> Flow[Reply]:
    """Performs a request until it has an answer.

    A request that changes something needs a key, so that its repetition has no second effect.
    """
    heads = dict(headers or {})
    content: bytes | None = None
    if body is not None:
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        heads["content-type"] = "application/json"
    if key is not None:
        heads["idempotency-key"] = key
    send = Send(method, path, content, heads, {k: str(v) for k, v in (params or {}).items() if v is not None}, timeout)
    attempt, failing_since, busy_since = 0, -1.0, -1.0
    while True:
        began = clock()
        got = yield send
        attempt += 1
        if isinstance(got, Lost):
            failing_since = began if failing_since < 0 else failing_since
            if clock() - failing_since > patience.outage:
                raise Unreachable("server_unreachable", f"{method} {path}: {got.error or type(got.error).__name__}") from got.error
            yield Sleep(backoff(attempt))
            continue
        assert isinstance(got, Reply)
        if got.status < 400:
            return got
        refused = problem_of(got)
        if refused.code == "agent_busy":
            failing_since, busy_since = -1.0, began if busy_since < 0 else busy_since
            if clock() - busy_since > patience.busy:
                raise refused
            yield Sleep(max(refused.retry_after * random.uniform(1.0, 1.2), backoff(attempt)))
        elif is_transient(refused):
            busy_since, failing_since = -1.0, began if failing_since < 0 or clock() - began > 10 else failing_since
            if clock() - failing_since > patience.refused:
                raise refused
            yield Sleep(max(min(refused.retry_after, 5.0), backoff(attempt)))
        else:
            raise refused


def _httpx_timeout(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=CONNECT_SECONDS)


def drive(flow: Flow[T], http: httpx.Client, sleep: Callable[[float], None] = time.sleep) -> T:
    """Performs a flow in the calling thread."""
    result: Result = None
    try:
        while True:
            effect = flow.send(result)
            if isinstance(effect, Sleep):
                sleep(effect.seconds)
                result = None
                continue
            try:
                r = http.request(
                    effect.method, effect.path, content=effect.body, headers=effect.headers, params=effect.params or None,
                    timeout=_httpx_timeout(effect.timeout),
                )
                result = Reply(r.status_code, r.headers, r.content)
            except httpx.TransportError as lost:
                result = Lost(lost)
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        flow.close()


async def drive_async(flow: Flow[T], http: httpx.AsyncClient) -> T:
    """Performs a flow in a coroutine."""
    result: Result = None
    try:
        while True:
            try:
                effect = flow.send(result)
            except StopIteration as done:
                value: T = done.value
                return value
            if isinstance(effect, Sleep):
                await asyncio.sleep(effect.seconds)
                result = None
                continue
            try:
                r = await http.request(
                    effect.method, effect.path, content=effect.body, headers=effect.headers, params=effect.params or None,
                    timeout=_httpx_timeout(effect.timeout),
                )
                result = Reply(r.status_code, r.headers, r.content)
            except httpx.TransportError as lost:
                result = Lost(lost)
    finally:
        flow.close()
