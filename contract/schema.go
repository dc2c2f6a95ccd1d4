// SPDX-License-Identifier: Apache-2.0

package contract

import _ "embed"

// The JSON Schemas of the envelopes and of the hand-off, for readers of the contract. The server
// checks by its own code, which reports fields and rules; a test compares both.
var (
	//go:embed schemas/request.json
	requestSchema string
	//go:embed schemas/response.json
	responseSchema string
	//go:embed schemas/handoff.json
	handoffSchema string
)

// Schema returns the JSON Schema (2020-12) with a name: request, response or handoff; "" if there is
// none.
func Schema(name string) string {
	switch name {
	case "request":
		return requestSchema
	case "response":
		return responseSchema
	case "handoff":
		return handoffSchema
	}
	return ""
}
