# SPDX-License-Identifier: Apache-2.0
# Reads an event stream with the standard library and prints the ID and name of each event.
import sys
import urllib.request

url, after = sys.argv[1], sys.argv[2]
headers = {"Accept": "text/event-stream"}
if after != "0":
    headers["Last-Event-ID"] = after
with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as response:
    event = {}
    for line in response:
        line = line.decode().rstrip("\r\n")
        if not line:
            if "data" in event:
                print(event.get("id"), event.get("event"), flush=True)
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value
