// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// An idempotency key applies to one target: a request with the same key to
// another target is not a repeat.
func TestIdempotencyKeyIsScopedToTarget(t *testing.T) {
	d := startGateway(t)
	for _, name := range []string{"one", "two"} {
		d.createAgent(name)
	}
	for _, name := range []string{"one", "two", "two"} {
		if status, _, body := d.do("DELETE", "/v1/agents/"+name, "", "Idempotency-Key", "job-7"); name == "one" && status != 200 || status == 200 && !strings.Contains(body, name) {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if status, _, body := d.do("GET", "/v1/agents/"+name, ""); status != 404 {
			t.Errorf("%s still exists: %d %s", name, status, body)
		}
	}
	var ms [2]messageResponse
	for i := range ms { // in one session, one after the other
		if status := d.doJSON(&ms[i], "POST", "/v1/agents/coordinator/messages", `{"content":"xyzzy","session":"s-1"}`); status != 202 {
			t.Fatalf("%d %+v", status, ms[i])
		}
		if status, _, body := d.do("POST", "/v1/runs/"+ms[i].Run+":signal", `{"name":"go"}`, "Idempotency-Key", "approve-1"); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		d.openStream("GET", "/v1/runs/"+ms[i].Run+"/events", "").readUntil("run_done") // otherwise the next message would have to wait
	}
}

// A poll that starts at the last event of an ended run returns at once. A number
// beyond the last event is refused.
func TestEventsReportEndedRun(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x"}`)
	var page struct {
		Next  int   `json:"next_after"`
		Ended bool  `json:"ended"`
		Of    []any `json:"events"`
	}
	d.doJSON(&page, "GET", "/v1/runs/"+m.Run+"/events", "")
	next := page.Next
	for _, after := range []int{next, next + 1} {
		status, _, body := d.do("GET", fmt.Sprintf("/v1/runs/%s/events?after=%d&wait_ms=60000", m.Run, after), "")
		want, says := 200, fmt.Sprintf(`"events":[],"next_after":%d,"ended":true`, next)
		if after > next {
			want, says = 400, `"field":"after"`
		}
		if status != want || !strings.Contains(body, says) {
			t.Errorf("events after %d of %d: %d %s", after, next, status, body)
		}
	}
}

// A list truncates a long answer at a character boundary.
func TestRunListTruncatesText(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/helper/messages", fmt.Sprintf(`{"content":%q}`, strings.Repeat("ä", 5000)))
	_, _, one := d.do("GET", "/v1/runs/"+m.Run, "")
	_, _, list := d.do("GET", "/v1/runs", "")
	if n := strings.Count(one, "ä"); n != 5000 || strings.Contains(one, `"truncated":true`) {
		t.Errorf("run has %d characters, want 5000: %.200s", n, one)
	}
	if n := strings.Count(list, "ä"); n < 2000 || n > 2048 || !strings.Contains(list, `"truncated":true`) || !utf8.ValidString(list) {
		t.Errorf("run in list has %d characters, want 2000 to 2048: %.200s", n, list)
	}
}

// The events of a volatile agent are not stored, so they cannot be streamed.
func TestVolatileAgentHasNoStream(t *testing.T) {
	d := startGateway(t)
	if status, _, body := d.do("POST", "/v1/agents", `{"name":"quick","durability":"none"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/quick/messages", `{"content":"x"}`, "Accept", "text/event-stream"); status != 406 || !strings.Contains(body, "durability none") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.do("POST", "/v1/agents/quick/messages", `{"content":"x"}`); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// Runs of the registry can be neither cancelled nor signalled.
func TestRegistryRunsCannotBeChanged(t *testing.T) {
	d := startGateway(t)
	d.createAgent("maker")
	var all struct {
		Runs []struct {
			Run string `json:"run_id"`
		} `json:"runs"`
	}
	if d.doJSON(&all, "GET", "/v1/runs", ""); len(all.Runs) != 1 {
		t.Fatalf("%+v", all)
	}
	for _, do := range [][2]string{{":cancel", ""}, {":signal", `{"name":"go"}`}} {
		if status, _, body := d.do("POST", "/v1/runs/"+all.Runs[0].Run+do[0], do[1]); status != 403 || !strings.Contains(body, "runs of the registry") {
			t.Errorf("%s: %d %s", do[0], status, body)
		}
	}
}
