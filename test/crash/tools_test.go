// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/runs"
)

// Each violation is counted as its kind, and correct calls are not.
func TestToolServiceReportsViolations(t *testing.T) {
	const approved, rejected = "ap_1.2.0", "ap_2.2.0"
	for _, test := range []struct {
		name     string
		requests []string // tool, call and word
		answer   string   // of the run for word-1
		want     [kinds]int
	}{
		{"one call", []string{payOnce + " 1.2.0 word-1"}, receipt("word-1"), [kinds]int{}},
		{"repeated safely", []string{paySafe + " 1.2.0 word-1", paySafe + " 1.2.0 word-1"}, receipt("word-1"), [kinds]int{}},
		{"unknown outcome", nil, "error outcome_unknown: …", [kinds]int{}},
		{"rejected", nil, "error approval_rejected: …", [kinds]int{}},
		{"twice", []string{payOnce + " 1.2.0 word-1", payOnce + " 1.2.0 word-1"}, receipt("word-1"), [kinds]int{duplicated: 1}},
		{"two calls", []string{paySafe + " 1.2.0 word-1", paySafe + " 1.3.0 word-1"}, "error outcome_unknown: …", [kinds]int{duplicated: 1}},
		{"no approval", []string{payOnce + " 3.2.0 word-3"}, "error outcome_unknown: …", [kinds]int{wrong: 1}},
		{"rejected, performed", []string{payOnce + " 2.2.0 word-2"}, "error outcome_unknown: …", [kinds]int{wrong: 2}}, // by the service and the audit
		{"reported as rejected, performed", []string{payOnce + " 1.2.0 word-1"}, "error approval_rejected: …", [kinds]int{wrong: 1}},
		{"not performed", nil, receipt("word-1"), [kinds]int{lost: 1}},
		{"failed", nil, "error timeout: …", [kinds]int{lost: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLedger(io.Discard)
			s, err := newToolService(l, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			for id, status := range map[string]runs.ApprovalStatus{approved: runs.ApprovalStatusApproved, rejected: runs.ApprovalStatusRejected} {
				s.sending(id, status == runs.ApprovalStatusApproved)
				s.decided(&approval{ID: id, Status: status.String()})
			}
			for _, r := range test.requests {
				f := strings.Fields(r)
				q, err := http.NewRequest(http.MethodPost, s.url+"/"+f[0], strings.NewReader(`{"word":"`+f[2]+`"}`))
				if err != nil {
					t.Fatal(err)
				}
				q.Header.Set("Idempotency-Key", f[1])
				response, err := http.DefaultClient.Do(q)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
			}
			l.add(&exchange{scenario: scenario{tool: payOnce}, n: 1, done: true, answer: test.answer})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				status := map[string]string{approved: "APPROVED", rejected: "REJECTED"}[strings.TrimPrefix(r.URL.Path, "/v1/approvals/")]
				_, _ = io.WriteString(w, `{"approval_id":"`+strings.TrimPrefix(r.URL.Path, "/v1/approvals/")+`","status":"`+status+`"}`)
			}))
			defer server.Close()
			inst := newInstance(t.Context(), server.URL, t.TempDir(), nil, 0)
			s.audit(inst)
			inst.close()
			if l.counts != test.want {
				t.Errorf("got %v, want %v", l.counts, test.want)
			}
		})
	}
}

// A decision that changes is lost.
func TestChangedDecisionIsLost(t *testing.T) {
	l := newLedger(io.Discard)
	s, err := newToolService(l, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.sending("ap_1.2.0", true)
	s.decided(&approval{ID: "ap_1.2.0", Status: "APPROVED"})
	s.decided(&approval{ID: "ap_1.2.0", Status: "REJECTED"})
	s.decided(&approval{ID: "ap_1.2.0", Status: "EXPIRED"})
	if l.counts != [kinds]int{lost: 1, wrong: 1} {
		t.Errorf("got %v", l.counts)
	}
}
