// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// numberEvents assigns a run, sequence numbers and times to events.
func numberEvents(events ...runs.Event) []runs.Event {
	for i := range events {
		events[i].Run, events[i].Seq, events[i].At = actor.NewCallID(1, 1, 1), uint64(i+1), actor.Time(i+1)
	}
	return events
}

func llmCallStarted(step uint32) runs.Event {
	return runs.Event{Type: runs.LLMCallStarted, Name: "scripted", Step: step, Left: time.Second, Text: "x"}
}

func streamDelta(step uint32, text string) runs.Event {
	return runs.Event{Type: runs.AgentStreamDelta, Step: step, Text: text}
}

func runDone(text string, warnings ...string) runs.Event {
	return runs.Event{Type: runs.RunDone, Status: actor.Succeeded, Text: text, Warnings: warnings}
}

func TestAnswerPrinter(t *testing.T) {
	for _, c := range []struct {
		name         string
		events       []runs.Event
		text, beside string
	}{
		{"complete stream", numberEvents(llmCallStarted(1), streamDelta(1, "He"), streamDelta(1, "llo"), runDone("Hello")), "Hello\n", ""},
		{"no delta before the end", numberEvents(runDone("Hello", "half of it")), "Hello\n", "warning: half of it"},
		{"answer after tools", numberEvents(llmCallStarted(1), streamDelta(1, "I ask."), llmCallStarted(3), streamDelta(3, "Done."), runDone("Done.")), "I ask.\nDone.\n", ""},
		{"discarded attempt", numberEvents(llmCallStarted(1), streamDelta(1, "He"), runs.Event{Type: runs.Attempt, Attempt: 2, Step: 1, Discards: 1}, streamDelta(1, "Hello"), runDone("Hello")),
			"He\nHello\n", "the text above is invalid; the corrected text follows"},
		{"discarded attempt without output", numberEvents(llmCallStarted(1), runs.Event{Type: runs.Attempt, Attempt: 2, Step: 1}, streamDelta(1, "Hello"), runDone("Hello")), "Hello\n", ""},
		{"final text is longer", numberEvents(llmCallStarted(1), streamDelta(1, "Hel"), runDone("Hello")), "Hello\n", ""},
		{"final text differs", numberEvents(llmCallStarted(1), streamDelta(1, "Hel"), runDone("Good day")), "Hel\nGood day\n", ""},
		{"refused run", numberEvents(llmCallStarted(1), streamDelta(1, "Hel"), runs.Event{Type: runs.RunFailed, Refusal: actor.Refuse(actor.Busy, "full")}), "Hel\n", ""},
		{"approval", numberEvents(streamDelta(1, "Hm"), runs.Event{Type: runs.ApprovalRequired, Name: "pay", Text: "pays 5", Until: 9, Approval: "ap_x"}), "Hm\n",
			"waits for the approval of pay (pays 5); to see its arguments, to approve or to reject it:"},
		{"decision", numberEvents(runs.Event{Type: runs.ApprovalDecision, Name: "pay", Kind: "REJECTED", Principal: "bob", Step: 2, Approval: "ap_x"}), "", "pay: REJECTED by bob"},
		{"expired approval", numberEvents(runs.Event{Type: runs.ApprovalExpired, Name: "pay", Text: "late", Step: 2, Approval: "ap_x"}), "", "pay: the approval has expired: late"},
		{"part of an approval", numberEvents(streamDelta(0, "Hm"), runs.Event{Type: runs.RunPaused}, runs.Event{Type: runs.ApprovalRequired}, runs.Event{Type: runs.ApprovalDecision}, runs.Event{Type: runs.WaitOpened}, runDone("Hm")), "Hm\n\n", "waits for a person; to see its state:"},
		{"parts of an external agent", numberEvents(runs.Event{Type: runs.AgentInvokeStarted}, streamDelta(0, "He"), runs.Event{Type: runs.LLMCallStarted}, streamDelta(0, "llo"), runDone("Hello")), "Hello\n", ""},
		{"waiting run", numberEvents(streamDelta(1, "Hm"), runs.Event{Type: runs.WaitOpened, Name: "go", Step: 2, Until: 9}), "Hm\n", "waits for the signal go; to continue:"},
	} {
		var teller answerPrinter
		var text, beside strings.Builder
		for i := range c.events {
			a, b := teller.render(&c.events[i])
			text.WriteString(a)
			beside.WriteString(b)
		}
		if text.String() != c.text || !strings.Contains(beside.String(), c.beside) || c.beside == "" && beside.Len() > 0 {
			t.Errorf("%s: text %q, note %q; want %q, %q", c.name, text.String(), beside.String(), c.text, c.beside)
		}
	}
}

// newBreakingServer returns a server that closes each stream after the given number of
// events. It records the requests in heads.
func newBreakingServer(t *testing.T, events []runs.Event, after int, heads *[]string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*heads = append(*heads, r.Method+" "+r.URL.Path+" "+r.Header.Get("Last-Event-ID")+r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		fmt.Fprint(w, "retry: 1\n\n: ping\n\n")
		seen, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
		for _, e := range events[seen:min(seen+after, len(events))] {
			_, _ = w.Write(runs.Frame{Name: e.Type.String(), ID: strconv.FormatUint(e.Seq, 10), Data: string(runs.Encode(e))}.Append(nil))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestStreamResumesAfterDisconnect(t *testing.T) {
	events := numberEvents(llmCallStarted(1), streamDelta(1, "He"), streamDelta(1, "llo"), runDone("Hello"))
	for after := 1; after <= len(events); after++ {
		var heads []string
		s := newBreakingServer(t, events, after, &heads)
		var out, stderr bytes.Buffer
		code := run([]string{"call", "helper", "hi", "--stream", "--server", s.URL, "--key", "troupe_k"}, streams{&out, &stderr})
		if code != 0 || out.String() != "Hello\n" || stderr.Len() > 0 {
			t.Errorf("break after %d events: exit code %d, stdout %q, stderr %q", after, code, out.String(), stderr.String())
		}
		want := []string{"POST /v1/agents/helper/messages Bearer troupe_k"}
		for n := after; n < len(events); n += after {
			want = append(want, fmt.Sprintf("GET /v1/runs/%s/events %dBearer troupe_k", events[0].Run, n))
		}
		if strings.Join(heads, "\n") != strings.Join(want, "\n") {
			t.Errorf("break after %d events: requests\n%s\nwant\n%s", after, strings.Join(heads, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestStreamStopsWithoutProgress(t *testing.T) {
	var heads []string
	s := newBreakingServer(t, numberEvents(llmCallStarted(1), streamDelta(1, "He")), 1, &heads)
	var out, stderr bytes.Buffer
	code := run([]string{"call", "helper", "hi", "--stream", "--server", s.URL}, streams{&out, &stderr})
	if code != exitFailed || !strings.Contains(stderr.String(), "--follow --after 2") || len(heads) < reconnectsMax {
		t.Errorf("exit code %d, stderr %q after %d requests", code, stderr.String(), len(heads))
	}
}

func TestStreamOfFailedRun(t *testing.T) {
	var heads []string
	s := newBreakingServer(t, numberEvents(llmCallStarted(1), runs.Event{Type: runs.RunFailed, Refusal: actor.Refuse(actor.Budget, "spent")}), 9, &heads)
	var out, stderr bytes.Buffer
	code := run([]string{"call", "helper", "hi", "--stream", "--server", s.URL}, streams{&out, &stderr})
	if code != exitFailed || !strings.Contains(stderr.String(), "budget_exceeded: spent (see: troupe runs show ") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
	out.Reset()
	run([]string{"call", "helper", "hi", "--stream", "--json", "--server", s.URL}, streams{&out, &stderr})
	if lines := strings.Count(out.String(), "\n"); lines != 2 {
		t.Errorf("want 2 lines of JSON, got %d: %s", lines, out.String())
	}
}

// The stream of the user of an app ends with a part of its last event.
func TestStreamOfFailedRunShowsPart(t *testing.T) {
	id := actor.NewCallID(1, 1, 1)
	event := fmt.Sprintf(`{"run_id":%q,"seq":2,"event_id":"%s:2","ts":"2026-01-01T00:00:00.000000000Z","type":"run_failed","message":"It could not be answered.","payload":{"error":{"code":"budget_exceeded","type":"BudgetExceeded"}}}`, id, id)
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; r.Method != http.MethodPost {
			http.Error(w, "the key lacks the scope read", http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Run-Id", id.String())
		fmt.Fprintf(w, "data: %s\n\n", event)
	}))
	defer s.Close()
	var out, stderr bytes.Buffer
	code := run([]string{"call", "helper", "hi", "--stream", "--server", s.URL}, streams{&out, &stderr})
	if code != exitFailed || asked != 1 || !strings.Contains(stderr.String(), "budget_exceeded: "+notAnswered+" (see: troupe runs show ") {
		t.Errorf("exit code %d after %d requests, stderr %q", code, asked, stderr.String())
	}
	code = run([]string{"call", "helper", "hi", "--stream", "--json", "--server", s.URL}, streams{&out, &stderr})
	if code != exitFailed || out.String() != event+"\n" {
		t.Errorf("exit code %d, printed %q, received %q", code, out.String(), event)
	}
}

func TestStreamProblemResponse(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(404)
		fmt.Fprint(w, `{"title":"x","detail":"no agent is named helper","code":"agent_not_found"}`)
	}))
	defer s.Close()
	var out, stderr bytes.Buffer
	code := run([]string{"call", "helper", "hi", "--stream", "--server", s.URL}, streams{&out, &stderr})
	if code != exitFailed || !strings.Contains(stderr.String(), "agent_not_found: no agent is named helper") {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}
