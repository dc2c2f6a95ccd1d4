#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An external agent: an HTTP service that uses only the standard library.

It registers itself, sends periodic heartbeats, and answers each message with a
stream of events. During a run it calls another agent on behalf of that run. The
server derives the caller, the depth and the time left from the token of the run.

    python3 agent.py --server http://127.0.0.1:8283 --agent-id scribe --ask helper
"""

import argparse
import hmac
import http.server
import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

BODY_BYTES_MAX = 8 << 20  # maximum size of a request body
HEARTBEAT_SECONDS = 15  # the server calls no agent that was silent for 45 seconds
CALL_SECONDS = 300  # exceeds the server's longest call timeout


class Troupe:
    """Client for the part of the server's API that this agent uses."""

    def __init__(self, url, key):
        self.url, self.key = url.rstrip("/"), key

    def post(self, path, body, headers=None, timeout=10):
        headers = dict(headers or {}, **{"Content-Type": "application/json"})
        if self.key and "x-run-token" not in headers:
            headers["Authorization"] = "Bearer " + self.key
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as refused:
            problem = json.loads(refused.read() or b"{}")
            raise Refused(problem.get("code", str(refused.code)), problem.get("detail", refused.reason)) from None
        except (urllib.error.URLError, OSError) as lost:
            raise Refused("agent_unavailable", "%s: %s" % (self.url, getattr(lost, "reason", lost))) from None

    def register(self, agent_id, endpoint, auth_env):
        body = {"agent_id": agent_id, "endpoint": endpoint, "retry": "safe", "concurrency": 8,
                "description": "Counts words and asks another agent about them.", "capabilities": ["WORD_COUNT"]}
        if auth_env:
            body["auth"] = {"env": auth_env}
        return self.post("/v1/agents/register", body)

    def heartbeat(self, agent_id):
        return self.post("/v1/agents/%s:heartbeat" % urllib.parse.quote(agent_id), {})

    def call_agent(self, agent_id, message, token):
        """Calls another agent on behalf of the run that the token belongs to."""
        path = "/v1/agents/%s:invoke" % urllib.parse.quote(agent_id)
        return self.post(path, {"message": message}, {"x-run-token": token}, CALL_SECONDS)["content"]


class Refused(Exception):
    """A refusal by the server or by another agent."""

    def __init__(self, code, detail):
        super().__init__("%s: %s" % (code, detail))
        self.code, self.detail = code, detail


def answer(message, ask, call_agent):
    """Implements the agent: yields events as pairs of name and data."""
    words = message.split()
    yield "state", {"state": "counting", "detail": {"words": len(words)}}
    yield "delta", {"text": "I counted %d word%s. " % (len(words), "" if len(words) == 1 else "s")}
    if ask:
        yield "state", {"state": "asking", "detail": {"agent_id": ask}}
        try:
            reply = call_agent(ask, message)
            yield "delta", {"text": "The %s answered: " % ask}
            yield "delta", {"text": reply}
        except Refused as refused:  # a failure of the other agent does not fail this run
            yield "delta", {"text": "The %s could not be called (%s)." % (ask, refused)}
    yield "done", {"usage": {"tokens": len(words)}}


class Handler(http.server.BaseHTTPRequestHandler):
    troupe, ask, secret = None, "", ""  # set by main
    timeout = 60

    def do_GET(self):
        if self.path != "/health":
            return self.respond(404, {"code": "not_found"})
        self.respond(200, {"status": "ok"})

    def do_POST(self):
        if self.path != "/invoke":
            return self.respond(404, {"code": "not_found"})
        if self.secret and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), b"Bearer " + self.secret.encode()):
            return self.respond(401, {"code": "unauthorized"})
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= BODY_BYTES_MAX:
                return self.respond(413, {"code": "too_large"})
            message = json.loads(self.rfile.read(length))["input_message"]["content"]
        except (ValueError, KeyError, TypeError):
            return self.respond(400, {"code": "invalid_request", "message": "want a JSON object with input_message.content"})
        token = self.headers.get("x-run-token", "")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for name, data in answer(message, self.ask, lambda agent, text: self.troupe.call_agent(agent, text, token)):
                self.wfile.write(("event: %s\ndata: %s\n\n" % (name, json.dumps(data))).encode())
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has closed the connection

    def respond(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass  # the run events on the server record all messages


def main():
    parser = argparse.ArgumentParser(description="External agent that counts words and asks another agent.")
    parser.add_argument("--server", default=os.environ.get("TROUPE_SERVER") or "http://127.0.0.1:8283", help="server to register with")
    parser.add_argument("--listen", default="127.0.0.1:0", help="address to listen on; port 0 selects a free one")
    parser.add_argument("--agent-id", default="scribe", help="name of this agent")
    parser.add_argument("--ask", default="helper", help="agent to call; empty means none")
    parser.add_argument("--auth-env", default="", help="environment variable TROUPE_AUTH_… with the secret that the server must send")
    args = parser.parse_args()

    host, _, port = args.listen.rpartition(":")
    service = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    service.daemon_threads = True
    troupe = Troupe(args.server, os.environ.get("TROUPE_KEY", ""))
    Handler.troupe, Handler.ask = troupe, args.ask
    Handler.secret = os.environ.get(args.auth_env, "") if args.auth_env else ""
    if args.auth_env and not Handler.secret:
        sys.exit("agent: environment variable %s is not set" % args.auth_env)
    endpoint = "http://%s:%d" % service.server_address[:2]
    threading.Thread(target=service.serve_forever, daemon=True).start()

    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    known = False
    while True:
        try:
            if known:
                troupe.heartbeat(args.agent_id)
            else:
                troupe.register(args.agent_id, endpoint, args.auth_env)
                print("registered %s at %s" % (args.agent_id, endpoint), flush=True)
                known = True
        except Refused as refused:
            known = known and refused.code == "agent_unavailable"  # after any other refusal, register again
            print("agent: %s" % refused, file=sys.stderr, flush=True)
        if stop.wait(HEARTBEAT_SECONDS if known else 1):
            return


if __name__ == "__main__":
    main()
