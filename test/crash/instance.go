// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/host/gateway"
)

// instance is one server process as its clients see it, from start to exit.
type instance struct {
	url           string
	exited        <-chan struct{} // closed when the server has exited
	ctx           context.Context
	http          *http.Client
	owner         *http.Client // on the socket of the data folder; keys are created there only
	acks          atomic.Int64 // successful answers and stream events
	open          atomic.Int64 // requests without a complete answer
	busyPause     time.Duration
	nested        atomic.Int64 // nested calls that a stream reported as started and not as done
	ackTarget     int64        // number of acks at which targetReached is closed; 0 means none
	targetReached chan struct{}

	changed [2]atomic.Bool // agents and keys: one change per instance
}

// requestWithin is the timeout of a request. It exceeds the duration of every
// correct one.
const requestWithin = time.Minute

func newInstance(ctx context.Context, url, dir string, exited <-chan struct{}, last int64) *instance {
	return &instance{url: url, exited: exited, ctx: ctx, busyPause: busyPause, ackTarget: last, targetReached: make(chan struct{}),
		owner: gateway.OwnerClient(dir), http: &http.Client{Timeout: requestWithin, Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}}
}

func (inst *instance) close() { inst.http.CloseIdleConnections() }

// stopped reports whether the server has exited or the program ends.
func (inst *instance) stopped() bool {
	select {
	case <-inst.exited:
		return true
	case <-inst.ctx.Done():
		return true
	default:
		return false
	}
}

func (inst *instance) ack() {
	if n := inst.acks.Add(1); n == inst.ackTarget {
		close(inst.targetReached)
	}
}

// work runs all clients until the server exits. It closes done when all have
// returned.
func (inst *instance) work(clients []*client) (done <-chan struct{}) {
	ended := make(chan struct{})
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			for !inst.stopped() {
				c.step(inst)
			}
		})
	}
	go func() {
		defer close(ended)
		all.Wait()
	}()
	return ended
}

// finishPending runs all clients until they have no pending exchange.
func (inst *instance) finishPending(clients []*client) {
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			for c.pending != nil && !inst.stopped() {
				c.step(inst)
			}
		})
	}
	all.Wait()
}

// request is an HTTP request.
type request struct {
	method, path, body string
	headers            []string // name, value, …
}

// send makes the request, and repeats it while the server is busy. An error means
// that there is no complete answer.
func (inst *instance) send(q request) (*http.Response, error) {
	inst.open.Add(1)
	return whileBusy(func() (*http.Response, error) { return inst.sendOnce(q) }, func() error {
		inst.open.Add(-1)
		defer inst.open.Add(1)
		return pause(inst.ctx, inst.busyPause)
	})
}

func (inst *instance) sendOnce(q request) (*http.Response, error) {
	r, err := http.NewRequestWithContext(inst.ctx, q.method, inst.url+q.path, strings.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	if q.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(q.headers); i += 2 {
		r.Header.Set(q.headers[i], q.headers[i+1])
	}
	if strings.HasPrefix(q.path, "/v1/keys") {
		return inst.owner.Do(r)
	}
	return inst.http.Do(r)
}

// Bounds of repetition while the server answers 429 or 503.
const (
	busyTriesMax = 20 // maximum number of attempts
	busyPause    = time.Second
)

// whileBusy makes a request and repeats it after a pause while the server refuses
// it as busy. It returns the first other answer, or that of the last attempt.
func whileBusy(try func() (*http.Response, error), pause func() error) (*http.Response, error) {
	for n := 1; ; n++ {
		response, err := try()
		if err != nil || n == busyTriesMax || response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusServiceUnavailable {
			return response, err
		}
		if err := errors.Join(response.Body.Close(), pause()); err != nil {
			return nil, err
		}
	}
}

// pause waits unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ask sends a request with a single answer.
func (inst *instance) ask(q request, into any) (status int, err error) {
	response, err := inst.send(q)
	if err != nil {
		return 0, err
	}
	status, err = readJSON(response, into)
	if err != nil {
		return 0, err
	}
	inst.open.Add(-1)
	if status < 300 {
		inst.ack()
	}
	return status, nil
}

// askOnce sends a request once, and counts neither it nor its answer.
func (inst *instance) askOnce(q request, into any) (status int, err error) {
	response, err := inst.sendOnce(q)
	if err != nil {
		return 0, err
	}
	return readJSON(response, into)
}

func readJSON(response *http.Response, into any) (status int, err error) {
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err == nil && len(b) > 0 && into != nil {
		err = json.Unmarshal(b, into)
	}
	return response.StatusCode, err
}

// frame is one event of a stream.
type frame struct {
	name string
	id   int
	data string
}

// errTruncatedStream reports a stream without its last event.
var errTruncatedStream = fmt.Errorf("the stream ended early: %w", io.ErrUnexpectedEOF)

// readFrames calls the function each for every frame, until it returns true or the
// stream fails.
func readFrames(r io.Reader, each func(frame) (last bool)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 32<<20)
	f := frame{id: -1}
	for lines.Scan() {
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			f.name = string(value)
		case "id":
			n, err := strconv.Atoi(string(value))
			if err != nil {
				return fmt.Errorf("id %q: %w", value, err)
			}
			f.id = n
		case "data":
			if f.data != "" {
				f.data += "\n"
			}
			f.data += string(value)
		case "":
			if len(lines.Bytes()) > 0 || f.data == "" {
				continue // a comment, or a blank line without an event
			}
			if each(f) {
				return nil
			}
			f = frame{id: -1}
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errTruncatedStream
}
