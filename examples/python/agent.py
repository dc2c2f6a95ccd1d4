#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An external agent that counts words and asks another agent about them.

    python3 agent.py --agent-id scribe --ask helper
"""

import argparse
from collections.abc import Iterator

from troupe import Refusal, Turn, agent

parser = argparse.ArgumentParser(description="External agent that counts words and asks another agent.")
parser.add_argument("--server", default=None, help="server to register with; default: TROUPE_SERVER, then http://127.0.0.1:8283")
parser.add_argument("--listen", default="127.0.0.1:0", help="address to listen on; port 0 selects a free one")
parser.add_argument("--agent-id", default="scribe", help="name of this agent")
parser.add_argument("--ask", default="helper", help="agent to call; empty means none")
parser.add_argument("--auth-env", default=None, help="environment variable TROUPE_AUTH_… with the secret that the server must send")
args = parser.parse_args()


@agent(args.agent_id, capabilities=["WORD_COUNT"], concurrency=8, auth_env=args.auth_env)
def scribe(turn: Turn) -> Iterator[str]:
    """Counts words and asks another agent about them."""
    words = turn.message.split()
    turn.state("counting", {"words": len(words)})
    turn.usage(input_tokens=len(words))
    yield f"I counted {len(words)} word{'' if len(words) == 1 else 's'}. "
    if args.ask:
        turn.state("asking", {"agent_id": args.ask})
        try:
            yield f"The {args.ask} answered: {turn.call(args.ask, turn.message)}"
        except Refusal as refused:  # a failure of the other agent does not fail this run
            yield f"The {args.ask} could not be called ({refused.code}: {refused.message})."


if __name__ == "__main__":
    scribe.serve(args.server, listen=args.listen)
