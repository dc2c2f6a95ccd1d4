#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent of the OpenAI Agents SDK as an agent. Its tools are those of the server, and other agents.

    pip install ./sdk/python openai-agents
    python3 agent.py
"""

import argparse
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from troupe import AsyncTurn, ToolFailed, agent


class Scripted(Model):
    """A model without a network: each line `use TOOL JSON` of the message is a call of a tool.

    Replace it by the name of a model: Agent(model="…").
    """

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        last = max(i for i, item in enumerate(items) if item.get("role") == "user")
        lines = re.findall(r"^use (\w+) (\{.*\})$", str(items[last]["content"]), re.M)
        results = [str(item["output"]) for item in items[last + 1 :] if item.get("type") == "function_call_output"]
        output: Any
        if len(results) < len(lines):
            name, args = lines[len(results)]
            output = ResponseFunctionToolCall(type="function_call", call_id=f"call_{len(items)}", name=name, arguments=args)
        else:
            text = ResponseOutputText(type="output_text", text="\n".join(results) or f"You said: {items[last]['content']}", annotations=[])
            output = ResponseOutputMessage(id="answer", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("the example waits for whole answers")


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

    assistant = Agent(name="treasurer", instructions="You make payments and ask others.", tools=[transfer, ask], model=Scripted())
    conversation: Any = [{"role": m.role, "content": m.content} for m in turn.messages] + [{"role": "user", "content": turn.message}]
    result = await Runner.run(assistant, conversation, run_config=RunConfig(tracing_disabled=True))
    turn.usage(result.context_wrapper.usage.input_tokens, result.context_wrapper.usage.output_tokens)
    return str(result.final_output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An agent of the OpenAI Agents SDK as an agent.")
    parser.add_argument("--server", default=None, help="server to register with; default: TROUPE_SERVER, then http://127.0.0.1:8283")
    parser.add_argument("--listen", default="127.0.0.1:0", help="address to listen on; port 0 selects a free one")
    args = parser.parse_args()
    treasurer.serve(args.server, listen=args.listen)
