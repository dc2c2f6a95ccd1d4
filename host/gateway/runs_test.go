// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
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
	d := startGateway(t).owner()
	d.createAgent("maker")
	var all struct {
		Runs []struct {
			Run string `json:"run_id"`
		} `json:"runs"`
	}
	if d.doJSON(&all, "GET", "/v1/runs?system=true", ""); len(all.Runs) != 1 {
		t.Fatalf("%+v", all)
	}
	for _, do := range [][2]string{{":cancel", ""}, {":signal", `{"name":"go"}`}} {
		if status, _, body := d.do("POST", "/v1/runs/"+all.Runs[0].Run+do[0], do[1]); status != 403 || !strings.Contains(body, "runs of the registry") {
			t.Errorf("%s: %d %s", do[0], status, body)
		}
	}
}

// A page has room for at least one item: a client that follows next_after with an empty
// page would not advance.
func TestPagesAreNotEmpty(t *testing.T) {
	d := startGateway(t)
	var m messageResponse
	d.doJSON(&m, "POST", "/v1/agents/helper/messages", `{"content":"x"}`)
	for path, most := range map[string]string{"/v1/runs": "want 1 to 200", "/v1/runs/" + m.Run + "/events": "want 1 to 1000"} {
		if status, _, body := d.do("GET", path+"?limit=0", ""); status != 400 || !strings.Contains(body, `"field":"limit"`) || !strings.Contains(body, most) {
			t.Errorf("%s: %d %s, want 400 with %s", path, status, body, most)
		}
		if status, _, body := d.do("GET", path+"?limit=1", ""); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// Host names and origins that cannot match a request are refused with an example.
func TestNamesOfServerAreChecked(t *testing.T) {
	for text, ok := range map[string]bool{"console.example": true, "console.example:8443": true, "10.0.0.1": true, "[::1]:80": true,
		"https://console.example": false, "console.example/": false, "*.example": false, "": false} {
		if err := CheckNames([]string{text}, nil); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "--hosts: got ") {
			t.Errorf("host %q: %v", text, err)
		}
	}
	for text, ok := range map[string]bool{"https://console.example": true, "http://127.0.0.1:8080": true, "https://[::1]:8443": true,
		"https://console.example/": false, "console.example": false, "https://Console.example": false, "*": false, "null": false, "https://a/b": false, "ftp://a": false, "https://u@a": false} {
		if err := CheckNames(nil, []string{text}); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "such as https://console.example") {
			t.Errorf("origin %q: %v", text, err)
		}
	}
}

// Each answer about one run names it in the header.
func TestAnswersOfRunNameIt(t *testing.T) {
	d := startGateway(t)
	run := func(method, path, body string, want int, headers ...string) string {
		t.Helper()
		status, head, answer := d.do(method, path, body, headers...)
		var named struct {
			Run string `json:"run_id"`
		}
		if err := json.Unmarshal([]byte(answer), &named); err != nil || status != want || named.Run == "" || head.Get(runHeader) != named.Run {
			t.Errorf("%s %s: %d, header %q, %s", method, path, status, head.Get(runHeader), answer)
		}
		return named.Run
	}
	id := run("POST", "/v1/agents/helper/messages", `{"content":"x"}`, 200)
	run("POST", "/v1/agents/helper/messages", `{"content":"x"}`, 202, "Prefer", respondAsync)
	open := run("POST", "/v1/agents/coordinator/messages", `{"content":"x"}`, 202)
	run("GET", "/v1/runs/"+id, "", 200)
	run("POST", "/v1/runs/"+open+":cancel", "", 200)
	if _, head, _ := d.do("GET", "/v1/runs/"+id+"?tree=1", ""); head.Get(runHeader) != id {
		t.Errorf("tree: %v", head)
	}
	if _, head, _ := d.do("GET", "/v1/runs/"+id+"/events", ""); head.Get(runHeader) != id {
		t.Errorf("events: %v", head)
	}
	if status, head, _ := d.do("GET", "/v1/runs/"+strings.Replace(id, id[:8], "00000000", 1), ""); status != 404 || head.Get(runHeader) != "" {
		t.Errorf("no such run: %d %v", status, head)
	}
}
