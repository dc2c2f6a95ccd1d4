// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// batchFixture is a server of a tool with batch. It answers each call with its arguments, and keeps the keys and the
// bodies of its requests.
type batchFixture struct {
	*toolFixture
	mu      sync.Mutex
	keys    []string
	bodies  []string
	arrived chan struct{} // gets a value for each request
}

func newBatchFixture(t *testing.T, before http.HandlerFunc) *batchFixture {
	t.Helper()
	f := &batchFixture{arrived: make(chan struct{}, 64)}
	f.toolFixture = newToolFixture(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		f.mu.Lock()
		f.keys, f.bodies = append(f.keys, r.Header.Get("Idempotency-Key")), append(f.bodies, string(body))
		f.mu.Unlock()
		f.arrived <- struct{}{}
		if before != nil {
			before(w, r)
			return
		}
		var calls []upstream.BatchCall
		if err := json.Unmarshal(body, &calls); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		var results []map[string]any
		for _, c := range calls {
			results = append(results, map[string]any{"id": c.ID, "result": c.Arguments})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.MarshalWrite(w, results)
	})
	return f
}

// requests returns the keys and the bodies of the requests so far.
func (f *batchFixture) requests() (keys, bodies []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.keys), slices.Clone(f.bodies)
}

// call makes a call of step 3, of which together leave at once.
func (f *batchFixture) call(ctx context.Context, index uint16, together int, d tools.Declared, input string, left time.Duration) <-chan actor.Answer {
	d.Name, d.Kind, d.Via, d.Batch, d.URL = "weather.get", tools.KindServer, tools.ViaHTTP, true, f.url+"/w"
	answer := make(chan actor.Answer, 1)
	call := actor.Call{ID: callID, Root: rootID, To: actor.NewID("a", "s"), Principal: "u-1"}
	id := actor.EffectID{Run: callID, Step: 3, Index: index}
	if together == 0 { // a call of no run
		id = actor.EffectID{}
	}
	go func() {
		answer <- f.Tool(ctx, id,
			runtime.Tool{Name: d.Name, Input: []byte(input), Context: tools.ExecutionContext{Call: call}, Left: left, Declared: &d, Together: together})
	}()
	return answer
}

// all makes n calls at once, and returns their answers as text.
func (f *batchFixture) all(t *testing.T, n int, d tools.Declared) (texts []string) {
	t.Helper()
	var answers []<-chan actor.Answer
	for i := range n {
		answers = append(answers, f.call(t.Context(), uint16(i), n, d, fmt.Sprintf(`{"n":%d}`, i), testTimeout))
	}
	for _, c := range answers {
		a := <-c
		if a.Refusal != nil {
			texts = append(texts, a.Refusal.Reason.String()+" "+a.Refusal.Fallback())
		} else {
			texts = append(texts, string(a.Parts[0].Bytes))
		}
	}
	return texts
}

func TestCallsOfStepAreOneRequest(t *testing.T) {
	f := newBatchFixture(t, nil)
	if got := fmt.Sprint(f.all(t, 3, tools.Declared{})); got != `[{"n":0} {"n":1} {"n":2}]` {
		t.Errorf("got %s", got)
	}
	id := callID.String() + ".3."
	body := fmt.Sprintf(`[{"id":"%[1]s0","arguments":{"n":0}},{"id":"%[1]s1","arguments":{"n":1}},{"id":"%[1]s2","arguments":{"n":2}}]`, id)
	if keys, bodies := f.requests(); len(bodies) != 1 || bodies[0] != body || keys[0] != id+"0+1+2" {
		t.Errorf("got keys %s and bodies %s, want %s", keys, bodies, body)
	}
	a := <-f.call(t.Context(), 7, 1, tools.Declared{}, `{}`, testTimeout)
	if keys, bodies := f.requests(); a.Refusal != nil || bodies[1] != `[{"id":"`+id+`7","arguments":{}}]` || keys[1] != id+"7" {
		t.Errorf("a single call: %+v, keys %s and bodies %s", a, keys, bodies)
	}
	a = <-f.call(t.Context(), 0, 0, tools.Declared{}, `{}`, testTimeout)
	if keys, bodies := f.requests(); a.Refusal != nil || bodies[2] != `[{"id":"1","arguments":{}}]` || keys[2] != "" {
		t.Errorf("a call of no run: %+v, keys %s and bodies %s", a, keys, bodies)
	}
	f.batches.mu.Lock()
	defer f.batches.mu.Unlock()
	if len(f.batches.open) != 0 {
		t.Errorf("%d batches wait", len(f.batches.open))
	}
}

// TestManyCallsAreSeveralRequests checks that neither their number nor their size makes a request too large.
func TestManyCallsAreSeveralRequests(t *testing.T) {
	f := newBatchFixture(t, nil)
	for i, text := range f.all(t, 2*batchCallsMax+1, tools.Declared{}) {
		if text != fmt.Sprintf(`{"n":%d}`, i) {
			t.Errorf("call %d got %s", i, text)
		}
	}
	if _, bodies := f.requests(); len(bodies) != 3 {
		t.Errorf("got %d requests", len(bodies))
	}
	large := `{"text":"` + fmt.Sprintf("%0*d", batchBytesMax/2, 0) + `"}`
	first, second := f.call(t.Context(), 0, 2, tools.Declared{}, large, testTimeout), f.call(t.Context(), 1, 2, tools.Declared{}, large, testTimeout)
	a, b := <-first, <-second
	if _, bodies := f.requests(); a.Refusal != nil || b.Refusal != nil || len(bodies) != 5 {
		t.Errorf("%v %v, %d requests", a.Refusal, b.Refusal, len(bodies))
	}
}

// TestFailureOfBatchIsThatOfEachCall checks that all calls fall back if their request did nothing, and none if it may have.
func TestFailureOfBatchIsThatOfEachCall(t *testing.T) {
	for status, want := range map[int]string{503: "[Unavailable weather.old Unavailable weather.old]", 500: "[Unavailable  Unavailable ]", 400: "[Rejected  Rejected ]"} {
		f := newBatchFixture(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		f.config.Patience.Retry = upstream.RetryPolicy{Tries: 1}
		if got := fmt.Sprint(f.all(t, 2, tools.Declared{Fallback: "weather.old"})); got != want {
			t.Errorf("%d: got %s, want %s", status, got, want)
		}
	}
}

// TestBatchOutlivesCancelledCall checks that each call, also the one that leads the request, ends by its own context, that
// the request goes on for the call that still waits, and that it is aborted with the last one.
func TestBatchOutlivesCancelledCall(t *testing.T) {
	for _, early := range []int{0, 1} {
		for name, end := range map[string]struct {
			cause error
			want  actor.Reason
		}{"cancelled": {context.Canceled, actor.Stopped}, "out of time": {context.DeadlineExceeded, actor.Deadline}} {
			aborted := make(chan struct{})
			f := newBatchFixture(t, func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				close(aborted)
			})
			var answers [2]<-chan actor.Answer
			var stops [2]context.CancelCauseFunc
			for i := range answers {
				ctx, stop := context.WithCancelCause(t.Context())
				defer stop(nil)
				answers[i], stops[i] = f.call(ctx, uint16(i), 2, tools.Declared{}, `{}`, testTimeout), stop
			}
			<-f.arrived
			for n, i := range []int{early, 1 - early} {
				stops[i](end.cause)
				select {
				case a := <-answers[i]:
					if a.Refusal == nil || a.Refusal.Reason != end.want {
						t.Errorf("%s: call %d got %+v", name, i, a)
					}
				case <-time.After(time.Minute):
					t.Fatalf("%s: call %d, number %d to end, waits for the other one", name, i, n)
				}
				if n == 0 {
					select {
					case <-aborted:
						t.Errorf("%s: the request was aborted while call %d waits", name, 1-i)
					default:
					}
				}
			}
			<-aborted
		}
	}
}

// TestBatchAnswersAfterLeaderEnded checks that the other calls get their results although the leading one has ended.
func TestBatchAnswersAfterLeaderEnded(t *testing.T) {
	proceed := make(chan struct{})
	f := newBatchFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		<-proceed
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `["a", "b"]`)
	})
	leading, cancel := context.WithCancel(t.Context())
	first, second := f.call(leading, 0, 2, tools.Declared{}, `{}`, testTimeout), f.call(t.Context(), 1, 2, tools.Declared{}, `{}`, testTimeout)
	<-f.arrived
	cancel()
	select {
	case a := <-first:
		if a.Refusal == nil || a.Refusal.Reason != actor.Stopped {
			t.Errorf("the leading call got %+v", a)
		}
	case <-time.After(time.Minute):
		t.Error("the leading call waits for the request")
	}
	close(proceed)
	if a := <-second; a.Refusal != nil || string(a.Parts[0].Bytes) != `"b"` {
		t.Errorf("the other call got %+v", a)
	}
}

// TestPanicOfBatchFailsEachCall checks that a panic ends no process, and leaves no call without an answer.
func TestPanicOfBatchFailsEachCall(t *testing.T) {
	f := newBatchFixture(t, nil)
	f.config.Sign = func(*upstream.Identity, upstream.SignedCall) string { panic("no key") }
	d := tools.Declared{Identity: tools.IdentityJWT}
	first, second := f.call(t.Context(), 0, 2, d, `{}`, testTimeout), f.call(t.Context(), 1, 2, d, `{}`, testTimeout)
	for _, a := range []actor.Answer{<-first, <-second} {
		if a.Refusal == nil || a.Refusal.Reason != actor.Unavailable || a.Refusal.Detail != "panic: no key" {
			t.Errorf("got %+v", a)
		}
	}
}

func TestBatchKeepsDeadline(t *testing.T) {
	f := newBatchFixture(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	first, second := f.call(ctx, 0, 2, tools.Declared{}, `{}`, 50*time.Millisecond), f.call(ctx, 1, 2, tools.Declared{}, `{}`, 50*time.Millisecond)
	for _, a := range []actor.Answer{<-first, <-second} {
		if a.Refusal == nil || a.Refusal.Reason != actor.Deadline {
			t.Errorf("got %+v", a)
		}
	}
}

// TestLongResponseToBatch checks that a response which is too long loses only the results that were cut.
func TestLongResponseToBatch(t *testing.T) {
	f := newBatchFixture(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `["short", "%s"]`, strings.Repeat("y", upstream.ToolResultBytesMax))
	})
	if got := fmt.Sprintf("%.110s", f.all(t, 2, tools.Declared{Idempotent: true})); !strings.HasPrefix(got, `["short" Unavailable`) {
		t.Errorf("got %s", got)
	}
}

// TestCallsJoinThoseOfTheirStep checks which calls leave in a request, in which order, and when.
func TestCallsJoinThoseOfTheirStep(t *testing.T) {
	type call struct {
		id   actor.EffectID
		tool string
	}
	other := actor.NewCallID(actor.Time(time.Second), 5, 6)
	for name, c := range map[string]struct {
		calls     []call
		cancelled int // which of them; -1: none
		groups    string
		after     time.Duration
	}{
		"all":          {[]call{{actor.EffectID{Run: callID, Step: 3, Index: 2}, "a.b"}, {actor.EffectID{Run: callID, Step: 3, Index: 0}, "a.b"}}, -1, "[2: 0 2] [0: 0 2]", 0},
		"another run":  {[]call{{actor.EffectID{Run: callID, Step: 3}, "a.b"}, {actor.EffectID{Run: other, Step: 3, Index: 1}, "a.b"}}, -1, "[0: 0] [1: 1]", batchWait},
		"another step": {[]call{{actor.EffectID{Run: callID, Step: 3}, "a.b"}, {actor.EffectID{Run: callID, Step: 4, Index: 1}, "a.b"}}, -1, "[0: 0] [1: 1]", batchWait},
		"another tool": {[]call{{actor.EffectID{Run: callID, Step: 3}, "a.b"}, {actor.EffectID{Run: callID, Step: 3, Index: 1}, "a.c"}}, -1, "[0: 0] [1: 1]", batchWait},
		"cancelled":    {[]call{{actor.EffectID{Run: callID, Step: 3}, "a.b"}}, 0, "[0:]", time.Millisecond},
		"one cancelled": {[]call{{actor.EffectID{Run: callID, Step: 3}, "a.b"}, {actor.EffectID{Run: callID, Step: 3, Index: 1}, "a.b"}, {actor.EffectID{Run: callID, Step: 3, Index: 2}, "a.b"}},
			1, "[0: 0 2] [1:] [2: 0 2]", time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			b, began := batches{open: map[batchKey]*batch{}}, time.Now()
			var all []*batchedCall
			var joined sync.WaitGroup
			for i, one := range c.calls {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				all = append(all, &batchedCall{ctx: ctx, id: one.id, op: runtime.Tool{Name: one.tool, Together: max(2, len(c.calls)+c.cancelled)}})
				joined.Go(func() { b.join(all[i]) })
				if synctest.Wait(); i == c.cancelled {
					time.AfterFunc(time.Millisecond, cancel)
				}
			}
			joined.Wait()
			var groups []string
			for _, one := range all {
				text := fmt.Sprintf("[%d:", one.id.Index)
				for _, g := range one.group {
					text += fmt.Sprintf(" %d", g.id.Index)
				}
				groups = append(groups, text+"]")
			}
			if got, after := strings.Join(groups, " "), time.Since(began); got != c.groups || after != c.after || len(b.open) != 0 {
				t.Errorf("%s: got %s after %v, want %s after %v; %d wait", name, got, after, c.groups, c.after, len(b.open))
			}
		})
	}
}

// TestBatchWaitsForNoLostCall checks that calls leave without one that never comes, as this node refused it, and
// without one that was cancelled before.
func TestBatchWaitsForNoLostCall(t *testing.T) {
	f := newBatchFixture(t, nil)
	first, second := f.call(t.Context(), 0, 3, tools.Declared{}, `{"n":0}`, testTimeout), f.call(t.Context(), 1, 3, tools.Declared{}, `{"n":1}`, testTimeout)
	if a, b := <-first, <-second; a.Refusal != nil || b.Refusal != nil {
		t.Errorf("%+v %+v", a, b)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if a := <-f.call(gone, 2, 1, tools.Declared{}, `{}`, testTimeout); a.Refusal == nil || a.Refusal.Reason != actor.Stopped {
		t.Errorf("%+v", a)
	}
}
