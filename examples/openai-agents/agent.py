#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent of the OpenAI Agents SDK as an agent. Its models and tools are those of the server, and other agents.

    pip install ./sdk/python openai-agents
    python3 agent.py
"""

import argparse
import json
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

from troupe import AsyncTurn, ToolFailed, agent

parser = argparse.ArgumentParser(description="An agent of the OpenAI Agents SDK as an agent.")
parser.add_argument("--server", default=None, help="server to register with; default: TROUPE_SERVER, then http://127.0.0.1:8283")
parser.add_argument("--listen", default="127.0.0.1:0", help="address to listen on; port 0 selects a free one")
parser.add_argument("--model", default="scripted", help="model of the server; the default needs no network")
args = parser.parse_args()


@agent("treasurer")
async def treasurer(turn: AsyncTurn) -> str:
    """Pays and asks, as an agent of the OpenAI Agents SDK."""

    @function_tool
    async def transfer(to: str, amount: float) -> str:
        """Sends an amount in euros to a person."""
        try:
            return json.dumps(await turn.tool.invoke("payments.transfer", {"to": to, "amount": amount}))
        except ToolFailed as failed:  # a rejection is a result for the model
            return str(failed)

    @function_tool
    async def ask(agent_id: str, message: str) -> str:
        """Asks another agent."""
        return (await turn.call(agent_id, message)).text

    conversation: Any = [{"role": m.role, "content": m.content} for m in turn.messages] + [{"role": "user", "content": turn.message}]
    async with AsyncOpenAI(**turn.openai) as client:
        model = OpenAIChatCompletionsModel(args.model, client)
        assistant = Agent(name="treasurer", instructions="You make payments and ask others.", tools=[transfer, ask], model=model)
        result = await Runner.run(assistant, conversation, run_config=RunConfig(tracing_disabled=True))
    return str(result.final_output)


if __name__ == "__main__":
    treasurer.serve(args.server, listen=args.listen)
