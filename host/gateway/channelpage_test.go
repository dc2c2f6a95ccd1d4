// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"slices"
	"testing"
)

// A connection that is lost without a word, as in a tunnel, does not hold a message of the chat page: after 35 s without
// an answer the page opens another one, and sends the message again under its request_id. It does not
// wait when the device goes offline.
func TestSilentConnectionOfThePageIsReplaced(t *testing.T) {
	out := runScript(t, "channel", "channel.js", "")
	var events []string
	if err := json.Unmarshal([]byte(out), &events); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := []string{"connecting", "connection 1: hello", "ready", "connection 1: agent_invoke 1", "after 34 s", "waiting", "connecting",
		"connection 2: hello", "ready", "connection 2: agent_invoke 1", "waiting", "2 connections"}
	if !slices.Equal(events, want) {
		t.Errorf("got  %q\nwant %q", events, want)
	}
}
