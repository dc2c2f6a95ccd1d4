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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/runs"
)

// The tools. A person must approve each call. A call of payOnce that a kill interrupts is
// not repeated, and its outcome is unknown; one of paySafe is repeated with the same key.
const (
	payOnce = "payments.once"
	paySafe = "payments.safe"
)

// toolService performs the tools over HTTP. Its ledger is independent of the server: it has
// each request by its Idempotency-Key, which is the ID of the call.
type toolService struct {
	url     string
	server  *http.Server
	ledger  *ledger
	running atomic.Int64 // requests without a complete answer
	waiting atomic.Int64 // approvals in the latest list of a decider

	mu       sync.Mutex
	requests map[string]int      // number of requests by call
	calls    map[string]string   // call by the word in its arguments
	verdicts map[string]*verdict // by call
	known    []string            // calls with a verdict
	deciders [deciderCount]decider
}

// verdict records the decisions about a call.
type verdict struct {
	approving bool                // an approval was sent, perhaps without an answer
	status    runs.ApprovalStatus // acknowledged; 0 if there was no answer
}

func newToolService(l *ledger, seed uint64) (*toolService, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &toolService{url: "http://" + listener.Addr().String(), ledger: l, requests: map[string]int{}, calls: map[string]string{}, verdicts: map[string]*verdict{}}
	for i := range s.deciders {
		s.deciders[i] = decider{toolService: s, rng: rand.New(rand.NewPCG(seed, uint64(1000+i)))}
	}
	s.server = serveHTTP(listener, http.HandlerFunc(s.perform))
	return s, nil
}

func (s *toolService) close() { _ = s.server.Close() }

// writeTools writes the files of the tools.
func (s *toolService) writeTools(dir string) error {
	for _, tool := range []string{payOnce, paySafe} {
		text := fmt.Sprintf("[tool]\ntool_name = %q\nurl = \"%s/%s\"\nidempotent = %t\npolicy = \"require_approval\"\napproval_timeout_ms = 3600000\ntimeout_ms = 300000\non_failure = \"return_error\"\n", tool, s.url, tool, tool == paySafe)
		if err := os.WriteFile(filepath.Join(dir, tool+".toml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// toolArgs are the arguments of both tools.
type toolArgs struct {
	Word string `json:"word"`
}

// receipt returns the result of a call.
func receipt(word string) string { return fmt.Sprintf(`{"receipt":%q}`, word) }

// perform records a request and answers it after 8 to 256 ms.
func (s *toolService) perform(w http.ResponseWriter, r *http.Request) {
	s.running.Add(1)
	defer s.running.Add(-1)
	call, tool := r.Header.Get("Idempotency-Key"), strings.TrimPrefix(r.URL.Path, "/")
	var args toolArgs
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(b, &args)
	}
	if err != nil || call == "" || args.Word == "" {
		s.ledger.report(wrong, "%s: invalid request of call %q: %s, %v", tool, call, b, err)
		http.Error(w, "invalid request", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.requests[call]++
	n, earlier, v := s.requests[call], s.calls[args.Word], s.verdicts[call]
	s.calls[args.Word] = call
	unapproved, rejected := v == nil || !v.approving, v != nil && v.status == runs.ApprovalStatusRejected
	s.mu.Unlock()
	switch {
	case n > 1 && tool == payOnce:
		s.ledger.report(duplicated, "%s: call %s was performed %d times", tool, call, n)
	case earlier != "" && earlier != call:
		s.ledger.report(duplicated, "%s: %s was paid by the calls %s and %s", tool, args.Word, earlier, call)
	case rejected:
		s.ledger.report(wrong, "%s: call %s was performed after its rejection", tool, call)
	case unapproved:
		s.ledger.report(wrong, "%s: call %s was performed without an approval", tool, call)
	}
	if pause(r.Context(), 8*time.Millisecond<<rand.IntN(6)) != nil {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, receipt(args.Word))
}

// approval is a response about an approval: the approval, or a problem.
type approval struct {
	ID     string `json:"approval_id"`
	Status any    `json:"status"` // a state, or the HTTP status of a problem
	Reason string `json:"reason"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// callOf returns the ID of the call that an approval is about.
func callOf(id string) string { return strings.TrimPrefix(id, "ap_") }

// sending records that an approval is about to be sent.
func (s *toolService) sending(id string, approve bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.verdicts[callOf(id)]
	if v == nil {
		v = &verdict{}
		s.verdicts[callOf(id)] = v
		s.known = append(s.known, id)
	}
	v.approving = v.approving || approve
}

// decided records an acknowledged decision. It never changes.
func (s *toolService) decided(a *approval) {
	status, err := runs.ParseApprovalStatus(fmt.Sprint(a.Status))
	if err != nil || status != runs.ApprovalStatusApproved && status != runs.ApprovalStatusRejected {
		s.ledger.report(wrong, "approval %s is %v: %s, want a decision", a.ID, a.Status, a.Reason)
		return
	}
	s.mu.Lock()
	v := s.verdicts[callOf(a.ID)]
	before := cmp.Or(v.status, status)
	v.status = status
	s.mu.Unlock()
	if before != status {
		s.ledger.report(lost, "approval %s was %s and is %s", a.ID, before, status)
	}
}

// deciderCount is the number of concurrent deciders. Several may decide about the same call.
const deciderCount = 3

// decider approves or rejects one call after another. A decision that a kill interrupted is
// sent again to the next instance.
type decider struct {
	*toolService
	rng     *rand.Rand
	pending *decision
}

type decision struct{ id, verb, key string }

// decide runs all deciders until the server exits or ctx ends. It returns a function that
// waits for them.
func (s *toolService) decide(ctx context.Context, inst *instance) (wait func()) {
	var all sync.WaitGroup
	for i := range s.deciders {
		d := &s.deciders[i]
		all.Go(func() {
			for !inst.stopped() && pause(ctx, time.Duration(5+d.rng.IntN(30))*time.Millisecond) == nil {
				if err := d.step(inst); err != nil && !inst.exitsSoon() {
					s.ledger.report(wrong, "a request about an approval failed although the server runs: %v", err)
				}
			}
		})
	}
	return all.Wait
}

// step sends a decision, or checks an earlier one.
func (d *decider) step(inst *instance) error {
	if d.pending == nil && d.rng.IntN(8) == 0 {
		return d.recheck(inst)
	}
	if d.pending == nil {
		var list struct {
			Approvals []approval `json:"approvals"`
		}
		if status, err := inst.askOnce(request{http.MethodGet, "/v1/approvals", "", nil}, &list); err != nil || status != http.StatusOK {
			return err
		}
		d.waiting.Store(int64(len(list.Approvals)))
		if len(list.Approvals) == 0 {
			return nil
		}
		d.pending = &decision{list.Approvals[d.rng.IntN(len(list.Approvals))].ID, "approve", fmt.Sprintf("decision-%x", d.rng.Uint64())}
		if d.rng.IntN(4) == 0 {
			d.pending.verb = "reject"
		}
	}
	return d.send(inst)
}

// send sends the pending decision. After an error it remains pending.
func (d *decider) send(inst *instance) error {
	p := d.pending
	d.sending(p.id, p.verb == "approve")
	var a approval
	status, err := inst.askOnce(request{http.MethodPost, "/v1/approvals/" + p.id + ":decide", fmt.Sprintf(`{"decision":%q}`, p.verb), []string{"Idempotency-Key", p.key}}, &a)
	switch {
	case err != nil || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return err
	case status == http.StatusOK:
		d.decided(&a)
		if want := map[string]runs.ApprovalStatus{"approve": runs.ApprovalStatusApproved, "reject": runs.ApprovalStatusRejected}[p.verb]; fmt.Sprint(a.Status) != want.String() {
			d.ledger.report(wrong, "approval %s: %s was accepted and it is %v", p.id, p.verb, a.Status)
		}
	case status == http.StatusConflict && a.Code == "approval_decided":
		if err := d.show(inst, p.id); err != nil {
			return err
		}
	default:
		d.ledger.report(wrong, "approval %s: %s is answered with %d %s: %s", p.id, p.verb, status, a.Code, a.Detail)
	}
	d.pending = nil
	return nil
}

// recheck compares a random decided approval with the server.
func (d *decider) recheck(inst *instance) error {
	d.mu.Lock()
	id := ""
	if len(d.known) > 0 {
		id = d.known[d.rng.IntN(len(d.known))]
	}
	decided := id != "" && d.verdicts[callOf(id)].status != 0
	d.mu.Unlock()
	if !decided {
		return nil
	}
	return d.show(inst, id)
}

// show reads a decided approval and compares it with the answer acknowledged earlier.
func (s *toolService) show(inst *instance, id string) error {
	var a approval
	status, err := inst.askOnce(request{http.MethodGet, "/v1/approvals/" + id, "", nil}, &a)
	switch {
	case err != nil || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return err
	case status != http.StatusOK:
		s.ledger.report(lost, "approval %s is answered with %d %s: %s", id, status, a.Code, a.Detail)
	default:
		s.decided(&a)
	}
	return nil
}

// audit compares the approvals of the server, the results of the runs and the ledger of the
// tools. All runs MUST have ended.
func (s *toolService) audit(inst *instance) {
	for _, id := range s.known {
		if err := s.show(inst, id); err != nil {
			s.ledger.report(wrong, "approval %s cannot be read: %v", id, err)
		}
		if call := callOf(id); s.verdicts[call].status == runs.ApprovalStatusRejected && s.requests[call] > 0 {
			s.ledger.report(wrong, "call %s was rejected and performed", call)
		}
	}
	for _, e := range s.ledger.exchanges {
		if e.tool == "" || !e.done {
			continue
		}
		word := fmt.Sprintf("word-%d", e.n)
		call := s.calls[word]
		var status runs.ApprovalStatus
		if v := s.verdicts[call]; v != nil {
			status = v.status
		}
		succeeded, rejected := strings.Contains(e.answer, receipt(word)), strings.Contains(e.answer, "approval_rejected")
		switch {
		case succeeded && call == "":
			s.ledger.report(lost, "%s: reported success, but the tool was not asked", e)
		case succeeded && status != runs.ApprovalStatusApproved, rejected && call != "":
			s.ledger.report(wrong, "%s: ended with %q, its call %q is %s", e, e.answer, call, status)
		case !succeeded && !rejected && (e.tool != payOnce || !strings.Contains(e.answer, "outcome_unknown")):
			s.ledger.report(lost, "%s: ended with %q", e, e.answer)
		}
	}
}

// summary returns the number of calls and requests of the ledger, and of decisions.
func (s *toolService) summary() string {
	requests, decisions := 0, [2]int{}
	for _, n := range s.requests {
		requests += n
	}
	for _, v := range s.verdicts {
		if v.status == runs.ApprovalStatusRejected {
			decisions[1]++
		} else {
			decisions[0]++
		}
	}
	return fmt.Sprintf("%d tool calls approved and %d rejected; the tools performed %d calls in %d requests", decisions[0], decisions[1], len(s.requests), requests)
}
