# SPDX-License-Identifier: Apache-2.0
"""An agent for a platform whose protocol is known from its description alone: POST /invoke
answered with the events delta and done, GET /health, and the platform's routes to register,
to invoke another agent, and to read the messages of a session. It knows no run token."""

import http.server
import json
import sys
import urllib.request

PLATFORM = sys.argv[1]


def call(method, path, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(PLATFORM + path, data, dict(headers or {}, **{"Content-Type": "application/json"}), method=method)
    with urllib.request.urlopen(request, timeout=20) as response:
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
        assert self.path == "/invoke" and self.headers["traceparent"], self.path
        assert self.headers["x-run-id"] == body["run_id"] and self.headers["x-session-id"] == body["session_id"]
        assert body["input_message"]["role"] == "user", body
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in self.answer(body, body["input_message"]["content"]):
            self.event("delta", {"text": piece, "run_id": body["run_id"]})
        self.event("done", {"usage": {"tokens": 7}})

    def event(self, name, data):
        self.wfile.write(("event: %s\ndata: %s\n\n" % (name, json.dumps(data))).encode())
        self.wfile.flush()

    def answer(self, body, text):
        headers = {"x-session-id": body["session_id"], "x-run-id": body["run_id"], "traceparent": self.headers["traceparent"]}
        if text.startswith("ask "):
            reply = call("POST", "/v1/agents/helper:invoke", {"agent_id": "helper", "session_id": body["session_id"],
                         "run_id": body["run_id"], "input_message": {"role": "user", "content": text[4:]}}, headers)
            yield "the helper said: " + reply["content"]
        elif text == "store":
            yield call("POST", "/v1/context", {"session_id": body["session_id"], "data": {"kept": True}}, headers)["context_key"]
        elif text == "history":
            given = [m["role"] + ": " + m["content"] for m in body["messages"]]
            page = call("GET", "/v1/sessions/%s/messages?limit=50" % body["session_id"], None, headers)
            read = [m["role"] + ": " + m["content"] for m in page["messages"]]
            yield json.dumps({"given": given, "read": read, "user": body["context"]["user_id"]})
        else:
            yield "noted "
            yield text


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Agent)
answer = call("POST", "/v1/agents/register", {"agent_id": "seedling", "name": "Seedling", "capabilities": ["notes"],
              "endpoint": "http://127.0.0.1:%d" % server.server_port})
assert answer["ok"] is True, answer
assert any(a["agent_id"] == "seedling" for a in call("GET", "/v1/agents")["agents"])
print("registered", flush=True)
server.serve_forever()
