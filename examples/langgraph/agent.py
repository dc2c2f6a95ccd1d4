#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A graph of LangGraph as an agent. Its tools are those of the server, and other agents.

    pip install ./sdk/python langgraph
    python3 agent.py
"""

import argparse
import json
import re
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from troupe import AsyncTurn, ToolFailed, agent


class Scripted(BaseChatModel):
    """A model without a network: each line `use TOOL JSON` of the message is a call of a tool.

    Replace it by a model of your provider, such as ChatOpenAI of langchain-openai.
    """

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> "Scripted":
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        last = max(i for i, m in enumerate(messages) if isinstance(m, HumanMessage))
        lines = re.findall(r"^use (\w+) (\{.*\})$", str(messages[last].content), re.M)
        results = [str(m.content) for m in messages[last + 1 :] if m.type == "tool"]
        if len(results) < len(lines):
            name, args = lines[len(results)]
            answer = AIMessage("", tool_calls=[{"name": name, "args": json.loads(args), "id": f"call_{len(messages)}"}])
        else:
            answer = AIMessage("\n".join(results) or f"You said: {messages[last].content}")
        return ChatResult(generations=[ChatGeneration(message=answer)])


@agent("graph")
async def graph(turn: AsyncTurn) -> str:
    """Pays and asks, as a graph of LangGraph."""

    @tool
    async def transfer(to: str, amount: float) -> str:
        """Sends an amount in euros to a person."""
        try:
            return json.dumps(await turn.tool.invoke("payments.transfer", {"to": to, "amount": amount}))
        except ToolFailed as failed:  # a rejection is a result for the model
            return str(failed)

    @tool
    async def ask(agent_id: str, message: str) -> str:
        """Asks another agent."""
        return (await turn.call(agent_id, message)).text

    tools = [transfer, ask]
    model = Scripted().bind_tools(tools)

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_edge("tools", "think")
    conversation: Any = [(m.role, m.content) for m in turn.messages] + [("user", turn.message)]
    result = await builder.compile().ainvoke({"messages": conversation})
    return str(result["messages"][-1].content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A graph of LangGraph as an agent.")
    parser.add_argument("--server", default=None, help="server to register with; default: TROUPE_SERVER, then http://127.0.0.1:8283")
    parser.add_argument("--listen", default="127.0.0.1:0", help="address to listen on; port 0 selects a free one")
    args = parser.parse_args()
    graph.serve(args.server, listen=args.listen)
