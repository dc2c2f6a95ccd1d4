// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

// detachedCalls is the run of this program with the flag -detached. A user asks an external agent, which makes
// detached calls of another one, and is asked again after each kill. Both agents are in this process and survive:
// what they have seen is compared with the conversation of the user.
type detachedCalls struct {
	*harness
	agents *externalAgents // requests with the token of a run

	mu      sync.Mutex
	calls   map[string]*detachedCall // by correlation
	turns   []string                 // correlations of the outcomes, in the order in which their turns began
	heard   map[string]bool          // runs of these turns
	pending int                      // kills with calls that are not answered
}

// detachedCall is a call as the agent that was asked has seen it last: each invocation may be a repetition.
type detachedCall struct {
	word         string
	began, ended time.Time
}

const (
	detachedSession   = "s-1"
	callsPerMessage   = 4
	killWithin        = 800 * time.Millisecond
	answerWithin      = 900 * time.Millisecond
	orderSlack        = 500 * time.Millisecond // between the end of an answer and the begin of another one, from which on their order is certain
	pendingPercent    = 50                     // minimum share of kills with calls that are not answered
	hearingTakes      = 150 * time.Millisecond
	detachedEndWithin = 30 * time.Second
)

func (c *harness) runDetached(ctx context.Context, out, stderr io.Writer) (good bool, err error) {
	d := &detachedCalls{harness: c, calls: map[string]*detachedCall{}, heard: map[string]bool{}}
	if err := c.begin(out, stderr, " with detached calls"); err != nil {
		return false, err
	}
	stop, err := d.serve()
	if err != nil {
		return false, err
	}
	defer stop()
	began := time.Now()
	if err := c.eachKill(ctx, killWithin, d.send, d.met); err != nil {
		return false, err
	}
	if err := c.withInstance(ctx, func(_ *server, inst *instance) error { return d.finish(ctx, inst) }); err != nil {
		return false, err
	}
	l := c.ledger
	fmt.Fprintf(out, "%d calls, %d%% of the kills met some without an answer, %v\n lost=%d duplicated=%d reordered=%d wrong=%d\n", len(d.calls), 100*d.pending/c.kills,
		time.Since(began).Round(time.Second), l.counts[lost], l.counts[duplicated], l.counts[reordered], l.counts[wrong])
	if 100*d.pending/c.kills < pendingPercent {
		return false, fmt.Errorf("want %d%%", pendingPercent)
	}
	return l.counts == [kinds]int{}, nil
}

// serve starts the agents, and writes their files.
func (d *detachedCalls) serve() (stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d.agents = &externalAgents{callbackURL: "http://" + d.listen, busyPause: busyPause, client: &http.Client{Timeout: requestWithin, Transport: &http.Transport{DisableKeepAlives: true}}}
	mux, dir := http.NewServeMux(), filepath.Join(d.dir, agentsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for name, answer := range map[string]func(*http.Request, string, *invocation) (string, error){asker: d.ask, porter: d.answer} {
		mux.HandleFunc("GET /"+name+"/health", func(http.ResponseWriter, *http.Request) {})
		mux.HandleFunc("POST /"+name+"/invoke", func(w http.ResponseWriter, r *http.Request) {
			var in invocation
			if err := json.UnmarshalRead(r.Body, &in); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			text, err := answer(r, in.Run, &in)
			if err != nil {
				writeEvent(w, "error", map[string]string{"code": "unavailable", "message": err.Error()})
				return
			}
			writeEvent(w, "delta", map[string]string{"text": text, "run_id": in.Run})
			writeEvent(w, "done", map[string]any{})
		})
		text := fmt.Sprintf("name = %q\nkind = \"external\"\nendpoint = \"http://%s/%s\"\nretry = \"safe\"\nconcurrency = 64\nlimits.invoke_timeout_ms = 300000\n", name, listener.Addr(), name)
		if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	server := serveHTTP(listener, mux)
	return func() { _ = server.Close() }, nil
}

// invocation is the body of a request to an external agent.
type invocation struct {
	Run   string `json:"run_id"`
	Input struct {
		Content    string `json:"content"`
		Provenance struct {
			Correlation string `json:"correlationId"`
		} `json:"provenance"`
	} `json:"input_message"`
}

// ask makes the calls that a message of the user asks for, or hears an outcome.
func (d *detachedCalls) ask(r *http.Request, run string, in *invocation) (string, error) {
	if of := in.Input.Provenance.Correlation; of != "" {
		d.mu.Lock()
		if !d.heard[run] {
			d.heard[run], d.turns = true, append(d.turns, of)
		}
		d.mu.Unlock()
		return "heard", pause(r.Context(), hearingTakes) // other outcomes wait meanwhile
	}
	for i := range callsPerMessage {
		word := fmt.Sprintf("%s-%d", in.Input.Content, i)
		var made struct {
			Result struct {
				Correlation string `json:"correlationId"`
			} `json:"result"`
		}
		args := map[string]any{"agent": porter + "/" + word, "skill": "look", "input": map[string]string{"word": word}, "timeout": 300_000}
		if err := d.agents.post(r, "/v1/tools/agent_call:invoke", fmt.Sprint(run, "-", i), map[string]any{"args": args}, &made); err != nil {
			return "", err
		}
		d.mu.Lock()
		if d.calls[made.Result.Correlation] == nil {
			d.calls[made.Result.Correlation] = &detachedCall{word: word}
		}
		d.mu.Unlock()
	}
	return "asked", nil
}

// answer answers a call after a pause.
func (d *detachedCalls) answer(r *http.Request, _ string, in *invocation) (string, error) {
	var call struct {
		Correlation string `json:"correlationId"`
		Input       struct {
			Word string `json:"word"`
		} `json:"input"`
	}
	if err := json.Unmarshal([]byte(in.Input.Content), &call); err != nil {
		return "", err
	}
	d.mu.Lock()
	seen := d.calls[call.Correlation]
	if seen == nil {
		seen = &detachedCall{word: call.Input.Word}
		d.calls[call.Correlation] = seen
	}
	if seen.word != call.Input.Word {
		d.ledger.report(wrong, "the call %s has the word %s, and had %s", call.Correlation, call.Input.Word, seen.word)
	}
	d.mu.Unlock()
	if err := pause(r.Context(), time.Duration(rand.Int64N(int64(answerWithin)))); err != nil {
		return "", err
	}
	d.mu.Lock()
	seen.began, seen.ended = time.Now(), time.Now()
	d.mu.Unlock()
	return `{"output":"` + call.Input.Word + `"}`, nil
}

// send sends the message of one instance.
func (d *detachedCalls) send(inst *instance, n int) error {
	_, err := inst.sendAsync(asker, fmt.Sprintf(`{"content":"word-%d","session_id":%q}`, n, detachedSession))
	return err
}

// met counts a kill that meets calls without an outcome.
func (d *detachedCalls) met() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.calls) > len(d.turns) {
		d.pending++
	}
}

// delivered is the message of an outcome in the conversation.
type delivered struct {
	Origin     string `json:"origin"`
	Content    string `json:"content"`
	Provenance struct {
		Correlation string `json:"correlationId"`
	} `json:"provenance"`
}

// finish waits until nothing is pending, and compares the conversation with what the agents have seen.
func (d *detachedCalls) finish(ctx context.Context, inst *instance) error {
	get := func(path string, into any) error {
		response, err := inst.send(request{method: "GET", path: path})
		if err != nil {
			return err
		}
		if status, err := readJSON(response, into); err != nil || status != http.StatusOK {
			return fmt.Errorf("GET %s: %d, %w", path, status, err)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, detachedEndWithin)
	defer cancel()
	for idle := false; !idle; {
		var state struct {
			Pending map[string]any `json:"pendingRequests"`
		}
		var messages struct {
			Open []any `json:"open"`
		}
		if err := cmp.Or(get("/v1/sessions/"+detachedSession+"/state", &state), get("/v1/sessions/"+detachedSession+"/messages?limit=1", &messages), pause(ctx, 50*time.Millisecond)); err != nil {
			return fmt.Errorf("%d calls and %d messages are open: %w", len(state.Pending), len(messages.Open), err)
		}
		idle = len(state.Pending)+len(messages.Open) == 0
	}
	var all []delivered
	for path := "/v1/sessions/" + detachedSession + "/messages?limit=200"; path != ""; {
		var page struct {
			All  []delivered `json:"messages"`
			Next string      `json:"next_before"`
		}
		if err := get(path, &page); err != nil {
			return err
		}
		all = append(page.All, all...)
		if path = ""; page.Next != "" {
			path = "/v1/sessions/" + detachedSession + "/messages?limit=200&before=" + page.Next
		}
	}
	d.compare(slices.DeleteFunc(all, func(m delivered) bool { return m.Origin != "delivered" }))
	return nil
}

func (d *detachedCalls) compare(all []delivered) {
	d.mu.Lock()
	defer d.mu.Unlock()
	places := map[string]int{}
	var order []string
	for i, m := range all {
		of := m.Provenance.Correlation
		order = append(order, of)
		call := d.calls[of]
		if call == nil {
			d.ledger.report(wrong, "the message %s is of a call that nobody has seen", m.Content)
			continue
		}
		if _, twice := places[of]; twice {
			d.ledger.report(duplicated, "the outcome of %s is delivered again", of)
		}
		places[of] = i
		if !strings.Contains(m.Content, `"status":"completed","output":"`+call.word+`"`) {
			d.ledger.report(wrong, "the call of %s has the outcome %s", call.word, m.Content)
		}
	}
	if !slices.Equal(order, d.turns) {
		d.ledger.report(reordered, "the outcomes are in the order %v, and their turns began in the order %v", order, d.turns)
	}
	for of, call := range d.calls {
		at, ok := places[of]
		if !ok {
			d.ledger.report(lost, "the call %s of %s has no outcome", of, call.word)
			continue
		}
		for other, later := range d.calls {
			if to, ok := places[other]; ok && call.ended.Add(orderSlack).Before(later.began) && to < at {
				d.ledger.report(reordered, "%s was answered before %s, and is delivered after it", call.word, later.word)
			}
		}
	}
}
