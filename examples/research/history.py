#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An external agent without any package: it answers a detached call after a while."""

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Agent(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # /health
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:  # /invoke
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        topic = json.loads(body["input_message"]["content"])["input"]["topic"]
        time.sleep(0.9)  # a server that was killed invokes the agent again
        answer = json.dumps({"output": f"people have written about {topic} for 4000 years", "confidence": 0.7})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.wfile.write(f"event: delta\ndata: {json.dumps({'text': answer})}\n\nevent: done\ndata: {{}}\n\n".encode())
        except OSError:
            pass  # nobody reads the answer any longer

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
