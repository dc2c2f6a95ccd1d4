// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
)

// Of idle connections those without a request are closed first, and none that has one. A server
// without a free descriptor accepts no connection for a while, and then serves again.
func TestIdleConnectionsAreClosed(t *testing.T) {
	b := startBareGateway(t, Config{}, nil)
	dial := func(request string) (net.Conn, *bufio.Reader) {
		c := b.dial(t)
		r := bufio.NewReader(c)
		if request != "" {
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
		}
		return c, r
	}
	const get = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
	used, usedReader := dial(get)
	var strangers []*bufio.Reader
	for range idleClosedMin {
		_, r := dial("")
		strangers = append(strangers, r)
	}
	dial(get) // it was accepted after the strangers
	if n := CloseIdle(b.server); n != idleClosedMin {
		t.Errorf("%d closed, want %d", n, idleClosedMin)
	}
	for i, r := range strangers {
		if _, err := r.ReadByte(); err == nil {
			t.Errorf("stranger %d: still open", i)
		}
	}
	if _, err := io.WriteString(used, get); err != nil {
		t.Fatal(err)
	}
	if response, err := http.ReadResponse(usedReader, nil); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("a connection that had a request: %v, %v", response, err)
	}
	dial(get) // after the pause
}
