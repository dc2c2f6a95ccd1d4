// SPDX-License-Identifier: Apache-2.0

package tools

import "testing"

// The steps of a run that use memory have the names of the contract between an agent and its runtime; all other
// tools have one name together.
func TestActionsOfTools(t *testing.T) {
	for tool, want := range map[string]string{
		"memory_search": "RequestMemorySearch", "memory_create": "RequestMemoryCreate", "memory_traverse": "RequestMemoryTraverse",
		"memory_forget": "RequestToolCall", "weather.get": "RequestToolCall", "call_agent": "RequestToolCall", "": "RequestToolCall",
	} {
		if got := ActionOf(tool); got != want {
			t.Errorf("%q: got %s, want %s", tool, got, want)
		}
	}
}
