// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// newBusyServer returns a server that refuses the first two requests as busy, and
// the Idempotency-Keys of all requests.
func newBusyServer(t *testing.T, answer http.HandlerFunc) (url string, keys *[]string) {
	keys = new([]string) // the requests come one after the other
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*keys = append(*keys, r.Header.Get("Idempotency-Key"))
		if n := len(*keys); n <= 2 {
			status := []int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[n-1]
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"status":%d,"code":"agent_busy","detail":"later"}`, status)
			return
		}
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, keys
}

func checkKeys(t *testing.T, keys []string, want string) {
	t.Helper()
	if len(keys) != 3 || keys[0] != want || keys[1] != want || keys[2] != want {
		t.Errorf("got requests with the keys %q, want 3 with %q", keys, want)
	}
}

// A refusal states that the server did nothing, so the client repeats the request.
func TestClientRepeatsRefusedRequests(t *testing.T) {
	full := runEvents()
	for _, stream := range []bool{false, true} {
		url, keys := newBusyServer(t, func(w http.ResponseWriter, _ *http.Request) {
			if !stream {
				fmt.Fprintf(w, `{"run_id":%q,"status":"DONE","content":"hello"}`, runID)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for i, e := range full {
				fmt.Fprintf(w, "id: %d\ndata: %s\n\n", i+1, e)
			}
		})
		inst := newInstance(t.Context(), url, t.TempDir(), make(chan struct{}), 0)
		inst.busyPause = 0
		l := newLedger(io.Discard)
		e := &exchange{scenario: tellerCall, content: "say hello", key: "key-1"}
		e.stream = stream
		if err := (&client{harness: &harness{ledger: l}}).perform(inst, e); err != nil {
			t.Errorf("stream %v: %v", stream, err)
		}
		if !e.done || e.answer != "hello" || e.refused != "" || inst.open.Load() != 0 {
			t.Errorf("stream %v: got done %v, answer %q, refused %q, %d requests open", stream, e.done, e.answer, e.refused, inst.open.Load())
		}
		checkKeys(t, *keys, "key-1")
		checkFindings(t, fmt.Sprint("stream ", stream), l, kinds)
	}
}

func TestBrokerRepeatsRefusedCalls(t *testing.T) {
	url, keys := newBusyServer(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"run_id":"r2","status":"DONE","content":"hello"}`)
	})
	o, err := newExternalAgents(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.close)
	o.busyPause = 0
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, o.url+"/"+broker+"/invoke", strings.NewReader(`{"run_id":"r1","input_message":{"role":"user","content":"hello"}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("x-run-id", "r1")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil || strings.Contains(string(b), "event: error") || !strings.Contains(string(b), `"hello"`) || !strings.Contains(string(b), "event: done") {
		t.Errorf("got %v\n%s", err, b)
	}
	checkKeys(t, *keys, "r1")
}
