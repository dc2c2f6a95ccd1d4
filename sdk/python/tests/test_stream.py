# SPDX-License-Identifier: Apache-2.0
"""The parts that perform no I/O."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from conftest import ROOT

import troupe
from troupe import _async_client, _client
from troupe._errors import REMEDIES, Refusal, Unreachable, refusal_of
from troupe._flow import Lost, Patience, Reply, Send, Sleep, request
from troupe._stream import AnswerText, Follower, Frame, Parser
from troupe._types import Event


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_parser_splits_at_any_byte(end: str, size: int) -> None:
    text = ": ping\n\nid: 1\nevent: a\ndata: {\"x\":\"\u2028ä\"}\n\ndata:1\ndata: 2\n\nid: 3\n\nevent: c\ndata\n\n".replace("\n", end)
    data = text.encode() + b"\n"  # shows the end of a last CR
    parser, frames = Parser(), list[Frame]()
    for i in range(0, len(data), size):
        frames += parser.feed(data[i : i + size])
    assert frames == [Frame("a", '{"x":"\u2028ä"}', "1"), Frame("", "1\n2", "1"), Frame("c", "", "3")]


def test_parser_refuses_an_endless_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("troupe._stream.FRAME_BYTES_MAX", 10)
    with pytest.raises(Refusal):
        Parser().feed(b"data: 0123456789")
    with pytest.raises(Refusal):
        Parser().feed(b"data: 01234\ndata: 567890\n")


def event(type: str, seq: int, **payload: Any) -> Event:
    return Event(type, "r", seq, "", payload)


def test_answer_text_follows_retries() -> None:
    answer = AnswerText()
    seen: list[str] = []
    for e in (
        event("agent_stream_delta", 1, text="a", step=1, index=0),
        event("agent_invoke_started", 2),
        event("agent_stream_delta", 3, text="one ", step=2, index=0),
        event("agent_stream_delta", 4, text="tw", step=2, index=0),
        event("attempt", 5, step=2, index=1, discards_after=3),
        event("attempt", 6, step=2, index=0, discards_after=3),
        event("agent_stream_delta", 7, text="two", step=2, index=0),
        event("run_done", 8, text="one two!"),
    ):
        answer.apply(e)
        seen.append(answer.text)
    assert seen == ["a", "", "one ", "one tw", "one tw", "one ", "one two", "one two!"]


def test_stream_reconnects_with_its_cursor() -> None:
    f = Follower(Send("POST", "/v1/agents/a/messages", b"{}"))
    assert f.connect().method == "POST"
    f.opened({"x-run-id": "r"})
    f.feed(b'id: 1\nevent: user_input\ndata: {"run_id":"r","seq":1,"type":"user_input","payload":{}}\n\n')
    f.failed(None)
    again = f.connect()
    assert (again.method, again.path, again.headers["last-event-id"]) == ("GET", "/v1/runs/r/events", "1")
    f.feed(b'event: stream_closed\ndata: {"reason":"slow_reader"}\n\n')
    assert f.failed(None) >= 0.5
    with pytest.raises(Refusal, match="revoked"):
        f.feed(b'event: stream_closed\ndata: {"reason":"revoked"}\n\n')


def drive(answers: list[Reply | Lost], patience: Patience = Patience(), step: float = 1.0) -> tuple[Any, list[Send]]:
    """Performs a request with the given answers; each one and each sleep takes a time."""
    now = 0.0
    flow = request("POST", "/x", body={}, key="k", patience=patience, clock=lambda: now)
    sent: list[Send] = []
    result: Any = None
    try:
        while True:
            effect = flow.send(result)
            if isinstance(effect, Sleep):
                now += effect.seconds
                result = None
            else:
                now += step
                sent.append(effect)
                result = answers.pop(0)
    except StopIteration as done:
        return done.value, sent


def problem(status: int, code: str, more: str = "") -> Reply:
    return Reply(status, {}, f'{{"code":"{code}","detail":"d"{more}}}'.encode())


OK = Reply(200, {}, b"{}")


def test_request_is_repeated_with_its_key() -> None:
    refused, sent = drive([Lost(OSError("x")), problem(503, "agent_unavailable"), problem(429, "agent_busy", ',"retry_after":2'), OK])
    assert refused is OK
    assert len(sent) == 4 and {s.headers["idempotency-key"] for s in sent} == {"k"}


@pytest.mark.parametrize(
    "answer", [problem(503, "agent_unavailable", ',"run_id":"r"'), problem(504, "timeout", ',"run_id":"r"'), problem(409, "call_cycle"), problem(500, "internal")]
)
def test_outcome_is_not_repeated(answer: Reply) -> None:
    with pytest.raises(Refusal):
        drive([answer])


def test_retries_are_bounded() -> None:
    with pytest.raises(Unreachable):
        drive([Lost(OSError("x"))] * 20, Patience(outage=5.0))
    with pytest.raises(troupe.Busy):
        drive([problem(429, "agent_busy")] * 20, Patience(busy=5.0))
    with pytest.raises(Refusal, match="not_an_answer"):
        drive([Reply(502, {}, b"<html>")] * 20, Patience(refused=5.0))


def test_every_code_of_the_server_has_a_remedy() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    codes = set(re.findall(r"^\| `([a-z_]+)` \| \d", page, re.M)) | set(re.findall(r"\| (?:error|timeout) \| ([a-z_]+) \| \d", page))
    assert len(codes) > 40
    assert codes - set(REMEDIES) == set()


def test_errors_say_what_to_do() -> None:
    e = refusal_of(404, {"code": "agent_not_found", "detail": "no agent is named x", "run_id": "r"})
    assert isinstance(e, troupe.NotFound)
    assert (e.code, e.message, e.status, e.run_id) == ("agent_not_found", "no agent is named x", 404, "r")
    assert str(e) == "agent_not_found: no agent is named x. " + e.remedy
    assert e.remedy.startswith("List the agents")


def members(owner: type) -> dict[str, Callable[..., Any]]:
    return {n: f for n, f in vars(owner).items() if inspect.isfunction(f) and not n.startswith("_")}


@pytest.mark.parametrize("name", ["Client", "Runs", "Sessions", "Approvals", "Tools", "Agents", "Contexts"])
def test_both_clients_have_the_same_methods(name: str) -> None:
    blocking, coroutines = members(getattr(_client, name)), members(getattr(_async_client, "Async" + name))
    if name == "Client":
        coroutines["close"] = coroutines.pop("aclose")
    assert set(coroutines) == set(blocking)
    for method, function in blocking.items():
        mine, theirs = inspect.signature(function).parameters, inspect.signature(coroutines[method]).parameters
        assert [str(p) for p in mine.values()] == [str(p) for p in theirs.values()], method
        assert function.__doc__ == coroutines[method].__doc__, method


def test_both_turns_have_the_same_methods() -> None:
    from troupe import _turn

    for blocking, coroutine in ((_turn.Turn, _turn.AsyncTurn), (_turn.ToolUse, _turn.AsyncToolUse), (_turn.TurnContexts, _turn.AsyncTurnContexts)):
        mine, theirs = members(blocking), members(coroutine)
        assert {n: list(inspect.signature(f).parameters) for n, f in mine.items()} == {n: list(inspect.signature(f).parameters) for n, f in theirs.items()}
