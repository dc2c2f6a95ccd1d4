# SPDX-License-Identifier: Apache-2.0
"""A real server for tests, and pytest fixtures that start it.

The binary is TROUPE_BIN, or `troupe` in PATH. The package is a pytest plugin, so a test takes the
fixture by its name:

    def test_echo(troupe_server):
        with echo.start(troupe_server.url):
            assert troupe_server.client.call("echo", "hi").text == "hi"
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from ._client import Client
from ._errors import TroupeError

START_SECONDS = 30.0


def find_binary() -> str:
    """Returns the path of the binary, or raises an error that says how to get it."""
    named = os.environ.get("TROUPE_BIN")
    if named:
        if not os.access(named, os.X_OK):
            raise TroupeError("program_missing", f"TROUPE_BIN is {named}, which is no program")
        return str(Path(named).resolve())
    found = shutil.which("troupe")
    if found is None:
        raise TroupeError("program_missing", "no program troupe in PATH")
    return found


class TroupeServer:
    """A server process on loopback with a data folder of its own. It needs no key.

    agents is a folder with files of agents and tools, config a configuration file. After kill or
    stop, start continues with the same address and data.
    """

    def __init__(self, folder: str | Path, *, agents: str | Path | None = None, config: str | Path | None = None, flags: Sequence[str] = ()) -> None:
        self.folder = Path(folder)
        self.url = ""
        self._flags = [f"--data={self.folder / 'data'}", "--log-level=error", "--grace=1s", "--ballast-mib=0"]
        self._flags += [f"--agents={agents}"] * (agents is not None) + [f"--config={config}"] * (config is not None) + list(flags)
        self._binary = find_binary()
        self._process: subprocess.Popen[str] | None = None
        self._client: Client | None = None

    def start(self) -> None:
        """Starts the server and waits until it is ready."""
        listen = self.url.removeprefix("http://") or "127.0.0.1:0"
        env = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_") or k.startswith("TROUPE_AUTH_")}
        log = open(self.folder / "server.log", "a")
        with log:
            command = [self._binary, "serve", f"--listen={listen}", *self._flags]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        line = self._first_line(self._process)
        if not line.startswith("http://"):
            self.kill()
            raise TroupeError("server_unreachable", f"{' '.join(command)} did not start:\n{self.log()[-2000:]}")
        self.url = line

    @staticmethod
    def _first_line(process: subprocess.Popen[str]) -> str:
        out: IO[str] | None = process.stdout
        assert out is not None
        timer = threading.Timer(START_SECONDS, process.kill)
        timer.start()
        try:
            return out.readline().strip()
        finally:
            timer.cancel()

    def log(self) -> str:
        """Returns the log of the server."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def client(self) -> Client:
        """A client of the server."""
        if self._client is None:
            self._client = Client(self.url, key="")
        return self._client

    def kill(self) -> None:
        """Kills the server as kill -9 does."""
        self._end(subprocess.Popen.kill)

    def stop(self) -> None:
        """Stops the server in order."""
        self._end(subprocess.Popen.terminate)

    def restart(self) -> None:
        """Kills the server and starts it again."""
        self.kill()
        self.start()

    def _end(self, how: Callable[[subprocess.Popen[str]], None]) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        how(process)
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def close(self) -> None:
        """Stops the server and closes the client."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self.stop()

    def __enter__(self) -> TroupeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Factory = Callable[..., TroupeServer]


@pytest.fixture
def troupe_servers() -> Iterator[Factory]:
    """Starts servers with agents=, config= and flags= of your choice; they stop after the test."""
    running: list[TroupeServer] = []
    with tempfile.TemporaryDirectory(prefix="troupe-test-") as folder:

        def start(
            *, agents: str | Path | None = None, config: str | Path | None = None, flags: Sequence[str] = ()
        ) -> TroupeServer:
            own = Path(folder) / str(len(running))
            own.mkdir()
            try:
                server = TroupeServer(own, agents=agents, config=config, flags=flags)
                server.start()
            except TroupeError as e:
                pytest.fail(str(e), pytrace=False)
            running.append(server)
            return server

        yield start
        for server in reversed(running):
            server.close()


@pytest.fixture
def troupe_server(troupe_servers: Factory) -> TroupeServer:
    """A server without agents, stopped after the test."""
    return troupe_servers()
