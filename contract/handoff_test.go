// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/tools"
)

// Models call the tools that they see others call, so a callee sees text, and no tool that it lacks.
func TestCalleeSeesConversationAsText(t *testing.T) {
	h := HandOver(Work{Session: "s", Request: "How much?", Transcript: []Entry{
		{Author: ByUser, Text: "How much?"},
		{Author: ByTool, Tool: "crm.lookup", Input: `{"id":7}`, Text: `{"price":5}`},
		{Author: ByTool, Tool: "clock", Input: `{}`, Text: `noon`},
		{Author: ByAgent, Text: "It is 5."},
	}}, Callee{Tools: []string{"clock"}})
	want := []Message{
		{"user", "How much?"},
		{"assistant", `(A tool was called with {"id":7} and returned: {"price":5})`},
		{"assistant", `(The tool clock was called with {} and returned: noon)`},
		{"assistant", "It is 5."},
	}
	if !slices.Equal(h.Messages, want) || h.LeftOut != nil {
		t.Errorf("got %+v, left out %v", h.Messages, h.LeftOut)
	}
	if b := string(h.Encode()); strings.Contains(b, "crm") || checkSchema(t, "handoff", []byte(b)) != nil {
		t.Error(b)
	}
}

// Within its bound a callee sees the first message of the user and the last messages, and is told
// how many are missing.
func TestBudgetOfMessages(t *testing.T) {
	talk := func(n int, first Author) (all []Entry) {
		for i := range n {
			all = append(all, Entry{Author: []Author{ByUser, ByAgent}[(i+int(first)+1)%2], Text: fmt.Sprint(i)})
		}
		return all
	}
	for _, c := range []struct {
		transcript []Entry
		limit      int
		want       string // the texts
		leftOut    string
	}{
		{nil, 3, "", ""},
		{talk(3, ByUser), 3, "0 1 2", ""},
		{talk(4, ByUser), 3, "0 2 3", "1 messages of the conversation are left out."},
		{talk(10, ByUser), 3, "0 8 9", "7 messages of the conversation are left out."},
		{talk(10, ByUser), 1, "0", "9 messages of the conversation are left out."},
		{talk(10, ByAgent), 3, "1 8 9", "7 messages of the conversation are left out."},
		{talk(30, ByUser), 0, "0 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29", "10 messages of the conversation are left out."},
	} {
		h := HandOver(Work{Transcript: c.transcript}, Callee{Messages: c.limit})
		var texts []string
		for _, m := range h.Messages {
			texts = append(texts, m.Content)
		}
		if got := strings.Join(texts, " "); got != c.want || strings.Join(h.LeftOut, "|") != c.leftOut {
			t.Errorf("%d of %d: got %q and %q, want %q and %q", c.limit, len(c.transcript), got, h.LeftOut, c.want, c.leftOut)
		}
	}
}

// Large values are references, long texts lack their middle, long lists their beginning.
func TestHandoffIsBounded(t *testing.T) {
	large := jsontext.Value(quote(strings.Repeat("x", inlineBytesMax)))
	many := make([]string, handoffListMax+3)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	h := HandOver(Work{Decisions: many, Findings: many[:1], Assumptions: many[:2], Data: many[:3], History: "h", User: "u",
		Outputs:     []Output{{"stored", large, "ctx-1"}, {"lost", large, ""}, {"small", jsontext.Value(`{"n":1.50}`), "ctx-2"}, {"elsewhere", nil, "ctx-3"}},
		Constraints: []Output{{"budget", jsontext.Value(`1`), ""}, {"region", jsontext.Value(`"EU"`), ""}, {"budget", jsontext.Value(`2`), ""}},
		Transcript:  []Entry{{Author: ByUser, Text: strings.Repeat("é", messageBytesMax)}},
	}, Callee{})
	if got := string(h.Outputs); got != `{"stored":{"ref":"ctx-1","bytes":4098},"lost":null,"small":{"n":1.50},"elsewhere":{"ref":"ctx-3"}}` {
		t.Error(got)
	}
	if got := string(h.Constraints); got != `{"region":"EU","budget":2}` {
		t.Error(got)
	}
	if len(h.Decisions) != handoffListMax || h.Decisions[0] != "3" || len(h.Findings)+len(h.Assumptions)+len(h.Data) != 6 {
		t.Errorf("%d decisions from %s", len(h.Decisions), h.Decisions[0])
	}
	if m := h.Messages[0].Content; len(m) > messageBytesMax+100 || !strings.Contains(m, " bytes left out] ") || strings.Contains(m, "\uFFFD") {
		t.Errorf("a message of %d bytes: %.40q", len(m), m)
	}
	if got := strings.Join(h.LeftOut, " "); got != "The value of lost, 4098 bytes, is left out. The first 3 decisions are left out." {
		t.Error(got)
	}
	if err := checkSchema(t, "handoff", h.Encode()); err != nil {
		t.Error(err)
	}
}

func TestPositions(t *testing.T) {
	for p, want := range map[Position]string{{}: "", {3, 5, "Financial Analysis"}: "Step 3 of 5 (Financial Analysis)", {1, 2, ""}: "Step 1 of 2"} {
		if got := p.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// No value of one step makes a hand-off that the tool for the next step refuses.
func TestHandoffFitsTheToolForCapabilities(t *testing.T) {
	registry := tools.NewRegistry()
	k := actor.Capability{Code: "DOC_GENERATE", Description: "d"}
	agents := tools.NewAgents([]actor.Definition{{Name: "a", Kind: actor.External, Provides: []actor.Capability{k}}})
	for name, value := range map[string]string{
		"number": `{"a":1e400000}`, "depth": strings.Repeat(`{"a":`, 63) + "1" + strings.Repeat("}", 63),
		"depth in arrays": strings.Repeat("[", 900) + strings.Repeat("]", 900), "fits": strings.Repeat("[", 60) + strings.Repeat("]", 60),
	} {
		for _, w := range []Work{{Outputs: []Output{{Name: "x", Value: jsontext.Value(value)}}}, {Constraints: []Output{{Name: "x", Value: jsontext.Value(value)}}}, {Request: strings.Repeat("ä", 200_000)}} {
			h := HandOver(w, Callee{})
			input := `{"capability_code":"DOC_GENERATE","inputs_json":{},"context":` + string(h.Encode()) + `}`
			call := actor.Call{To: actor.ID{Tenant: actor.DefaultTenant, Agent: "asker", Key: "s"}}
			_, result := registry.Plan(tools.ExecutionContext{AgentID: "asker", Call: call, CallChain: []string{}, Agents: agents, Dispatcher: dispatcher.Asks{}},
				actor.Ask{Kind: actor.AskTool, Name: tools.RequestCapability, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(input)}}})
			if result != nil {
				t.Errorf("%s: %v", name, result.Refusal)
			}
			if w.Request == "" && (len(h.LeftOut) == 0) != (name == "fits") {
				t.Errorf("%s: %q", name, h.LeftOut)
			}
		}
	}
}
