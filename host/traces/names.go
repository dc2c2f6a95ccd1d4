// SPDX-License-Identifier: Apache-2.0

package traces

// The names of the semantic conventions for generative AI, version 0.1.0 of semantic-conventions-genai. Names of this
// program begin with troupe.
const (
	operationName = "gen_ai.operation.name"

	invokeAgent = "invoke_agent"
	chat        = "chat"
	executeTool = "execute_tool"

	agentName      = "gen_ai.agent.name"
	conversationID = "gen_ai.conversation.id"
	providerName   = "gen_ai.provider.name"
	requestModel   = "gen_ai.request.model"
	inputTokens    = "gen_ai.usage.input_tokens"
	outputTokens   = "gen_ai.usage.output_tokens"
	toolName       = "gen_ai.tool.name"
	toolCallID     = "gen_ai.tool.call.id"
	toolType       = "gen_ai.tool.type"
	toolFunction   = "function"

	inputMessages  = "gen_ai.input.messages"
	outputMessages = "gen_ai.output.messages"
	toolArguments  = "gen_ai.tool.call.arguments"
	toolResult     = "gen_ai.tool.call.result"

	errorType   = "error.type"
	serviceName = "service.name"

	runID     = "troupe.run.id"
	interrupt = "troupe.run.interrupted" // what the run waits for when its span ends

	providerTroupe = "troupe"
)
