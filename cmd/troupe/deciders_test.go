// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	deciderRounds = 5
	deciderCount  = 16
)

// The tool of deciders is asked once for each approved call. A crash may repeat the request, with
// the same key, only if the tool is idempotent.
func TestSixteenDecidersAcrossKills(t *testing.T) {
	for _, idempotent := range []bool{true, false} {
		t.Run(fmt.Sprintf("idempotent=%t", idempotent), func(t *testing.T) {
			began := time.Now()
			d := &deciders{payments: startPayments(t, fmt.Sprintf("idempotent = %t\n", idempotent))}
			receive := d.receive
			d.onPayment.Store(&receive)
			for round := range deciderRounds {
				d.round(round, idempotent)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("%d rounds took %s, want at most a minute", deciderRounds, took)
			}
		})
	}
}

// deciders approve one call at once while the server is killed.
type deciders struct {
	*payments

	mu     sync.Mutex
	ledger []string     // Idempotency-Keys of the requests to the tool, in order
	paying func()       // called at each request to the tool
	url    atomic.Value // of the present server
}

// receive appends a request to the ledger of the tool.
func (d *deciders) receive(key string) {
	d.mu.Lock()
	d.ledger = append(d.ledger, key)
	paying := d.paying
	d.mu.Unlock()
	paying()
}

// killMoments are the moments of a round at which its server is killed.
var killMoments = [deciderRounds]string{"at once", "after the first answer", "while the tool is asked", "after half of the answers", "after the tool answered"}

// round makes one call, kills the server during the decisions and compares the ledger.
func (d *deciders) round(n int, idempotent bool) {
	d.Helper()
	id := d.pay([]string{"payer", "boss"}[n%2], fmt.Sprint(n+1))
	var answers atomic.Int64
	kill, restarted := make(chan struct{}), make(chan struct{})
	killNow := sync.OnceFunc(func() { close(kill) })
	d.mu.Lock()
	before := len(d.ledger)
	d.paying = func() {
		if killMoments[n] == "while the tool is asked" {
			killNow()
			<-restarted // the server never gets this answer
		}
	}
	d.mu.Unlock()
	d.url.Store(d.server.url)
	accepted := make([]bool, deciderCount)
	var all sync.WaitGroup
	for i := range deciderCount {
		all.Go(func() {
			accepted[i] = d.decide(id, i, restarted)
			if answered := answers.Add(1); answered == 1 && killMoments[n] == "after the first answer" || answered == deciderCount/2 && killMoments[n] == "after half of the answers" {
				killNow()
			}
		})
	}
	switch killMoments[n] {
	case "at once":
		killNow()
	case "after the tool answered":
		waitUntil(d.T, "payment", func() bool { state, _ := d.call(id); return state == "SUCCEEDED" })
		killNow()
	}
	<-kill
	d.restart()
	d.url.Store(d.server.url)
	close(restarted)
	all.Wait()
	var state, code string
	waitUntil(d.T, "end of the call", func() bool {
		state, code = d.call(id)
		return state == "SUCCEEDED" || state == "FAILED"
	})
	d.mu.Lock()
	requests := slices.Clone(d.ledger[before:])
	d.mu.Unlock()
	lines := slices.Compact(slices.Clone(requests))
	key := strings.TrimPrefix(id, "ap_")
	switch {
	case slices.ContainsFunc(lines, func(line string) bool { return line != key }):
		d.Errorf("killed %s: the ledger has %q, want the call %s only", killMoments[n], lines, key)
	case (idempotent || state == "SUCCEEDED") && (len(lines) != 1 || state != "SUCCEEDED"):
		d.Errorf("killed %s: the call is %s, with the lines %q", killMoments[n], state, lines)
	case state == "FAILED" && code != "outcome_unknown":
		d.Errorf("killed %s: the call failed with %s, want outcome_unknown", killMoments[n], code)
	case !idempotent && len(requests) > 1:
		d.Errorf("killed %s: the tool is not idempotent and got %d requests", killMoments[n], len(requests))
	}
	winners := 0
	for _, won := range accepted {
		if won {
			winners++
		}
	}
	if winners > 1 {
		d.Errorf("killed %s: %d decisions were accepted", killMoments[n], winners)
	}
	d.Logf("killed %s: %d of %d decisions accepted, call %s, %d requests, %d line", killMoments[n], winners, deciderCount, state, len(requests), len(lines))
}

// call returns the state of the call of an approval and the code of its failure, or "" if the
// server does not answer.
func (d *deciders) call(id string) (state, code string) {
	var call struct {
		State string `json:"state"`
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if status, err := d.server.request("GET", "/v1/tool_calls/tc_"+strings.TrimPrefix(id, "ap_"), "", "", &call); err != nil || status != http.StatusOK {
		return "", ""
	}
	return call.State, call.Error.Code
}

// decide approves until there is an answer, over HTTP or by the command. It reports whether the
// decision was accepted; otherwise there was another before.
func (d *deciders) decide(id string, i int, restarted <-chan struct{}) bool {
	for {
		url := d.url.Load().(string)
		var accepted, decided bool
		var text string
		if i%2 == 0 {
			accepted, decided, text = decideOverHTTP(url, id)
		} else {
			accepted, decided, text = decideByCommand(url, id)
		}
		if accepted || decided {
			return accepted
		}
		select {
		case <-restarted:
			if url == d.url.Load() && !strings.Contains(text, "503") && !strings.Contains(text, "unavailable") {
				d.Errorf("decider %d: %s", i, text)
				return false
			}
		default:
			<-restarted
		}
	}
}

func decideOverHTTP(url, id string) (accepted, decided bool, text string) {
	response, err := http.Post(url+"/v1/approvals/"+id+":decide", "application/json", strings.NewReader(`{"decision": "approve"}`))
	if err != nil {
		return false, false, err.Error()
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK, response.StatusCode == http.StatusConflict, response.Status
}

func decideByCommand(url, id string) (accepted, decided bool, text string) {
	c := programCmd("approvals", "approve", id, "--no-wait", "--server", url)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	err := c.Run()
	return err == nil, c.ProcessState.ExitCode() == 1 && strings.Contains(stderr.String(), "approval_decided"), stderr.String()
}
