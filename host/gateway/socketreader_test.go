// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
)

// rawSocket opens a socket of a client that sends frames of its own making.
func rawSocket(t *testing.T, d *testGateway) net.Conn {
	c, err := net.Dial("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n", socketRoute, d.address)
	for i := 0; i < len(handshake); i += 2 {
		fmt.Fprintf(c, "%s: %s\r\n", handshake[i], handshake[i+1])
	}
	fmt.Fprint(c, "\r\n")
	return c
}

// frame returns a masked frame of a client, whose mask is zero.
func frame(first byte, content []byte) []byte {
	b := []byte{first}
	switch n := len(content); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	return append(append(b, 0, 0, 0, 0), content...)
}

const (
	textFrame = 0x01
	moreFrame = 0x00
	pingFrame = 0x89
	lastFrame = 0x80
)

// What a socket sends besides its messages is bounded.
func TestSocketFramesAreBounded(t *testing.T) {
	hello := frame(textFrame|lastFrame, []byte(`{"type":"hello"}`))
	many := func(n int, f []byte) []byte { return bytes.Repeat(f, n) }
	fragments := func(n int) []byte {
		return append(append(frame(textFrame, nil), many(n, frame(moreFrame, nil))...), frame(moreFrame|lastFrame, []byte(`{"type":"x"}`))...)
	}
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	for name, c := range map[string]struct {
		frames []byte
		want   string // part of what the server sends
	}{
		"1,024 empty fragments":       {append(bytes.Clone(hello), fragments(1024)...), `"type":"error"`},
		"20,000 empty fragments":      {append(bytes.Clone(hello), fragments(20_000)...), errSocketOverhead.Error()},
		"empty fragments as hello":    {fragments(20_000), errSocketOverhead.Error()},
		"200 pings":                   {append(bytes.Clone(hello), many(200, frame(pingFrame, nil))...), errSocketControls.Error()},
		"a hello larger than its own": {frame(textFrame|lastFrame, bytes.Repeat([]byte(" "), 65<<10)), "\x03\xf1"},
	} {
		conn := rawSocket(t, d)
		go func() { _, _ = conn.Write(c.frames) }()
		awaitBytes(t, name, conn, c.want)
		_ = conn.Close()
	}
}

// awaitBytes reads until a text arrives.
func awaitBytes(t *testing.T, name string, conn net.Conn, want string) {
	t.Helper()
	var got strings.Builder
	for part := make([]byte, 4096); !strings.Contains(got.String(), want); {

		n, err := conn.Read(part)
		got.Write(part[:n])
		if err != nil {
			t.Errorf("%s: got %.500q and %v, want %q", name, got.String(), err, want)
			return
		}
	}
}

// Messages that do not end take shares of the bytes of bodies, and give them back.
func TestUnfinishedMessagesTakeShares(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	mallory, bob := d.newUser(`"user":"mallory","scopes":["read"]`).key, d.newUser(`"user":"bob","scopes":["read"]`).key
	bodies := shares.New[string](shares.Bounds{Max: 256 << 10, Each: 64 << 10})
	d.server.bodies.Shares = bodies
	begin := func(name, key string, bytes int, want string) net.Conn {
		conn := rawSocket(t, d)
		_, _ = conn.Write(frame(textFrame|lastFrame, fmt.Appendf(nil, `{"type":"hello","api_key":%q}`, key)))
		awaitBytes(t, name, conn, "READY")
		_, _ = conn.Write(append(frame(textFrame, make([]byte, bytes)), frame(pingFrame, []byte("read"))...))
		awaitBytes(t, name, conn, want)
		return conn
	}
	begin("40 KiB", mallory, 40<<10, "read")
	if n := bodies.Taken(); n != 64<<10 {
		t.Errorf("40 KiB take %d bytes", n)
	}
	begin("40 KiB more", mallory, 40<<10, errSocketBodies.Error())
	begin("a short one", mallory, bodyFree/2, "read")
	begin("another user", bob, 40<<10, "read")
	handled := begin("one that ends", d.newUser(`"user":"carol","scopes":["read"]`).key, bodyFree/2, "read")
	for range 4 {
		_, _ = handled.Write(append(frame(moreFrame|lastFrame, make([]byte, 20<<10)), frame(textFrame, nil)...))
		awaitBytes(t, "a message that was handled", handled, `"type":"error"`)
	}
	shutdown, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := d.server.Shutdown(shutdown); err != nil {
		t.Error(err)
	}
	if bodies.Taken() != 0 || bodies.Keys() != 0 {
		t.Errorf("%d bytes remain taken", bodies.Taken())
	}
}

// Sockets before their hello take no places of streams, and one address has few of them.
func TestStrangersTakeNoPlacesOfStreams(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	start := time.Now()
	d.server.clock = func() time.Time { return start } // the time to the hello does not end
	key := d.newUser(`"user":"bob","scopes":["read"]`).key
	var others []func()
	for i := range int64(strangersMax - strangersReserved - 1) {
		release, _ := d.server.strangers.acquireFor(fmt.Sprint("other ", i/strangersEach), false)
		others = append(others, release)
	}
	awaitBytes(t, "the last place", rawSocket(t, d), "101 Switching")
	awaitBytes(t, "one too many", rawSocket(t, d), "503")
	if n := d.server.streams.Taken(); n != 0 {
		t.Errorf("they took %d places of streams", n)
	}
	d.channel(`{"type":"hello"}`, http.Header{"Authorization": {"Bearer " + key}}).until("state", "READY")
	for _, release := range others {
		release()
	}
	d.server.onLoopback.Store(false)
	for range strangersEach {
		awaitBytes(t, "handshake", rawSocket(t, d), "101 Switching")
	}
	awaitBytes(t, "one too many of an address", rawSocket(t, d), "429")
}

// The console has no socket of its own: it asks for streams with its key. Handshakes at its pages, and requests of its streams
// without a key, take no places of streams, nor of sockets without a hello.
func TestConsoleWithoutKeyTakesNoPlaces(t *testing.T) {
	d := startGatewayWith(t, Config{KeysRequired: true}, echoAgent("echo", actor.Journaled))
	ask := func(path, accept string, upgrade bool) net.Conn {
		c, err := net.Dial("tcp", d.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: %s\r\n", path, d.address, accept)
		for i := 0; upgrade && i < len(handshake); i += 2 {
			fmt.Fprintf(c, "%s: %s\r\n", handshake[i], handshake[i+1])
		}
		fmt.Fprint(c, "\r\n")
		return c
	}
	run := actor.NewCallID(1, 2, 3).String()
	for range 8 {
		for _, page := range []string{"/console", "/chat", "/docs", "/"} {
			if got := readHead(t, ask(page, "text/html", true)); strings.Contains(got, "101 Switching") {
				t.Errorf("%s: %s", page, got)
			}
		}
		for _, stream := range []string{"/v1/runs/" + run + "/events", "/v1/runs/" + run + "/events?tree=1", "/v1/sessions/s/events", "/v1/runs/" + run + "/events?wait_ms=30000"} {
			awaitBytes(t, stream, ask(stream, "text/event-stream", false), "401 Unauthorized")
		}
	}
	if streams, strangers := d.server.streams.Taken(), d.server.strangers.Taken(); streams != 0 || strangers != 0 {
		t.Errorf("%d places of streams and %d of strangers are taken", streams, strangers)
	}
}

func readHead(t *testing.T, c net.Conn) string {
	t.Helper()
	head, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	return head
}

// A socket whose client became known is a stranger no longer.
func TestKnownSocketsAreNoStrangers(t *testing.T) {
	d := startGateway(t, echoAgent("echo", actor.Journaled))
	for _, hello := range []string{`{"type":"hello"}`, fmt.Sprintf(`{"type":"hello","api_key":%q}`, d.newUser(`"user":"bob","scopes":["read"]`).key)} {
		d.channel(hello, nil).until("state", "READY")
		if n := d.server.strangers.Taken(); n != 0 {
			t.Errorf("%s: %d strangers", hello, n)
		}
	}
}

// Messages that wait on a socket take shares until they were handled.
func TestWaitingMessagesTakeShares(t *testing.T) {
	bodies := shares.New[string](shares.Bounds{Max: 1 << 20, Each: 64 << 10})
	share := &socketShare{bodies: bodies, by: "address"}
	for _, c := range []struct {
		step  string
		more  int64
		ok    bool
		taken int64
	}{
		{"within what is free", bodyFree, true, 0},
		{"beyond it", 1, true, bodyFree + 1},
		{"beyond the share", 64 << 10, false, bodyFree + 1},
		{"the rest of the share", 64<<10 - bodyFree - 1, true, 64 << 10},
		{"some were handled", -(60 << 10), true, 0},
		{"others follow", 10 << 10, true, 14 << 10},
	} {
		if ok := share.add(c.more); ok != c.ok || bodies.Taken() != c.taken {
			t.Errorf("%s: got %v with %d taken, want %v with %d", c.step, ok, bodies.Taken(), c.ok, c.taken)
		}
	}
	if !share.pass("bob", false) || bodies.Taken() != 14<<10 || bodies.Keys() != 1 {
		t.Errorf("the share of bob: %d taken by %d", bodies.Taken(), bodies.Keys())
	}
	if bodies.Take("mallory", 64<<10, false) != actor.NoScope || share.pass("mallory", false) {
		t.Error("a share was passed to a principal that has none left")
	}
	share.end()
	if bodies.Taken() != 64<<10 {
		t.Errorf("%d taken at the end", bodies.Taken())
	}
}
