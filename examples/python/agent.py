#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent that is an HTTP service of its own, with the standard library alone.

It registers itself, says every few seconds that it is there, and answers each
message that it is handed as a stream of events. On the way it asks another
agent, in the name of the run that it works for: the server knows by the run's
token who asks, how deep, and how much time is left.

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

BODY_BYTES_MAX = 8 << 20  # of what we are handed
HEARTBEAT_SECONDS = 15  # after 45 without a word the server counts us as ill
CALL_SECONDS = 300  # longer than any agent may be waited for


class Troupe:
    """The server, as far as this agent needs it."""

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
                "description": "Counts words, and asks another agent about them.", "capabilities": ["WORD_COUNT"]}
        if auth_env:
            body["auth"] = {"env": auth_env}
        return self.post("/v1/agents/register", body)

    def heartbeat(self, agent_id):
        return self.post("/v1/agents/%s:heartbeat" % urllib.parse.quote(agent_id), {})

    def call_agent(self, agent_id, message, token):
        """Asks another agent on behalf of the run that the token is of."""
        path = "/v1/agents/%s:invoke" % urllib.parse.quote(agent_id)
        return self.post(path, {"message": message}, {"x-run-token": token}, CALL_SECONDS)["content"]


class Refused(Exception):
    """What the server, or another agent, says no with."""

    def __init__(self, code, detail):
        super().__init__("%s: %s" % (code, detail))
        self.code, self.detail = code, detail


def answer(message, ask, call_agent):
    """The agent itself: yields events, as names with their data."""
    words = message.split()
    yield "state", {"state": "counting", "detail": {"words": len(words)}}
    yield "delta", {"text": "I counted %d word%s. " % (len(words), "" if len(words) == 1 else "s")}
    if ask:
        yield "state", {"state": "asking", "detail": {"agent_id": ask}}
        try:
            said = call_agent(ask, message)
            yield "delta", {"text": "The %s says: " % ask}
            yield "delta", {"text": said}
        except Refused as refused:  # another agent's failure is not ours
            yield "delta", {"text": "The %s could not be asked (%s)." % (ask, refused)}
    yield "done", {"usage": {"tokens": len(words)}}


class Handler(http.server.BaseHTTPRequestHandler):
    troupe, ask, secret = None, "", ""  # set by main
    timeout = 60

    def do_GET(self):
        if self.path != "/health":
            return self.say(404, {"code": "not_found"})
        self.say(200, {"status": "ok"})

    def do_POST(self):
        if self.path != "/invoke":
            return self.say(404, {"code": "not_found"})
        if self.secret and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), b"Bearer " + self.secret.encode()):
            return self.say(401, {"code": "unauthorized"})
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 <= length <= BODY_BYTES_MAX:
                return self.say(413, {"code": "too_large"})
            message = json.loads(self.rfile.read(length))["input_message"]
        except (ValueError, KeyError, TypeError):
            return self.say(400, {"code": "invalid_request", "message": "want a JSON object with input_message"})
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
            pass  # nobody wants the answer any more

    def say(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass  # the server's run events say what was asked and answered


def main():
    parser = argparse.ArgumentParser(description="An external agent that counts words and asks another agent.")
    parser.add_argument("--server", default=os.environ.get("TROUPE_SERVER") or "http://127.0.0.1:8283", help="the server to register with")
    parser.add_argument("--listen", default="127.0.0.1:0", help="where to answer; port 0 takes a free one")
    parser.add_argument("--agent-id", default="scribe", help="how to be called")
    parser.add_argument("--ask", default="helper", help="which agent to ask; empty: none")
    parser.add_argument("--auth-env", default="", help="the variable TROUPE_AUTH_… that holds a secret which the server has to show")
    args = parser.parse_args()

    host, _, port = args.listen.rpartition(":")
    service = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    service.daemon_threads = True
    troupe = Troupe(args.server, os.environ.get("TROUPE_KEY", ""))
    Handler.troupe, Handler.ask = troupe, args.ask
    Handler.secret = os.environ.get(args.auth_env, "") if args.auth_env else ""
    if args.auth_env and not Handler.secret:
        sys.exit("agent: the variable %s is not set" % args.auth_env)
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
            known = known and refused.code == "agent_unavailable"  # forgotten: register again
            print("agent: %s" % refused, file=sys.stderr, flush=True)
        if stop.wait(HEARTBEAT_SECONDS if known else 1):
            return


if __name__ == "__main__":
    main()
