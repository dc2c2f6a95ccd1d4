// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// Bounds of CloseIdle.
const (
	// idleClosedMin is the number of connections that it closes at least, if so many are idle. Of more
	// than four times as many it closes a quarter.
	idleClosedMin = 16
	// acceptPause is the time for which no connection is accepted afterwards, so that clients do not
	// take the descriptors again.
	acceptPause = time.Second
)

// idleness is the state of a connection between two requests.
type idleness struct {
	since    atomic.Int64 // time in ns at which the connection was accepted or its last request ended; 0: it has a request
	requests atomic.Bool  // it had a request
}

// openConnections are the open connections of all listeners of a server.
type openConnections struct {
	answers answers // those that are being written

	mu    sync.Mutex
	all   map[*connection]struct{}
	pause time.Time // until then none is accepted
}

// add adds a connection, and returns a function that removes it and calls release.
func (o *openConnections) add(c *connection, release func()) func() {
	c.idle.since.Store(time.Now().UnixNano())
	o.mu.Lock()
	o.all[c] = struct{}{}
	o.mu.Unlock()
	return sync.OnceFunc(func() {
		o.mu.Lock()
		delete(o.all, c)
		o.mu.Unlock()
		release()
	})
}

// received marks a connection that has received bytes.
func (i *idleness) received() {
	if i.since.Load() != 0 {
		i.since.Store(0)
		i.requests.Store(true)
	}
}

// awaitPause waits until connections may be accepted.
func (o *openConnections) awaitPause() {
	for {
		o.mu.Lock()
		left := time.Until(o.pause)
		o.mu.Unlock()
		if left <= 0 {
			return
		}
		time.Sleep(left)
	}
}

// changed is the hook of fasthttp for the state of a connection. Whatever the new state is, the last
// answer was written, or never will be.
func (o *openConnections) changed(c net.Conn, state fasthttp.ConnState) {
	own, ok := c.(*connection)
	if !ok {
		return
	}
	o.answers.give(own)
	switch state {
	case fasthttp.StateActive: // of a new connection it precedes the first byte
		if own.idle.requests.Load() {
			own.idle.since.Store(0)
		}
	case fasthttp.StateIdle:
		own.idle.since.Store(time.Now().UnixNano())
	}
}

// CloseIdle closes idle connections of a server, because the process has no free descriptor, and
// returns how many. Those that never had a request are the first, then those idle longest.
func CloseIdle(s *Server) int { return s.connections.closeIdle() }

func (o *openConnections) closeIdle() int {
	type candidate struct {
		*connection
		requests bool
		since    int64
	}
	var idle []candidate
	o.mu.Lock()
	for c := range o.all {
		if since := c.idle.since.Load(); since != 0 && !c.owner {
			idle = append(idle, candidate{c, c.idle.requests.Load(), since})
		}
	}
	o.pause = time.Now().Add(acceptPause)
	o.mu.Unlock()
	slices.SortFunc(idle, func(a, b candidate) int {
		if a.requests != b.requests {
			if b.requests {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.since, b.since)
	})
	idle = idle[:min(len(idle), max(idleClosedMin, len(idle)/4))]
	for _, c := range idle {
		_ = c.Conn.Close() // its reader then ends the connection
	}
	return len(idle)
}
