# SPDX-License-Identifier: Apache-2.0
# A client of the channel protocol with the package websockets, by docs/channel.md. Its connections are cut at
# random bytes. It prints each message of its session once, behind "m ".
import contextlib
import json
import sys
import time
import uuid

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

url, key, session, device = sys.argv[1], sys.argv[2], "s1", "python"


class Channel:
    def __init__(self):
        self.ws, self.ready, self.cursor, self.held, self.requests, self.tools = None, False, "", [], {}, set()

        self.stack = contextlib.ExitStack()

    def close(self):
        try:
            self.stack.close()
        except (OSError, EOFError, WebSocketException):
            pass  # it was cut

    def open(self):
        while True:
            try:
                self.held, self.ready = [], False
                self.close()
                self.ws = self.stack.enter_context(connect(url, subprotocols=["troupe.v1+json"], open_timeout=10, close_timeout=1))
                hello = {"type": "hello", "api_key": key, "device_id": device, "resume": {"session_id": session, "after": self.cursor}}
                self.ws.send(json.dumps(hello))
                return
            except (OSError, EOFError, WebSocketException):
                time.sleep(0.05)

    def send(self, kind, **fields):
        request = {"type": kind, "request_id": str(uuid.uuid4()), **fields}
        self.requests[request["request_id"]] = request
        try:
            if self.ready:
                self.ws.send(json.dumps(request))
        except (OSError, EOFError, WebSocketException):
            pass  # sent again behind the next hello
        return request["request_id"]

    def next(self):
        """Returns the next message of the session, or a request of a tool."""
        while True:
            if not self.ws:
                self.open()
            try:
                text = self.ws.recv(timeout=60)
            except (OSError, EOFError, WebSocketException):
                self.ws, self.ready = None, False
                continue
            m = json.loads(text)
            if m.get("state") == "READY":
                self.ready = True
                for request in self.requests.values():
                    try:
                        self.ws.send(json.dumps(request))
                    except (OSError, EOFError, WebSocketException):
                        break
            elif m.get("request_id") in self.requests and (m.get("state") == "ACCEPTED" or m["type"] == "error"):
                request = self.requests.pop(m["request_id"])
                if m["type"] == "error":
                    sys.exit(f"{request} got {m}")
            elif m["type"] == "tool_request":
                if m["tool_call_id"] not in self.tools:
                    self.tools.add(m["tool_call_id"])
                    return m
            elif "run_id" not in m or (m["type"] == "run_started" and "cursor" not in m):
                if m["type"] == "error" and m["code"] != "session_not_found":
                    sys.exit(f"got {m}")
            else:
                self.held.append((text, m))
                if "cursor" in m:
                    self.cursor = m["cursor"]
                    for one, _ in self.held:
                        print("m", one, flush=True)
                    self.held = []
                    return m  # the last message of its event

    def until(self, kind):
        while True:
            m = self.next()
            if m["type"] == kind:
                return m
            if m["type"] == "error" and kind != "error":
                sys.exit(f"want {kind}, got {m}")

    def invoke(self, agent, content):
        self.send("agent_invoke", session_id=session, agent_id=agent, message={"role": "user", "content": content})
        return self.until("run_started")["run_id"]


def ask(word):
    print(word, flush=True)
    return sys.stdin.readline().strip()


c = Channel()
while True:
    c.invoke("streamer", "400")
    c.until("done")
    if ask("cuts") == "true":
        break
c.invoke("concierge", 'use user.pay {"amount": 20}')
asked = c.until("approval_required")
c.send("approval_decision", run_id=asked["run_id"], approval_id=asked["approval_id"], decision="approve", reason="asked Anna")
tool = c.until("tool_request")
assert tool["args"] == {"amount": 20}, tool
c.send("tool_result", run_id=tool["run_id"], tool_call_id=tool["tool_call_id"], ok=True, result={"paid": True})
c.until("done")
run = c.invoke("streamer", "endless")
c.until("delta")
c.send("cancel_run", run_id=run)
assert c.until("error")["code"] == "cancelled"
c.invoke("streamer", "hold")
c.until("delta")
ask("restart")
while c.next()["type"] != "delta":  # the agent is asked again
    pass
ask("release")
c.until("done")
c.close()
