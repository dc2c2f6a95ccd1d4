// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/runs"
)

// The agents of the demo with an approval, and the address in the file of their tool.
const (
	approvalDir     = "examples/approval"
	paymentsAddress = "127.0.0.1:9000"
	planner         = "/v1/agents/planner/messages"
)

// paymentService performs payments over HTTP: it appends one line for each request to
// a ledger that belongs to it alone.
type paymentService struct {
	ledger string

	mu   sync.Mutex
	paid int
}

func (p *paymentService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	file, err := os.OpenFile(p.ledger, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(file, "%s call %s\n", body, r.Header.Get("Idempotency-Key"))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	p.paid++
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"receipt":%d}`, p.paid)
}

// servePayments runs the payment service alone, until the process ends.
func servePayments(address, ledger string) error {
	fmt.Printf("payments to http://%s are appended to %s\n", address, ledger)
	server := &http.Server{Addr: address, Handler: &paymentService{ledger: ledger}, ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServe()
}

// runApproval shows a tool call at depth two that waits for a person across a kill -9.
func (d *demo) runApproval() error {
	ledger, agents := filepath.Join(d.dir, "payments.txt"), filepath.Join(d.dir, "agents")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	service := &http.Server{Handler: &paymentService{ledger: ledger}, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- service.Serve(listener) }()
	defer func() { _ = service.Close(); <-served }()
	printStep("A payment service listens at http://%s. It appends each payment to\na ledger of its own, %s.\nThe agent files are those of %s, with this address.", listener.Addr(), ledger, approvalDir)
	if err := copyAgents(agents, listener.Addr().String()); err != nil {
		return err
	}
	if err := d.start("--agents", agents); err != nil {
		return err
	}

	printStep("Send a message to the planner and stream the answer. The planner asks the\nbookkeeper, who asks the cashier, who wants to send money. The call waits for a person,\nand the stream of the planner names the approval.")
	const content = `ask bookkeeper: ask cashier: use payments.transfer {"to": "anna", "amount": 20}`
	id := ""
	before, err := d.stream(http.MethodPost, planner, fmt.Appendf(nil, `{"content": %q, "session": "trip"}`, content), 0, func(e *runs.Event) bool {
		d.id = e.Run
		if e.Type == runs.ApprovalRequired {
			id = e.Approval
		}
		return id != ""
	})
	if err != nil {
		return err
	}
	if err := d.expectOutput(id, "approvals", "list", "--server", d.url); err != nil {
		return err
	}
	if err := d.expectOutput("depth 2", "runs", "show", d.id.String(), "--tree", "--server", d.url); err != nil {
		return err
	}
	if err := checkLedger(ledger, 0); err != nil {
		return err
	}

	printStep("Kill the server with kill -9 and start a new process on the same data folder. The\napproval still waits, with the same ID.")
	killed := d.server.Pid()
	d.stop(syscall.SIGKILL) //nolint:errcheck // a killed process never exits with code 0
	fmt.Printf("  process %d was killed\n", killed)
	if err := d.start("--agents", agents); err != nil {
		return err
	}
	if err := d.expectOutput("PENDING", "approvals", "show", id, "--server", d.url); err != nil {
		return err
	}
	if err := checkLedger(ledger, 0); err != nil {
		return err
	}

	printStep("A person approves. The payment is made.")
	if err := d.expectOutput(`SUCCEEDED: {"receipt":1}`, "approvals", "approve", id, "--reason", "asked Anna", "--server", d.url); err != nil {
		return err
	}
	printStep("Only the first decision counts. A second one is refused, with exit code 1 and over\nHTTP with status 409.")
	if err := d.refuseDecision(id); err != nil {
		return err
	}
	printStep("The client resumes its stream after the last event it received. The answer arrives.")
	after, err := d.resume(before)
	if err != nil {
		return err
	}
	record, err := runs.Fold(after) // fails on a gap or a wrong order
	if err != nil {
		return err
	}
	if record.Status != runs.Done || record.Text != `{"receipt":1}` {
		return fmt.Errorf("the run is %s with the answer %q, want the receipt", record.Status, record.Text)
	}
	fmt.Printf("\n  answer: %s\n", record.Text)

	printStep("Stop the server. The ledger of the payment service has one line.")
	if err := d.stop(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if err := checkLedger(ledger, 1); err != nil {
		return err
	}
	printStep("One approval, one payment, one answer, over two processes.")
	return nil
}

// copyAgents copies the files of the example and replaces the address of its payment
// service.
func copyAgents(dir, address string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(approvalDir, "*.toml"))
	for _, file := range files {
		b, readErr := os.ReadFile(file)
		text := strings.ReplaceAll(string(b), paymentsAddress, address)
		err = errors.Join(err, readErr, os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(text), 0o600))
	}
	return err
}

// checkLedger prints the ledger and checks the number of its lines.
func checkLedger(path string, want int) error {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	fmt.Printf("\n  payments in the ledger: %d\n", strings.Count(string(b), "\n"))
	for line := range strings.Lines(string(b)) {
		fmt.Print("  ", line)
	}
	if n := strings.Count(string(b), "\n"); n != want {
		return fmt.Errorf("the ledger %s has %d payments, want %d", path, n, want)
	}
	return nil
}

// expectOutput runs the binary and checks that its output contains a text.
func (d *demo) expectOutput(want string, args ...string) error {
	out, err := d.output(args...)
	if err == nil && !strings.Contains(out, want) {
		err = fmt.Errorf("the output has no %q", want)
	}
	return err
}

// refuseDecision decides about a decided approval.
func (d *demo) refuseDecision(id string) error {
	out, err := d.output("approvals", "reject", id, "--reason", "too late", "--server", d.url)
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(out, "approval_decided") {
		return fmt.Errorf("a second decision ended with %v, want exit status 1 and approval_decided", err)
	}
	fmt.Printf("  %v\n", err)
	err = d.post("/v1/approvals/"+id+":decide", map[string]string{"decision": "reject"}, nil)
	if err == nil || !strings.Contains(err.Error(), ": 409 ") {
		return fmt.Errorf("a second decision over HTTP ended with %v, want 409", err)
	}
	fmt.Printf("  %v\n", err)
	return nil
}
