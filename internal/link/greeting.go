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
	greetingBytesMax = 200
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

// greet exchanges greetings as the ingress.
func greet(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(greetingTimeout)); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c, greeting)
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
	case line != greeting:
		return &RefusedError{fmt.Errorf("got the greeting %.80q, want %q: it is not an orchestrator, or one of another version", line, greeting)}
	}
	return c.SetDeadline(time.Time{})
}

// welcome exchanges greetings as the orchestrator. busy is the reason why it takes no more
// connections, or "".
func welcome(c net.Conn, busy string) error {
	if err := c.SetDeadline(time.Now().Add(greetingTimeout)); err != nil {
		return err
	}
	line, err := readLine(c)
	if err != nil {
		return err
	}
	if line != greeting {
		busy = fmt.Sprintf("got the greeting %.80q, want %q: run both roles from one version, and let clients connect to an ingress", line, greeting)
	}
	if busy != "" {
		_, _ = fmt.Fprintln(c, refusedPrefix+busy)
		return errors.New(busy)
	}
	if _, err := fmt.Fprintln(c, greeting); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// silenceMax is the maximum time without a byte from the peer, or for it to take a write. An
// ingress sends a query at least every command.GatewayBeat.
const silenceMax = 3 * command.GatewayBeat

// boundedConn is a connection that fails when its peer is silent.
type boundedConn struct{ net.Conn }

// Read implements net.Conn.
func (c boundedConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(silenceMax)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c boundedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(silenceMax)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
