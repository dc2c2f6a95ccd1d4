#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A graph of LangGraph as an agent. Its models and tools are those of the server, and other agents.

    pip install ./sdk/python langgraph langchain-openai
    python3 agent.py
"""

import argparse
import json
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from troupe import AsyncTurn, ToolFailed, agent

parser = argparse.ArgumentParser(description="A graph of LangGraph as an agent.")
parser.add_argument("--server", default=None, help="server to register with; default: TROUPE_SERVER, then http://127.0.0.1:8283")
parser.add_argument("--listen", default="127.0.0.1:0", help="address to listen on; port 0 selects a free one")
parser.add_argument("--model", default="scripted", help="model of the server; the default needs no network")
args = parser.parse_args()


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
    model = ChatOpenAI(model=args.model, **turn.openai).bind_tools(tools)

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
    graph.serve(args.server, listen=args.listen)
