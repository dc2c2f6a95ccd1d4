# SPDX-License-Identifier: Apache-2.0
"""An agent for a platform whose protocol is known from its description alone. It keeps nothing between two
invocations: of a message such as "20,30" it pays each amount, in parallel, in another order whenever it is invoked
again. Of "41+" it pays one more with each invocation. It prints what it does, a line each."""

import http.server
import json
import sys
import threading
import urllib.request

PLATFORM = sys.argv[1]
invocations = {}  # by message
printing = threading.Lock()


def say(*words):
    with printing:
        print(*words, flush=True)


def call(method, path, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(PLATFORM + path, data, dict(headers or {}, **{"Content-Type": "application/json"}), method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class Agent(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        text = body["input_message"]["content"]
        times = invocations[text] = invocations.get(text, 0) + 1
        say("invoked", text)
        amounts = [int(text[:-1]) + times - 1] if text.endswith("+") else [int(a) for a in text.split(",")]
        turn = times % len(amounts)
        receipts = {}
        threads = [threading.Thread(target=self.pay, args=(body, amount, receipts)) for amount in amounts[turn:] + amounts[:turn]]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if len(receipts) < len(amounts):
            return  # the connection to the platform was lost, and so is this invocation
        self.event("delta", {"text": "paid " + ", ".join(str(receipts[a]) for a in amounts)})
        self.event("done", {"usage": {"tokens": 7}})

    def event(self, name, data):
        self.wfile.write(("event: %s\ndata: %s\n\n" % (name, json.dumps(data))).encode())
        self.wfile.flush()

    def pay(self, body, amount, receipts):
        headers = {"x-session-id": body["session_id"], "x-run-id": body["run_id"], "traceparent": self.headers["traceparent"]}
        try:
            answer = call("POST", "/v1/tools/payments.transfer:invoke", {"run_id": body["run_id"], "args": {"amount": amount}}, headers)
            say("asked", body["input_message"]["content"], amount)
            while answer["status"] == "pending":
                answer = call("POST", "/v1/tool_calls/%s:wait?timeout_ms=30000" % answer["tool_call_id"], None, headers)
            receipts[amount] = answer["result"]["receipt"]
        except (OSError, ValueError, KeyError, http.client.HTTPException) as lost:
            say("lost", type(lost).__name__)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Agent)
call("POST", "/v1/agents/register", {"agent_id": "payer", "name": "Payer", "capabilities": [], "endpoint": "http://127.0.0.1:%d" % server.server_port})
say("registered")
server.serve_forever()
