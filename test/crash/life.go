// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
)

// life is what clients have of one server, from its start to its end.
type life struct {
	url    string
	exited <-chan struct{} // closed when the server has exited
	ctx    context.Context
	http   *http.Client
	acks   atomic.Int64 // answers that say yes, and events of streams
	open   atomic.Int64 // requests without their whole answer
	nested atomic.Int64 // calls that a stream has told of, and not of their end
	last   int64        // so many acks are enough; 0: there is no such number
	enough chan struct{}

	changes [2]atomic.Bool // to agents, to keys: one in each life
}

// requestWithin is more than anything here may take.
const requestWithin = time.Minute

func newLife(ctx context.Context, url string, exited <-chan struct{}, last int64) *life {
	return &life{url: url, exited: exited, ctx: ctx, last: last, enough: make(chan struct{}),
		http: &http.Client{Timeout: requestWithin, Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}}
}

func (l *life) close() { l.http.CloseIdleConnections() }

// over tells whether clients have nothing to ask any more.
func (l *life) over() bool {
	select {
	case <-l.exited:
		return true
	case <-l.ctx.Done():
		return true
	default:
		return false
	}
}

func (l *life) ack() {
	if n := l.acks.Add(1); n == l.last {
		close(l.enough)
	}
}

// work has each client go on until the server ends.
func (l *life) work(clients []*client) (done <-chan struct{}) {
	ended := make(chan struct{})
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			for !l.over() {
				c.step(l)
			}
		})
	}
	go func() {
		defer close(ended)
		all.Wait()
	}()
	return ended
}

// settle has each client go after what is open.
func (l *life) settle(clients []*client) {
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			for c.debt != nil && !l.over() {
				c.step(l)
			}
		})
	}
	all.Wait()
}

// request is what is sent.
type request struct {
	method, path, body string
	headers            []string // name, value, …
}

// send makes the request. The error says that there is no answer, or not all of it.
func (l *life) send(q request) (*http.Response, error) {
	r, err := http.NewRequestWithContext(l.ctx, q.method, l.url+q.path, strings.NewReader(q.body))
	if err != nil {
		return nil, err
	}
	if q.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(q.headers); i += 2 {
		r.Header.Set(q.headers[i], q.headers[i+1])
	}
	return l.http.Do(r)
}

// busyTries is how often a client comes back that is told to, a second later.
const busyTries = 20

// ask is a request with one answer. Who is told to come back does.
func (l *life) ask(q request, into any) (status int, err error) {
	for range busyTries {
		status, err = l.askOnce(q, into)
		if err != nil || status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
			break
		}
		time.Sleep(time.Second)
	}
	return status, err
}

func (l *life) askOnce(q request, into any) (status int, err error) {
	l.open.Add(1)
	response, err := l.send(q)
	if err != nil {
		return 0, err
	}
	status, err = read(response, into)
	if err != nil {
		return 0, err
	}
	l.open.Add(-1)
	if status < 300 {
		l.ack()
	}
	return status, nil
}

func read(response *http.Response, into any) (status int, err error) {
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

// errNoWhole is a stream that stops in the middle.
var errNoWhole = fmt.Errorf("the stream stops: %w", io.ErrUnexpectedEOF)

// stream reads frames until each says that one was the last, or the stream stops.
func stream(r io.Reader, each func(frame) (last bool)) error {
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
				continue // a comment, or the end of nothing
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
	return errNoWhole
}
