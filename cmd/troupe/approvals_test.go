// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// payments is a server whose agent payer uses the tool payments.transfer, each call of which
// a person must approve.
type payments struct {
	commandCheck
	server *server
	data   string        // folder of the server
	files  string        // folder of its agents and tools
	paid   *atomic.Int64 // requests to the tool

	// onPayment is called with the Idempotency-Key of each request to the tool, before the answer.
	onPayment atomic.Pointer[func(key string)]
}

func startPayments(t *testing.T, fields string) *payments {
	t.Helper()
	p := &payments{paid: new(atomic.Int64)}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if f := p.onPayment.Load(); f != nil {
			(*f)(r.Header.Get("Idempotency-Key"))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"receipt":%d}`, p.paid.Add(1))
	}))
	t.Cleanup(service.Close)
	p.files = writeFiles(t, `>> payer.toml
name = "payer"
tools = ["payments.transfer"]
>> boss.toml
name = "boss"
agents = ["payer"]
>> pay.toml
[tool]
tool_name = "payments.transfer"
url = "`+service.URL+`/pay"
policy = "require_approval"
args_summary = "pays {{amount}} to {{to}}"
input_schema = '{"type": "object", "properties": {"to": {}, "amount": {}}}'
`+fields)
	p.data = filepath.Join(t.TempDir(), "data")
	p.commandCheck = commandCheck{T: t}
	p.start()
	return p
}

func (p *payments) start() {
	p.Helper()
	p.server = startServer(p.T, p.data, "--agents", p.files)
	p.flags = []string{"--server", p.server.url}
}

// restart kills the server and starts it again.
func (p *payments) restart() {
	p.Helper()
	p.server.stop(syscall.SIGKILL)
	p.start()
}

// pay makes the payer call its tool and returns the ID of the approval.
func (p *payments) pay(agent, amount string) (approval string) {
	p.Helper()
	var reply struct {
		Run       string         `json:"run_id"`
		Approvals []approvalView `json:"approvals"`
	}
	body, _ := json.Marshal(map[string]string{"content": script(agent, amount)})
	if status, err := p.server.request("POST", "/v1/agents/"+agent+"/messages", string(body), "", &reply); status != 202 || err != nil || len(reply.Approvals) != 1 {
		p.Fatal(status, err, reply)
	}
	return reply.Approvals[0].ID
}

// script returns a message that makes an agent pay.
func script(agent, amount string) string {
	text := `use payments.transfer {"to": "a\u006ena", "amount": ` + amount + `}`
	if agent == "boss" {
		return "ask payer: " + text
	}
	return text
}

var approvalID = regexp.MustCompile(`ap_[0-9a-f-]{36}\.\d+\.\d+`)

func TestApprovalsAreDecided(t *testing.T) {
	p := startPayments(t, "")
	p.run(0, nil, []string{"nothing waits for a person", "require_approval"}, "approvals", "list")
	p.run(0, []string{`"approvals": []`}, nil, "approvals", "list", "--json")

	// A call that waits names the commands that decide about it.
	_, stderr := p.run(3, nil, []string{"waits for the approval of payments.transfer (pays 5.1 to anna)", "troupe approvals show ap_", "troupe approvals approve ap_", "troupe approvals reject ap_", "and then:\n  troupe runs show "},
		"call", "payer", script("payer", "5.10"), "--session", "s-1")
	id := approvalID.FindString(stderr)
	runID := id[len("ap_"):][:36]
	p.run(3, []string{`"approval_id": "ap_`}, nil, "call", "boss", script("boss", "6"), "--session", "s-2", "--json")
	p.run(0, []string{"APPROVAL ", id + "  payments.transfer  payer  ", "pays 5.1 to anna", "pays 6 to anna"}, nil, "approvals", "list")
	out, _ := p.run(0, []string{`"args_summary": "pays 6 to anna"`}, nil, "approvals", "list", "--json")
	other := approvalID.FindAllString(out, -1)[1]
	p.run(0, []string{"approval   " + id, "status     PENDING\n", "tool       payments.transfer", "agent      payer", "session    s-1", "run        " + runID, "root       " + runID, "requested  20", "expires    20",
		`"amount": 5.1`}, nil, "approvals", "show", id)
	p.run(0, []string{"status     PENDING"}, nil, "approvals", "show", strings.TrimPrefix(id, "ap_"))
	p.run(0, []string{`"status": "PENDING"`}, nil, "approvals", "show", id[:len("ap_")+30], "--json")
	p.run(0, []string{"status   PAUSED_WAITING_APPROVAL", "approval " + id + "  payments.transfer  until ", "pays 5.1 to anna"}, []string{"troupe approvals approve " + id}, "runs", "show", runID)

	// Beginnings that are too short, shared or unknown decide nothing.
	p.run(1, nil, []string{"want ap_ and at least 13 characters after it"}, "approvals", "approve", id[:len("ap_")+12])
	p.run(1, nil, []string{"is the beginning of several approvals", id, other}, "approvals", "show", id[:len("ap_")+4])
	p.run(1, nil, []string{"no pending approval begins with"}, "approvals", "reject", "0000-0000-0000-0000")
	p.run(2, nil, []string{"want the ID of an approval"}, "approvals", "approve", "xyz")
	p.run(2, nil, []string{"--wait: want 0s to 5m0s"}, "approvals", "approve", id, "--wait", "1h")
	p.run(1, nil, []string{"approval_not_found", "troupe approvals list"}, "approvals", "approve", "ap_"+exampleRun+".1.0")
	p.run(1, nil, []string{"approval_not_found"}, "approvals", "show", "ap_"+exampleRun+".1.0")
	if n := p.paid.Load(); n != 0 {
		t.Fatalf("%d requests before an approval", n)
	}

	p.run(0, []string{"payments.transfer: pays 5.1 to anna\n{\"amount\":5.1,\"to\":\"anna\"}\napproved payments.transfer: pays 5.1 to anna\n", `payments.transfer SUCCEEDED: {"receipt":1}`}, nil, "approvals", "approve", id, "--reason", "asked Anna")
	p.run(1, nil, []string{"approval_decided", "APPROVED", "asked Anna"}, "approvals", "reject", id)
	p.run(0, []string{"status     APPROVED", ": asked Anna\n"}, nil, "approvals", "show", id)
	p.run(0, []string{"policy_decision      2.0 payments.transfer require_approval", "approval_created     2.0 payments.transfer " + id, "run_paused           approval", "approval_decision    2.0 payments.transfer APPROVED", "run_resumed          approval"}, nil, "runs", "events", runID)
	p.run(0, []string{"rejected payments.transfer: pays 6 to anna\n", "payments.transfer FAILED: "}, nil, "approvals", "reject", other, "--reason", "too much")
	p.run(0, nil, []string{"nothing waits"}, "approvals", "list")
	if n := p.paid.Load(); n != 1 {
		t.Errorf("%d requests after one approval", n)
	}
	below := p.pay("boss", "9")
	var shown approvalView
	if status, err := p.server.request("GET", "/v1/approvals/"+below, "", "", &shown); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	if out, _ := p.run(0, []string{"approval " + below + "  payments.transfer  until ", "  pays 9 to anna\n"}, []string{"troupe approvals approve " + below}, "runs", "show", shown.Root); strings.Contains(out, " \n") {
		t.Errorf("a line ends with a space: %q", out)
	}
	p.run(0, []string{"approved payments.transfer: pays 7 to anna\n"}, nil, "approvals", "approve", p.pay("payer", "7"), "--no-wait")
	p.run(0, []string{`"status": "REJECTED"`}, nil, "approvals", "reject", p.pay("boss", "8"), "--json")
}

// A streamed call names the commands, and continues after the decision.
func TestStreamedCallWaitsForApproval(t *testing.T) {
	p := startPayments(t, "")
	c := programCmd("call", "boss", script("boss", "5"), "--stream", "--server", p.server.url)
	stderr, err := c.StderrPipe()
	var out bytes.Buffer
	if c.Stdout = &out; err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(stderr)
	id := ""
	for id == "" && in.Scan() {
		id = approvalID.FindString(in.Text())
	}
	p.run(0, []string{"approved "}, nil, "approvals", "approve", id)
	var rest strings.Builder
	for in.Scan() {
		rest.WriteString(in.Text() + "\n")
	}
	if err := c.Wait(); err != nil || !strings.Contains(out.String(), `{"receipt":1}`) || strings.Contains(rest.String(), "paused") {
		t.Errorf("%v, answer %q, notes %q", err, out.String(), rest.String())
	}
}

// watched runs approvals watch and returns its lines of standard output.
func (p *payments) watched(args ...string) (lines *bufio.Scanner, stop func() int) {
	p.Helper()
	c := programCmd(append([]string{"approvals", "watch", "--server", p.server.url}, args...)...)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		p.Fatal(err)
	}
	return bufio.NewScanner(out), func() int {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
		return c.ProcessState.ExitCode()
	}
}

func TestWatchPrintsApprovals(t *testing.T) {
	p := startPayments(t, "")
	first := p.pay("payer", "1")
	lines, stop := p.watched()
	next := func(want ...string) {
		t.Helper()
		lines.Scan()
		for _, text := range want {
			if !strings.Contains(lines.Text(), text) {
				t.Fatalf("got %q, want %q", lines.Text(), want)
			}
		}
	}
	next(first + "  payments.transfer  pays 1 to anna  agent payer  expires in ")
	second := p.pay("boss", "2")
	next(second, "pays 2 to anna")
	p.run(0, []string{"rejected"}, nil, "approvals", "reject", first, "--reason", "no")
	next(first, "REJECTED", ": no")
	if code := stop(); code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	p.server.stop(syscall.SIGKILL)
	p.run(1, nil, []string{"no server answers"}, "approvals", "watch")
}

func TestApprovalExpires(t *testing.T) {
	p := startPayments(t, "approval_timeout_ms = 300")
	_, stderr := p.run(3, nil, []string{"waits for the approval"}, "call", "payer", script("payer", "1"))
	id := approvalID.FindString(stderr)
	waitUntil(t, "expiry", func() bool {
		var a approvalView
		_, err := p.server.request("GET", "/v1/approvals/"+id, "", "", &a)
		return err == nil && a.Status == "EXPIRED"
	})
	p.run(0, []string{"status     EXPIRED at ", "nobody decided"}, nil, "approvals", "show", id)
	p.run(1, nil, []string{"approval_decided", "EXPIRED"}, "approvals", "approve", id)
	if n := p.paid.Load(); n != 0 {
		t.Errorf("%d requests after the expiry", n)
	}
}

// An approval waits across a crash of the server. It expires when its run is cancelled.
func TestApprovalSurvivesCrash(t *testing.T) {
	p := startPayments(t, "")
	cancelled, waiting := p.pay("boss", "1"), p.pay("payer", "2")
	p.restart()
	waitUntil(t, "recovery", func() bool {
		var list approvalList
		status, err := p.server.request("GET", "/v1/approvals", "", "", &list)
		return err == nil && status == 200 && len(list.Approvals) == 2
	})
	p.run(0, []string{cancelled, waiting}, nil, "approvals", "list")
	p.run(0, nil, []string{"is cancelled"}, "runs", "cancel", cancelled[len("ap_"):][:36])
	p.run(0, []string{"status     EXPIRED", "the run has ended"}, nil, "approvals", "show", cancelled)
	p.run(1, nil, []string{"approval_decided"}, "approvals", "approve", cancelled)
	p.run(0, []string{`SUCCEEDED: {"receipt":1}`}, nil, "approvals", "approve", waiting)
	// The tool has changed since it was shown.
	changed := p.pay("payer", "3")
	file := filepath.Join(p.files, "pay.toml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(text, "description = \"Pays.\"\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p.restart()
	p.run(1, []string{`{"amount":3,"to":"anna"}`}, []string{"approval_decided", "has changed"}, "approvals", "approve", changed)
	p.run(0, []string{"status     EXPIRED", "has changed"}, nil, "approvals", "show", changed)
	if n := p.paid.Load(); n != 1 {
		t.Errorf("%d requests after one approval", n)
	}
}

// An operator sees the approvals of all users, and decides about those of one.
func TestApprovalsOfUsers(t *testing.T) {
	p := startPayments(t, "")
	ids := map[string]string{}
	for _, user := range []string{"alice@example.com", "bob"} {
		_, stderr := p.run(3, nil, []string{"--user " + user}, "call", "boss", script("boss", "5"), "--user", user)
		ids[user] = approvalID.FindString(stderr)
	}
	p.run(0, nil, []string{"nothing waits"}, "approvals", "list")
	p.run(0, []string{"  payments.transfer  alice@example.com  payer  ", ids["alice@example.com"], ids["bob"]}, nil, "approvals", "list", "--user", "*")
	p.run(0, []string{ids["bob"]}, nil, "approvals", "list", "--user", "bob")
	p.run(0, []string{"user       bob"}, nil, "approvals", "show", ids["bob"])
	p.run(0, []string{"user       bob"}, nil, "approvals", "show", ids["bob"][:40])
	code, made, _ := runProgram(t, "keys", "create", "--data", p.data, "--user", "carol")
	if code != 0 {
		t.Fatal(made)
	}
	for _, id := range []string{ids["bob"], ids["bob"][:40]} {
		p.run(1, nil, []string{"troupe approvals list --server " + p.server.url + "; those of other users, with the scope operator: troupe approvals list --user '*'"}, "approvals", "approve", id, "--key", strings.TrimSpace(made))
	}
	p.run(1, nil, []string{"approval_not_found"}, "approvals", "show", ids["bob"], "--user", "carol")
	p.run(1, nil, []string{ids["bob"][:15] + ": want ap_ and at least 13 characters after it"}, "approvals", "approve", ids["bob"][:15])
	p.run(2, nil, []string{"--user: want one user"}, "approvals", "show", ids["bob"], "--user", "*")
	lines, stop := p.watched("--user", "*")
	for _, user := range []string{"alice@example.com", "bob"} {
		if lines.Scan(); !strings.HasPrefix(lines.Text(), ids[user]+"  payments.transfer  "+user+"  pays 5 to anna  agent payer") {
			t.Errorf("watch printed %q", lines.Text())
		}
	}
	p.run(0, []string{"approved", "SUCCEEDED"}, []string{"the approval is one of the user bob"}, "approvals", "approve", ids["bob"])
	p.run(0, []string{"status     APPROVED", "user       bob"}, nil, "approvals", "show", ids["bob"]) // which no list has
	p.run(1, nil, []string{"approval_decided", "APPROVED"}, "approvals", "reject", ids["bob"])
	p.run(1, nil, []string{"approval_not_found"}, "approvals", "show", ids["bob"], "--key", strings.TrimSpace(made))
	p.run(1, nil, []string{"approval_not_found"}, "approvals", "show", "ap_01939c3e-0000-7000-8000-000000000000.1.0")
	if lines.Scan(); !strings.Contains(lines.Text(), ids["bob"]+"  payments.transfer  bob  APPROVED") {
		t.Errorf("watch printed %q", lines.Text())
	}
	p.run(0, []string{"rejected"}, []string{"of the user alice@example.com"}, "approvals", "reject", ids["alice@example.com"][:40])
	stop()
}

// An answer that was typed before its question could be read decides nothing, nor does one
// for a question that was withdrawn.
func TestEarlyAnswersDoNotCount(t *testing.T) {
	var decisions atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			decisions.Add(1)
		}
		_, _ = io.WriteString(w, `{"approval_id":"ap_1","tool_name":"pay","status":"APPROVED","decided_by":"bob"}`)
	}))
	defer service.Close()
	var out, stderr bytes.Buffer
	w := watch{streams: streams{&out, &stderr}, client: client{server: service.URL}, skipped: map[string]bool{}, answers: make(chan string)}
	w.answer("y") // to no question
	w.pending = []approvalView{{ID: "ap_1", Tool: "pay"}, {ID: "ap_2", Tool: "pay"}}
	w.ask()
	w.answer("y")
	if w.asked == nil || decisions.Load() != 0 || strings.Count(stderr.String(), "[y/n/s]") != 2 || !strings.Contains(stderr.String(), "too early") {
		t.Fatalf("%d decisions, output %q", decisions.Load(), stderr.String())
	}
	asked := w.from
	w.printEnd(&w.pending[0])
	w.pending = w.pending[1:]
	if !strings.Contains(out.String(), "APPROVED by bob") || !strings.Contains(stderr.String(), "needs no answer") {
		t.Errorf("output %q, %q", out.String(), stderr.String())
	}
	if w.ask(); w.asked.ID != "ap_2" || w.from.Sub(asked) < answerDelayWithdrawn-answerDelay {
		t.Errorf("question about %+v, answers count from %s after the first question on", w.asked, w.from.Sub(asked))
	}
	for w.from = time.Now(); w.asked != nil; { // from now on answers count
		w.answer("y")
	}
	if decisions.Load() != 1 {
		t.Errorf("%d decisions", decisions.Load())
	}
}

// The list is read to its end. A server that is starting is asked again, another one that is
// unavailable is not.
func TestApprovalsListReadsEachPage(t *testing.T) {
	var requests atomic.Int64
	unavailable := `,"retry_after":1}`
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch n := requests.Add(1); {
		case n == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"title":"x","detail":"loading","code":"unavailable","status":503`+unavailable)
		case r.URL.Query().Get("cursor") == "":
			fmt.Fprint(w, `{"approvals":[{"approval_id":"ap_1","tool_name":"first"}],"next_cursor":"c1"}`)
		default:
			fmt.Fprint(w, `{"approvals":[{"approval_id":"ap_2","tool_name":"second"}]}`)
		}
	}))
	t.Cleanup(service.Close)
	c := commandCheck{T: t, flags: []string{"--server", service.URL}}
	c.run(0, []string{"ap_1      first ", "ap_2      second "}, nil, "approvals", "list")
	requests.Store(1)
	if out, _ := c.run(0, []string{`"ap_1"`, `"ap_2"`}, nil, "approvals", "list", "--json"); strings.Contains(out, "cursor") {
		t.Error(out)
	}
	p := payments{commandCheck: c, server: &server{url: service.URL}}
	requests.Store(0)
	lines, stop := p.watched()
	for _, want := range []string{"ap_1  first", "ap_2  second"} {
		if lines.Scan(); !strings.HasPrefix(lines.Text(), want) {
			t.Errorf("watch printed %q, want %q", lines.Text(), want)
		}
	}
	stop()
	unavailable = `}`
	requests.Store(0)
	if c.run(1, nil, []string{"loading"}, "approvals", "list"); requests.Load() != 1 {
		t.Errorf("%d requests", requests.Load())
	}
}
