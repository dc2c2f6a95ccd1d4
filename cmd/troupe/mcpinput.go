// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// standardIO is the transport of a server whose client may close its output before it has read
// all answers, as a pipe does.
type standardIO struct{ out io.Writer }

// Connect implements mcp.Transport.
func (s standardIO) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := (&mcp.IOTransport{Reader: os.Stdin, Writer: keepOpen{s.out}}).Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &answeringConnection{Connection: c, open: map[any]bool{}, changed: make(chan struct{}, 1), closed: make(chan struct{})}, nil
}

// keepOpen is a writer that its user does not close.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// answeringConnection reports the end of its input once the requests before it are answered.
type answeringConnection struct {
	mcp.Connection
	mu      sync.Mutex
	open    map[any]bool  // requests without an answer, by ID
	changed chan struct{} // has a value after an answer
	once    sync.Once
	closed  chan struct{}
}

// Read implements mcp.Connection.
func (c *answeringConnection) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if r, ok := m.(*jsonrpc.Request); ok && err == nil && r.IsCall() {
		c.mu.Lock()
		c.open[r.ID.Raw()] = true
		c.mu.Unlock()
	}
	for err != nil && c.unanswered() > 0 {
		select {
		case <-c.changed:
		case <-c.closed:
			return m, err
		case <-ctx.Done():
			return m, err
		}
	}
	return m, err
}

func (c *answeringConnection) unanswered() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// Write implements mcp.Connection.
func (c *answeringConnection) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if r, ok := m.(*jsonrpc.Response); ok {
		c.mu.Lock()
		delete(c.open, r.ID.Raw())
		c.mu.Unlock()
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	return err
}

// Close implements mcp.Connection.
func (c *answeringConnection) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Connection.Close()
}
