// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
)

// A tool with cache_ms is asked once for the same call.
func TestResultsAreKept(t *testing.T) {
	failing := false
	var f *toolFixture
	f = newToolFixture(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		if failing {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintf(w, "answer %d", f.hits.Load())
	})
	kept := tools.Declared{Idempotent: true, CacheMS: 60_000}
	changed := kept
	changed.Description = "changed"
	call := func(d tools.Declared, to actor.ID, arguments string) actor.Answer {
		d.Name, d.Kind, d.Via, d.URL = "weather.get", tools.KindServer, tools.ViaHTTP, f.url+"/w"
		return f.Tool(t.Context(), effectID, runtime.Tool{Name: d.Name, Input: []byte(arguments), Left: testTimeout, Declared: &d,
			Context: tools.ExecutionContext{Call: actor.Call{ID: callID, Root: rootID, To: to, Principal: "u-1"}}})
	}
	mine := actor.ID{Tenant: "ann", Agent: "a", Key: "s"}
	for _, c := range []struct {
		what      string
		tool      tools.Declared
		to        actor.ID
		arguments string
		want      string
		warns     bool
	}{
		{"first", kept, mine, `{"city":"Bonn"}`, "answer 1", false},
		{"repeated", kept, mine, `{"city":"Bonn"}`, "answer 1", true},
		{"another session", kept, actor.ID{Tenant: "ann", Agent: "a", Key: "t"}, `{"city":"Bonn"}`, "answer 1", true},
		{"other arguments", kept, mine, `{"city":"Ulm"}`, "answer 2", false},
		{"another agent", kept, actor.ID{Tenant: "ann", Agent: "b", Key: "s"}, `{"city":"Bonn"}`, "answer 3", false},
		{"another user", kept, actor.ID{Tenant: "bob", Agent: "a", Key: "s"}, `{"city":"Bonn"}`, "answer 4", false},
		{"another definition", changed, mine, `{"city":"Bonn"}`, "answer 5", false},
		{"without cache_ms", tools.Declared{Idempotent: true}, mine, `{"city":"Bonn"}`, "answer 6", false},
	} {
		a := call(c.tool, c.to, c.arguments)
		if text := string(actor.TextOf(a.Parts)); text != c.want || c.warns != (len(a.Warnings) == 1 && strings.Contains(a.Warnings[0], "former call")) {
			t.Errorf("%s: got %q, warnings %q, refusal %v, want %q", c.what, text, a.Warnings, a.Refusal, c.want)
		}
	}
	failing = true
	for range 2 {
		if a := call(kept, mine, `{"city":"Rome"}`); a.Refusal == nil {
			t.Errorf("got %+v", a)
		}
	}
	if n := f.hits.Load(); n != 8 {
		t.Errorf("got %d requests, want 8: a failure was kept", n)
	}
}

func TestKeptResultsAreBounded(t *testing.T) {
	var c resultCache
	key := func(i int) resultKey { return resultKey{byte(i), byte(i >> 8)} }
	answer := actor.Answer{Parts: []actor.Part{{Media: actor.MediaText, Bytes: make([]byte, 1<<20)}}}
	const n = resultCacheBytesMax/(1<<20) + 9
	for i := range n {
		if _, ok := c.get(key(0), 1); i > 0 && !ok {
			t.Fatalf("the result that is used most often was removed before that of call %d", i)
		}
		c.put(key(i), &answer, 1, time.Minute)
	}
	if c.bytes > resultCacheBytesMax || c.used.Len() != len(c.by) || len(c.by) >= n {
		t.Errorf("keeps %d bytes in %d of %d results", c.bytes, len(c.by), c.used.Len())
	}
	if _, ok := c.get(key(1), 1); ok {
		t.Error("the result that was not used for the longest time was kept")
	}
	if _, ok := c.get(key(0), actor.Time(1).Add(time.Minute)); ok {
		t.Error("an expired result was returned")
	}
	c.put(key(0), &answer, 1, time.Minute)
	c.put(key(0), &answer, 2, time.Minute)
	if a, ok := c.get(key(0), actor.Time(2).Add(59*time.Second)); !ok || !strings.Contains(a.Warnings[0], "59s ago") {
		t.Errorf("got %v, %v", a.Warnings, ok)
	}
	for range n {
		c.remove(c.used.Front())
		if c.used.Len() == 0 {
			break
		}
	}
	if c.bytes != 0 || len(c.by) != 0 {
		t.Errorf("%d bytes of %d results are left", c.bytes, len(c.by))
	}
}
