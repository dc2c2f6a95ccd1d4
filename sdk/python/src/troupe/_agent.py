# SPDX-License-Identifier: Apache-2.0
"""Agents: functions that a Troupe server invokes over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import json
import logging
import os
import re
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Union, overload

import httpx

from ._client import default_headers, limits, server_url, tls, trusts_environment
from ._errors import InvalidRequest, Refusal, TroupeError, TurnCancelled, Unreachable
from ._flow import Patience, backoff, drive_async, request

from ._server import Receive, SendMessage, Server
from ._turn import AsyncTurn, Execution, Invocation, Turn
from ._types import Answer, Capability

log = logging.getLogger("troupe")

Text = Union[str, Answer, None]
SyncFunction = Callable[[Turn], Union[Text, Iterator[str]]]
AsyncFunction = Callable[[AsyncTurn], Union[Awaitable[Text], AsyncIterator[str]]]
Function = Union[SyncFunction, AsyncFunction]

BODY_BYTES_MAX = 16 << 20
HEARTBEAT_SECONDS = 15.0  # the server calls no agent that was silent for 45 seconds
ORPHAN_SECONDS = 300.0  # time that a turn continues while its server is away
KEPT_SECONDS = 300.0  # time that a finished answer can be sent again
KEPT_MAX = 256
KEPT_BYTES_MAX = 64 << 20


def check_name(agent_id: str) -> None:
    """Refuses a name that the server would refuse, where the agent is written."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", agent_id) or agent_id in (".", ".."):
        raise InvalidRequest("invalid_request", f"agent name {agent_id!r}: want 1 to 64 letters, digits, '.', '_' and '-'")


def check_takes_turn(function: Function) -> None:
    """Refuses a function that cannot be called with a turn alone."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        name = getattr(function, "__name__", "the function")
        raise InvalidRequest("invalid_request", f"agent {name}: want a function with one parameter, the turn, as in def {name}(turn)") from None
    except ValueError:  # a function without a signature, such as of C
        pass


def model_code(e: BaseException) -> str:
    """The code of a failed request to a model with the package openai, such as model_not_found, or ""."""
    code = getattr(e, "code", None)
    return code if isinstance(code, str) and type(e).__module__.partition(".")[0] == "openai" else ""


class Agent:
    """An agent, which is an ASGI application with POST /invoke and GET /health.

    It registers itself at the server and sends heartbeats: in serve() and start(), and as an
    application of another server if endpoint or TROUPE_ENDPOINT is the URL that reaches it.
    """

    def __init__(
        self,
        function: Function,
        agent_id: str | None = None,
        *,
        description: str | None = None,
        capabilities: Sequence[str] = (),
        code: str | None = None,
        provides: Sequence[Capability] = (),
        skills: Sequence[str] | None = None,
        agent_call: Mapping[str, bool] | None = None,
        memory: Mapping[str, bool | str | Sequence[str]] | None = None,
        concurrency: int = 64,
        invoke_timeout: float | None = None,
        transcript: str | None = None,
        auth_env: str | None = None,
        endpoint: str | None = None,
        server: str | None = None,
        key: str | None = None,
    ) -> None:
        self.function = function
        self.agent_id: str = agent_id or str(getattr(function, "__name__", "agent"))
        check_name(self.agent_id)
        check_takes_turn(function)
        self.__doc__ = inspect.getdoc(function)
        self._concurrency = concurrency
        self._endpoint = endpoint or os.environ.get("TROUPE_ENDPOINT")
        self._server_url, self._api_key = server, key
        self._auth_env = auth_env
        text = description if description is not None else (self.__doc__ or "").strip().partition("\n")[0]
        self._fields: dict[str, Any] = {"agent_id": self.agent_id, "retry": "safe", "concurrency": concurrency}
        if text:
            self._fields["description"] = text
        if capabilities:
            self._fields["capabilities"] = list(capabilities)
        if code is not None:
            self._fields["code"] = code
        if provides:
            self._fields["provides"] = [c.fields() for c in provides]
        if skills is not None:
            self._fields["skills"] = list(skills)
        if agent_call is not None:
            self._fields["agent_call"] = dict(agent_call)
        if memory is not None:
            self._fields["memory"] = dict(memory)
        if invoke_timeout is not None:
            self._fields["limits"] = {"invoke_timeout_ms": max(1, round(invoke_timeout * 1000))}
        if transcript is not None:
            self._fields["transcript"] = transcript
        if auth_env:
            self._fields["auth"] = {"env": auth_env}
        self._is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self._executions: OrderedDict[str, tuple[Execution, float]] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._http: httpx.AsyncClient | None = None
        self._blocking: httpx.Client | None = None
        self._registration: asyncio.Task[None] | None = None
        self.registered: asyncio.Event | None = None

    # As a function, so that a test can call the turn itself.

    def __repr__(self) -> str:
        return f"<Agent {self.agent_id}>"

    # Life.

    async def open(self, server: str | None = None, key: str | None = None, endpoint: str | None = None) -> None:
        """Begins to register at the server and to send heartbeats, if there is an endpoint."""
        url = server_url(server or self._server_url)
        headers = default_headers(None, None)
        key = key if key is not None else self._api_key
        plain, trusts, context = {"accept-encoding": "identity"}, trusts_environment(url), tls()
        self._http = httpx.AsyncClient(base_url=url, headers=plain, limits=limits(), verify=context, trust_env=trusts)
        self._blocking = httpx.Client(base_url=url, headers=plain, limits=limits(), verify=context, trust_env=trusts)
        self.registered = asyncio.Event()
        endpoint = endpoint or self._endpoint
        if endpoint:
            credentials = {"authorization": "Bearer " + key} if key else {k: v for k, v in headers.items() if k == "authorization"}
            self._registration = asyncio.create_task(self._register(endpoint.rstrip("/"), credentials))

    async def close(self) -> None:
        """Cancels the turns and closes the connections."""
        tasks = [t for t in (self._registration, *self._tasks) if t is not None]
        for execution, _ in list(self._executions.values()):
            execution.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executions.clear()
        if self._http is not None:
            await self._http.aclose()
        if self._blocking is not None:
            self._blocking.close()

    async def _register(self, endpoint: str, credentials: dict[str, str]) -> None:
        assert self._http is not None and self.registered is not None
        known, failures = False, 0
        while True:
            path = f"/v1/agents/{self.agent_id}:heartbeat" if known else "/v1/agents/register"
            body = None if known else {**self._fields, "endpoint": endpoint}
            try:
                await drive_async(request("POST", path, body=body, headers=credentials, patience=Patience(0.0, 0.0)), self._http)
                if not known:
                    log.debug("registered %s at %s", self.agent_id, endpoint)
                known, failures = True, 0
                self.registered.set()
                await asyncio.sleep(HEARTBEAT_SECONDS)
                continue
            except Unreachable as e:
                level = logging.WARNING if failures == 0 else logging.DEBUG
                log.log(level, "%s waits for the server: %s", self.agent_id, e)
            except TroupeError as e:
                if isinstance(e, Refusal) and not self.registered.is_set() and e.status in (400, 401, 403, 404, 409, 422):
                    raise  # the first registration is wrong, and stays so
                known = False  # a server with another data folder does not know the agent
                log.warning("%s is not registered: %s", self.agent_id, e)
            failures += 1
            await asyncio.sleep(max(backoff(failures), 0.2))

    # ASGI.

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: SendMessage) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            raise TroupeError("invalid_request", f"want http, got {scope['type']}")

    async def _lifespan(self, receive: Receive, send: SendMessage) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if not self._endpoint:
                    text = f"set endpoint= of @agent or TROUPE_ENDPOINT to the URL at which the server reaches {self.agent_id}"
                    await send({"type": "lifespan.startup.failed", "message": text})
                    return
                await self.open()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: SendMessage) -> None:
        path = str(scope["path"])
        root = str(scope.get("root_path") or "")
        if root and path.startswith(root):
            path = path[len(root) :]
        headers = {bytes(k).decode("latin-1").lower(): bytes(v).decode("latin-1") for k, v in scope["headers"]}
        method = str(scope["method"])
        if not self._authorized(headers):
            await respond(send, 401, {"code": "unauthorized", "message": f"want the secret of {self._auth_env}"})
        elif path == "/health" and method == "GET":
            await respond(send, 200, {"status": "ok"})
        elif path == "/invoke" and method == "POST":
            await self._invoke(headers, receive, send)
        elif path in ("/health", "/invoke"):
            await respond(send, 405, {"code": "method_not_allowed", "message": "want GET /health or POST /invoke"})
        else:
            await respond(send, 404, {"code": "not_found", "message": "want GET /health or POST /invoke"})

    def _authorized(self, headers: dict[str, str]) -> bool:
        if not self._auth_env:
            return True
        want = "Bearer " + os.environ.get(self._auth_env, "")
        return want != "Bearer " and hmac.compare_digest(headers.get("authorization", "").encode(), want.encode())

    async def _invoke(self, headers: dict[str, str], receive: Receive, send: SendMessage) -> None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > BODY_BYTES_MAX:
                await respond(send, 413, {"code": "invalid_request", "message": f"want at most {BODY_BYTES_MAX} bytes"})
                return
            if not message.get("more_body"):
                break
        try:
            invocation = Invocation.of(bytes(body), headers)
        except InvalidRequest as e:
            await respond(send, 400, {"code": e.code, "message": e.message})
            return
        execution = self._execution(invocation, hashlib.sha256(body).digest())
        if execution is None:
            await respond(send, 503, {"code": "agent_busy", "message": f"{self._concurrency} turns are open"}, [(b"retry-after", b"1")])
            return
        execution.attached += 1
        gone = asyncio.create_task(disconnected(receive))
        reading = asyncio.create_task(self._stream(execution, send))
        try:
            await asyncio.wait({gone, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            execution.attached -= 1
            for task in (gone, reading):
                task.cancel()
            await asyncio.gather(gone, reading, return_exceptions=True)
            if execution.attached == 0 and not execution.finished and not execution.cancelled.is_set():
                self._spawn(self._watch(execution))

    async def _stream(self, execution: Execution, send: SendMessage) -> None:
        head = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": head})

        async def write(data: bytes, more: bool) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await execution.read(write)
        if execution.cancelled.is_set():
            await write(b"", False)

    # Turns.

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _execution(self, invocation: Invocation, digest: bytes) -> Execution | None:
        """Returns the execution of the run: the one that goes on or has finished, or a new one."""
        self._forget()
        known = self._executions.get(invocation.run_id)
        if known is not None:
            execution = known[0]
            if execution.digest == digest and not execution.cancelled.is_set():
                execution.invocation = invocation  # its token may be newer
                return execution
            execution.cancel()
            del self._executions[invocation.run_id]
        if sum(1 for x, _ in self._executions.values() if not x.finished) >= 2 * self._concurrency:
            return None
        execution = Execution(invocation, digest, asyncio.get_running_loop())
        self._executions[invocation.run_id] = (execution, time.monotonic())
        if self._is_async:
            task = self._spawn(self._run_async(execution))
            execution.on_cancel = lambda: void(task.cancel())
        else:
            threading.Thread(target=self._run_blocking, args=(execution,), name=f"turn {invocation.run_id}", daemon=True).start()
        return execution

    def _forget(self) -> None:
        """Forgets finished answers that are old, or the oldest of too many."""
        now = time.monotonic()
        done = [(run, x, at) for run, (x, at) in self._executions.items() if x.attached == 0 and (x.finished or x.cancelled.is_set())]
        size = sum(x.size for _, x, _ in done)
        for i, (run, x, at) in enumerate(done):
            if now - at > KEPT_SECONDS or len(done) - i > KEPT_MAX or size > KEPT_BYTES_MAX:
                del self._executions[run]
                size -= x.size

    async def _watch(self, execution: Execution) -> None:
        """Cancels a turn without a connection once its run has ended, or the server stays away."""
        assert self._http is not None
        i = execution.invocation
        away_since = time.monotonic()
        attempt = 0
        while execution.attached == 0 and not execution.finished and not execution.cancelled.is_set():
            try:
                r = await self._http.get(
                    f"/v1/sessions/{i.session_id}/messages", params={"limit": 1}, headers={"x-run-token": i.token}, timeout=5.0
                )
                away_since = time.monotonic()
                if r.status_code == 401 or r.status_code == 404 and '"run_not_found"' in r.text:
                    execution.cancel()
                    return
            except httpx.TransportError:
                if time.monotonic() - away_since > ORPHAN_SECONDS:
                    execution.cancel()
                    return
            attempt += 1
            await asyncio.sleep(backoff(attempt))

    async def _run_async(self, execution: Execution) -> None:
        assert self._http is not None
        turn = AsyncTurn(execution, self._http)
        try:
            result: Any = self.function(turn)  # type: ignore[arg-type]
            if inspect.isasyncgen(result):
                async for piece in result:
                    turn.delta(str(piece))
                result = None
            elif inspect.isawaitable(result):
                result = await result
            self._finish(turn, result)
        except asyncio.CancelledError:
            execution.cancel()
            raise
        except (Exception, SystemExit) as e:  # the process serves other runs
            self._fail(execution, e)

    def _run_blocking(self, execution: Execution) -> None:
        assert self._blocking is not None
        turn = Turn(execution, self._blocking)
        try:
            result: Any = self.function(turn)  # type: ignore[arg-type]
            if inspect.isgenerator(result):
                for piece in result:
                    if execution.cancelled.is_set():
                        raise TurnCancelled("the run has ended")
                    turn.delta(str(piece))
                result = None
            self._finish(turn, result)
        except TurnCancelled:
            execution.cancelled.set()
            execution.wake()
        except (Exception, SystemExit) as e:  # the process serves other runs
            self._fail(execution, e)

    def _finish(self, turn: Turn | AsyncTurn, result: Any) -> None:
        if result is not None:
            turn.delta(result.text if isinstance(result, Answer) else str(result))
        turn._x.emit("done", {"usage": turn._usage} if turn._usage else {})

    def _fail(self, execution: Execution, e: BaseException) -> None:
        if execution.cancelled.is_set():
            return
        if isinstance(e, TroupeError):
            log.warning("run %s of %s failed: %s", execution.invocation.run_id, self.agent_id, e)
            code, text = e.code, e.message
        else:
            log.error("run %s of %s failed", execution.invocation.run_id, self.agent_id, exc_info=e)
            code, text = model_code(e) or "agent_failed", f"{type(e).__name__}: {e}"
        execution.emit("error", {"code": code, "message": text[:2000]})

    # Serving.

    def start(self, server: str | None = None, *, listen: str = "127.0.0.1:0", key: str | None = None, timeout: float = 30.0) -> Running:
        """Serves the agent in a thread, and returns once it is registered."""
        return Running(self, server, listen, key, timeout)

    def serve(self, server: str | None = None, *, listen: str = "127.0.0.1:0", key: str | None = None) -> None:
        """Serves the agent until SIGINT or SIGTERM. Port 0 selects a free port.

        A run that is open keeps the address of the agent, so give a fixed port if the agent shall
        continue open runs after a restart of its own.
        """
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
        for name in ("httpx", "httpx2"):  # the second: of the package openai
            logging.getLogger(name).setLevel(logging.WARNING)

        async def main() -> None:
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            await self._serve_until(stop, server, listen, key, lambda url: print(f"registered {self.agent_id} at {url}", flush=True))

        try:
            asyncio.run(main())
        except TroupeError as e:
            raise SystemExit(f"{self.agent_id}: {e}") from None

    async def _serve_until(self, stop: asyncio.Event, server: str | None, listen: str, key: str | None, ready: Callable[[str], None]) -> None:
        if self._auth_env and not os.environ.get(self._auth_env):
            raise TroupeError("invalid_request", f"the variable {self._auth_env} is not set: set it to the secret that the server sends")
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit():
            raise TroupeError("invalid_request", f"listen {listen!r}: want HOST:PORT, such as 127.0.0.1:9001")
        if host.strip("[]") in ("0.0.0.0", "::") and not self._endpoint:
            text = f"listen {listen!r} is no address that the server can call: set endpoint= of @agent or TROUPE_ENDPOINT to one"
            raise TroupeError("invalid_request", text)
        http = Server(self)
        try:
            await http.listen(host.strip("[]"), int(port))
        except OSError as e:
            raise TroupeError("invalid_request", f"cannot listen on {listen}: {e}: choose another port") from e
        bound, number = http.address
        url = self._endpoint or (f"http://[{bound}]:{number}" if ":" in bound else f"http://{bound}:{number}")
        stopped = asyncio.create_task(stop.wait())
        try:
            await self.open(server, key, url)
            assert self.registered is not None and self._registration is not None
            first = asyncio.create_task(self.registered.wait())
            await asyncio.wait({first, self._registration, stopped}, return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            if self.registered.is_set():
                ready(url)
            await asyncio.wait({self._registration, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._registration.done():
                self._registration.result()
        finally:
            stopped.cancel()
            await http.close()
            await self.close()


class Running:
    """An agent that serves in a thread, until stop."""

    def __init__(self, agent: Agent, server: str | None, listen: str, key: str | None, timeout: float) -> None:
        self.agent = agent
        self.endpoint = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._ready = threading.Event()

        def ready(url: str) -> None:
            self.endpoint = url
            self._ready.set()

        def main() -> None:
            asyncio.set_event_loop(self._loop)
            try:
                self._loop.run_until_complete(agent._serve_until(self._stop, server, listen, key, ready))
            except BaseException as e:
                self._error = e
            finally:
                self._ready.set()
                self._loop.close()

        self._thread = threading.Thread(target=main, name=f"agent {agent.agent_id}", daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout):
            self.stop()
            raise Unreachable("server_unreachable", f"{agent.agent_id} was not registered within {timeout:g} s at {server_url(server)}")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stops the agent. Open runs are invoked again when an agent serves at the same address."""
        if self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                pass  # it has just ended
        self._thread.join()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def void(_: object) -> None:
    """Drops a value."""


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(send: SendMessage, status: int, body: Any, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    data = json.dumps(body).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": data})


@overload
def agent(function: Function, /) -> Agent: ...


@overload
def agent(
    agent_id: str | None = None,
    /,
    *,
    description: str | None = None,
    capabilities: Sequence[str] = (),
    code: str | None = None,
    provides: Sequence[Capability] = (),
    skills: Sequence[str] | None = None,
    agent_call: Mapping[str, bool] | None = None,
    memory: Mapping[str, bool | str | Sequence[str]] | None = None,
    concurrency: int = 64,
    invoke_timeout: float | None = None,
    transcript: str | None = None,
    auth_env: str | None = None,
    endpoint: str | None = None,
    server: str | None = None,
    key: str | None = None,
) -> Callable[[Function], Agent]: ...


def agent(first: Any = None, /, **options: Any) -> Any:
    """Makes an agent of a function: `@agent`, or `@agent("name", concurrency=8)`.

    The function gets a Turn, or an AsyncTurn if it is a coroutine function. It returns the answer,
    yields its pieces, or sends them with turn.delta. The description, which models see, defaults
    to the first line of its docstring.
    """
    if callable(first):
        return Agent(first, **options)
    return lambda function: Agent(function, first, **options)



