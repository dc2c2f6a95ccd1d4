# SPDX-License-Identifier: Apache-2.0
"""The tests use bin/troupe of this checkout unless TROUPE_BIN names another program."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

if "TROUPE_BIN" not in os.environ and (ROOT / "bin" / "troupe").exists():
    os.environ["TROUPE_BIN"] = str(ROOT / "bin" / "troupe")


class Ledger:
    """A payment service: it appends each request that it performs to a ledger of its own."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []  # idempotency key and body
        self.requested = threading.Event()
        self.gate = threading.Event()  # a payment is answered once it is set
        self.gate.set()
        ledger = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                ledger.entries.append((self.headers.get("Idempotency-Key", ""), body))
                receipt = len(ledger.entries)
                ledger.requested.set()
                ledger.gate.wait(30)
                data = b'{"receipt":%d}' % receipt
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/payments"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.gate.set()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    service = Ledger()
    yield service
    service.close()
