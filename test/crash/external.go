// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// externalAgents serves the external agents over HTTP. The porter and the broker
// may be invoked twice for a run, the clerk at most once. The broker calls the
// teller through the server. The buyer uses a tool through it, and may be invoked
// twice. The shopper is a plain program: it uses a tool without a key, and its registration
// does not name retry. All stream their answers slowly, in pieces.
type externalAgents struct {
	url         string
	server      *http.Server
	callbackURL string // base URL of the server, for the calls of the broker
	patient     bool   // send a request with a key again when its connection fails: that of a cluster is to another process than the agent's run
	client      *http.Client
	busyPause   time.Duration

	mu          sync.Mutex
	invocations map[string]map[string]int // number of invocations by agent and run
}

func newExternalAgents(back string) (*externalAgents, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &externalAgents{url: "http://" + listener.Addr().String(), callbackURL: back, busyPause: busyPause,
		client: &http.Client{Timeout: requestWithin, Transport: &http.Transport{DisableKeepAlives: true}}, invocations: map[string]map[string]int{porter: {}, clerk: {}, broker: {}, buyer: {}, shopper: {}}}
	mux := http.NewServeMux()
	for name := range o.invocations {
		mux.HandleFunc("POST /"+name+"/invoke", func(w http.ResponseWriter, r *http.Request) { o.invoke(name, w, r) })
		mux.HandleFunc("GET /"+name+"/health", func(http.ResponseWriter, *http.Request) {})
	}
	o.server = serveHTTP(listener, mux)
	return o, nil
}

func (o *externalAgents) close() { _ = o.server.Close() }

// externalAnswer returns the answer of an external agent.
func externalAnswer(name, input string) string { return name + " received " + input }

func (o *externalAgents) invoke(name string, w http.ResponseWriter, r *http.Request) {
	var in struct {
		Run   string `json:"run_id"`
		Input struct {
			Content string `json:"content"`
		} `json:"input_message"`
		Rest jsontext.Value `json:",unknown"`
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(b, &in)
	}
	if err != nil || in.Run == "" || in.Run != r.Header.Get("x-run-id") {
		http.Error(w, fmt.Sprint("invalid invocation: ", err), http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	o.invocations[name][in.Run]++
	o.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	// The run determines the pause between pieces, from 1 to 16 ms.
	h := fnv.New32a()
	_, _ = io.WriteString(h, in.Run)
	pause := time.NewTicker(time.Millisecond + time.Duration(h.Sum32()%16)*time.Millisecond)
	defer pause.Stop()
	if back := map[string]func(*http.Request, string, string) (string, error){broker: o.callBack, buyer: o.useTool, shopper: o.useToolPlainly}[name]; back != nil {
		if in.Input.Content, err = back(r, in.Run, in.Input.Content); err != nil {
			writeEvent(w, "error", map[string]string{"code": "unavailable", "message": err.Error()})
			return
		}
	}
	for piece := range strings.SplitAfterSeq(externalAnswer(name, in.Input.Content), " ") {
		select {
		case <-pause.C:
		case <-r.Context().Done():
			return
		}
		if !writeEvent(w, "delta", map[string]string{"text": piece, "run_id": in.Run}) {
			return
		}
	}
	writeEvent(w, "done", map[string]any{})
}

// callBack calls the teller with the token of the run. A repeated invocation for
// the same run calls back with the same Idempotency-Key, and so does the
// repetition of a call that the server refused as busy.
func (o *externalAgents) callBack(r *http.Request, run, input string) (string, error) {
	var a answer
	err := o.post(r, "/v1/agents/"+teller+":invoke", run, map[string]any{"message": "say " + input, "timeout_ms": 300_000}, &a)
	return a.Content, err
}

// useTool uses the tool that the input names, with the token of the run, and waits for
// the end of the call. A repeated invocation uses the same idempotency_key.
func (o *externalAgents) useTool(r *http.Request, run, input string) (string, error) {
	return o.use(r, input, map[string]any{"idempotency_key": run})
}

// useToolPlainly does the same without a key. The server MUST recognize the request of a
// repeated invocation.
func (o *externalAgents) useToolPlainly(r *http.Request, _, input string) (string, error) {
	return o.use(r, input, map[string]any{})
}

func (o *externalAgents) use(r *http.Request, input string, body map[string]any) (string, error) {
	tool, word, _ := strings.Cut(input, " ")
	var call struct {
		ID     string         `json:"tool_call_id"`
		Status string         `json:"status"`
		Result jsontext.Value `json:"result"`
		Error  struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	body["args"], body["timeout_ms"] = toolArgs{word}, 100
	err := o.post(r, "/v1/tools/"+tool+":invoke", "", body, &call)
	for err == nil && call.Status == "pending" {
		err = o.post(r, "/v1/tool_calls/"+call.ID+":wait?timeout_ms=30000", "", nil, &call)
	}
	if call.Status == "failed" {
		return "error " + call.Error.Code, err
	}
	return string(call.Result), err
}

// post sends a request with the token of the run, again while the server is busy, and a patient one also when it is away.
// An answer other than 200 and 202 is an error.
func (o *externalAgents) post(r *http.Request, path, key string, body, into any) error {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body, json.Deterministic(true)); err != nil {
			return err
		}
	}
	response, err := whileBusy(func() (*http.Response, error) {
		q, err := http.NewRequestWithContext(r.Context(), http.MethodPost, o.callbackURL+path, bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		q.Header.Set("x-run-token", r.Header.Get("x-run-token"))
		if body != nil {
			q.Header.Set("Content-Type", "application/json")
		}
		if key != "" {
			q.Header.Set("Idempotency-Key", key)
		}
		for {
			response, err := o.client.Do(q)
			if err == nil || !o.patient {
				return response, err
			}
			if err := pause(r.Context(), o.busyPause); err != nil {
				return nil, err
			}
			if q.Body, err = q.GetBody(); err != nil {
				return nil, err
			}
		}
	}, func() error { return pause(r.Context(), o.busyPause) })
	if err != nil {
		return err
	}
	var text jsontext.Value
	status, err := readJSON(response, &text)
	if err != nil {
		return err
	}
	if status != http.StatusOK && status != http.StatusAccepted {
		return fmt.Errorf("POST %s: %d %s", path, status, text)
	}
	return json.Unmarshal(text, into)
}

func writeEvent(w http.ResponseWriter, event string, data any) bool {
	b, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, b); err != nil {
		return false
	}
	return http.NewResponseController(w).Flush() == nil
}

// check verifies that every invocation belongs to a run in the store, and that the
// clerk was invoked at most once for a run.
func (o *externalAgents) check(l *ledger, known map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, all := range o.invocations {
		for run, times := range all {
			if !known[run] {
				l.report(lost, "the %s was invoked for run %s, which is not in the store", name, run)
			}
			if name == clerk && times > 1 {
				l.report(duplicated, "the clerk was invoked %d times for run %s", times, run)
			}
		}
	}
}
