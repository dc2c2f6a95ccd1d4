// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/troupe-run/troupe/internal/command"
)

const (
	handshakeTimeout = time.Second     // from the connection to the end of the handshake of TLS
	greetingTimeout  = 5 * time.Second // from then to the greeting
	greetingBytesMax = 512
	refusedPrefix    = "refused: "
)

// greeting is the first line that each side sends. Both sides must be of the same version.
var greeting = fmt.Sprintf("troupe link %d", command.CodecVersion)

// readLine reads a line of at most greetingBytesMax bytes and reads nothing after it.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < greetingBytesMax; line = append(line, one[0]) {
		if _, err := io.ReadFull(r, one); err != nil {
			return string(line), err
		}
		if one[0] == '\n' {
			break
		}
	}
	return string(line), nil
}

// greet exchanges greetings as the side that has opened the connection.
func greet(c net.Conn, ours, theirs string) error {
	if err := c.SetDeadline(time.Now().Add(greetingTimeout)); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c, ours)
	if err != nil {
		return err
	}
	line, err := readLine(c)
	reason, refused := strings.CutPrefix(line, refusedPrefix)
	switch {
	case err != nil && line == "":
		return refusedOf(err)
	case refused:
		return &RefusedError{errors.New(reason)}
	case line != theirs:
		return &RefusedError{fmt.Errorf("got the greeting %.80q, want %q: it is not an orchestrator, or one of another version", line, theirs)}
	}
	return c.SetDeadline(time.Time{})
}

// heard returns the greeting of the side that has opened the connection.
func heard(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(greetingTimeout)); err != nil {
		return "", err
	}
	return readLine(c)
}

// welcome answers a greeting. It returns refused, which is the reason why the connection is not served, or nil.
func welcome(c net.Conn, ours string, refused error) error {
	if refused != nil {
		_, _ = fmt.Fprintln(c, refusedPrefix+refused.Error())
		return refused
	}
	if _, err := fmt.Fprintln(c, ours); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// silenceMax is the maximum time without a byte from the peer, or for it to take a write. An
// ingress sends a query at least every command.GatewayBeat.
const silenceMax = 3 * command.GatewayBeat

// chunkBytesMax is the size of the largest write with one deadline: a large frame over a slow network may take
// longer than one.
const chunkBytesMax = 64 << 10

// boundedConn is a connection that fails when its peer is silent.
type boundedConn struct {
	net.Conn
	silence time.Duration // maximum
	// answers reports whether writes are answers to the peer. One that takes an answer need not say anything else.
	answers bool
}

// Read implements net.Conn.
func (c boundedConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c boundedConn) Write(b []byte) (n int, err error) {
	for n < len(b) {
		if err := c.SetWriteDeadline(time.Now().Add(c.silence)); err != nil {
			return n, err
		}
		wrote, err := c.Conn.Write(b[n:min(n+chunkBytesMax, len(b))])
		n += wrote
		if err == nil && c.answers {
			err = c.SetReadDeadline(time.Now().Add(c.silence))
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
