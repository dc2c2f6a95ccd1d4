// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/troupe-run/troupe/actor"
)

const (
	inputLineMax  = 16 << 20 // length of a message
	skippedLogged = 5
)

// standardIO is a transport over standard streams. A client such as a pipe may close its output
// before it has read all answers. A line that is no message is skipped.
type standardIO struct {
	in   io.Reader
	out  io.Writer
	note func(format string, args ...any) // for people
	// messages and skipped count lines. They are valid once Run has returned.
	messages, skipped int

	writing sync.Mutex // held while a message is written
}

// Write implements io.Writer.
func (s *standardIO) Write(b []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.out.Write(b)
}

// Connect implements mcp.Transport.
func (s *standardIO) Connect(ctx context.Context) (mcp.Connection, error) {
	from, to := io.Pipe()
	go func() { to.CloseWithError(s.filter(to)) }()
	c, err := (&mcp.IOTransport{Reader: from, Writer: keepOpen{s}, MaxLineLength: inputLineMax + 2}).Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &answeringConnection{Connection: c, open: map[any]bool{}, changed: make(chan struct{}, 1), closed: make(chan struct{})}, nil
}

// filter passes on the lines that are messages. It returns why there are no more.
func (s *standardIO) filter(to io.Writer) error {
	in := bufio.NewReaderSize(s.in, 64<<10)
	for {
		line, whole, err := s.line(in)
		switch _, invalid := jsonrpc.DecodeMessage(line); {
		case len(line) == 0:
		case whole && invalid == nil:
			s.messages++
			if _, err := to.Write(append(line, '\n')); err != nil {
				return err
			}
		default:
			if s.skipped++; s.skipped <= skippedLogged {
				s.note("a line of standard input is no message of MCP, and is skipped: %s", actor.FitText(string(line), 200))
			}
			s.refuse(line)
		}
		if err != nil {
			return err
		}
	}
}

// refuse answers a line that is a request as far as it can be read.
func (s *standardIO) refuse(line []byte) {
	var r struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
	}
	if json.Unmarshal(line, &r, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) == nil && r.Method != "" && (r.ID.Kind() == '"' || r.ID.Kind() == '0') {
		fmt.Fprintf(s, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32600,"message":"the message is not valid JSON-RPC 2.0"}}`+"\n", r.ID)
	}
}

// line returns the next line, or the begin of one that is too long.
func (s *standardIO) line(in *bufio.Reader) (line []byte, whole bool, err error) {
	for whole = true; ; {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > inputLineMax {
			part, whole = part[:0], false
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSpace(line), whole, err
		}
	}
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
