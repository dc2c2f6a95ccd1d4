// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fasthttp/websocket"

	"github.com/troupe-run/troupe"
)

// emitting returns the agent clock, which emits pieces at an interval.
func emitting(pieces int, every time.Duration, text func(i int) string) troupe.Agent {
	return troupe.Agent{Name: "clock", Func: func(t *troupe.Turn) (string, error) {
		_, err := t.Do("emit", func(ctx context.Context) ([]byte, error) {
			next := time.NewTicker(every)
			defer next.Stop()
			for i := range pieces {
				<-next.C
				if err := troupe.Emit(ctx, text(i)); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
		return "", err
	}}
}

// served returns the address of a server with these agents, which ends with the benchmark.
func served(b *testing.B, agents ...troupe.Agent) string {
	server, err := troupe.Open(troupe.Config{Data: b.TempDir(), Agents: agents})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Close(); err != nil {
			b.Error(err)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	return l.Addr().String()
}

// BenchmarkChannel streams an answer to 200 sockets at the same time, each with a session of its own, and
// prints the time from the call of Emit to the message at the client.
func BenchmarkChannel(b *testing.B) {
	const sockets, pieces, every = 200, 50, 100 * time.Millisecond
	address := served(b, emitting(pieces, every, func(int) string { return strconv.FormatInt(time.Now().UnixNano(), 10) }))
	var mu sync.Mutex
	var all []time.Duration
	for b.Loop() {
		var done sync.WaitGroup
		for i := range sockets {
			done.Go(func() {
				took, err := delays(address, i)
				if err != nil {
					b.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, took...)
			})
		}
		done.Wait()
	}
	if len(all) == 0 {
		b.Fatal("no message")
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "µs-p99")
	b.ReportMetric(float64(len(all))/float64(b.N), "messages/op")
}

// BenchmarkReconnect cuts 200 sockets while answers are streamed to them, connects all at once again behind their
// last cursors, and prints the time until each has a new message. No piece is missing or doubled.
func BenchmarkReconnect(b *testing.B) {
	const sockets, pieces, before, every = 200, 40, 10, 100 * time.Millisecond
	address := served(b, emitting(pieces, every, func(i int) string { return strconv.Itoa(i) + " " }))
	var want string
	for i := range pieces {
		want += strconv.Itoa(i) + " "
	}
	var longest atomic.Int64
	for b.Loop() {
		var ready, done sync.WaitGroup
		ready.Add(sockets)
		for i := range sockets {
			done.Go(func() {
				session := fmt.Sprintf("s%d", i)
				hello := `{"type":"hello"}`
				invoke := fmt.Sprintf(`{"type":"agent_invoke","session_id":%q,"agent_id":"clock","message":{"role":"user","content":"go"}}`, session)
				first, cursor, err := receive(address, before, hello, invoke)
				ready.Done()
				if err != nil {
					b.Error(err)
					return
				}
				ready.Wait()
				start := time.Now()
				var rest, all string
				hello = fmt.Sprintf(`{"type":"hello","resume":{"session_id":%q,"after":%q}}`, session, cursor)
				if rest, cursor, err = receive(address, 1, hello); err == nil {
					took := int64(time.Since(start))
					for now := longest.Load(); took > now && !longest.CompareAndSwap(now, took); now = longest.Load() {
					}
					hello = fmt.Sprintf(`{"type":"hello","resume":{"session_id":%q,"after":%q}}`, session, cursor)
					all, _, err = receive(address, pieces, hello)
				}
				if got := first + rest + all; err != nil || got != want {
					b.Errorf("got %q, error %v", got, err)
				}
			})
		}
		done.Wait()
	}
	b.ReportMetric(float64(time.Duration(longest.Load()).Milliseconds()), "ms-max")
}

// receive sends messages over a new socket, and returns at least the next n pieces of the answer, or those until its end, and the
// cursor behind them.
func receive(address string, n int, messages ...string) (text, cursor string, err error) {
	c, _, err := websocket.DefaultDialer.Dial("ws://"+address+"/v1/ws", nil)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	for _, m := range messages {
		if err := c.WriteMessage(websocket.TextMessage, []byte(m)); err != nil {
			return "", "", err
		}
	}
	for n > 0 {
		_, raw, err := c.ReadMessage()
		var m struct{ Type, Text, Cursor, Code string }
		if err == nil {
			err = json.Unmarshal(raw, &m)
		}
		if err != nil {
			return text, cursor, err
		}
		if m.Code == "agent_busy" { // the user has too many connections until the server has noticed the ends of the former ones
			return receive(address, n, messages...)
		}
		switch m.Type {
		case "delta":
			text, cursor = text+m.Text, m.Cursor
			n--
		case "done":
			return text, m.Cursor, nil
		case "error":
			return text, cursor, fmt.Errorf("%s", raw)
		}
	}
	return text, cursor, nil
}

// BenchmarkIdle opens 1,000 sockets and prints the memory that each holds once it is idle: heap and stacks of the
// server, with the connection of the client, which reads nothing.
func BenchmarkIdle(b *testing.B) {
	const sockets = 1000
	address := served(b)
	idle(b, address, 50) // what the first ones allocate stays
	before, ends := held(), []io.Closer(nil)
	for b.Loop() {
		ends = append(ends, idle(b, address, sockets)...)
	}
	b.ReportMetric(float64(held()-before)/float64(len(ends)), "B/socket")
	for _, c := range ends {
		_ = c.Close()
	}
}

// idle opens sockets whose clients have sent hello.
func idle(b *testing.B, address string, n int) (all []io.Closer) {
	for range n {
		c, _, err := websocket.DefaultDialer.Dial("ws://"+address+"/v1/ws", nil)
		if err == nil {
			all = append(all, c.NetConn())
			err = c.WriteMessage(websocket.TextMessage, []byte(`{"type":"hello"}`))
		}
		if err == nil {
			_, _, err = c.ReadMessage() // the answer
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return all
}

// held returns the bytes of live objects and of stacks.
func held() int64 {
	var m runtime.MemStats
	for range 4 { // a collection shrinks a stack by half
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// delays sends a message over a socket and returns the delay of each piece of the answer.
func delays(address string, n int) (all []time.Duration, err error) {
	c, _, err := websocket.DefaultDialer.Dial("ws://"+address+"/v1/ws", nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, m := range []string{`{"type":"hello"}`, fmt.Sprintf(`{"type":"agent_invoke","session_id":"s%d","agent_id":"clock","message":{"role":"user","content":"go"}}`, n)} {
		if err := c.WriteMessage(websocket.TextMessage, []byte(m)); err != nil {
			return nil, err
		}
	}
	for {
		_, b, err := c.ReadMessage()
		now := time.Now()
		var m struct{ Type, Text string }
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err != nil {
			return nil, err
		}
		switch m.Type {
		case "delta":
			if sent, err := strconv.ParseInt(m.Text, 10, 64); err == nil {
				all = append(all, now.Sub(time.Unix(0, sent)))
			}
		case "done":
			return all, nil
		case "error":
			return nil, fmt.Errorf("%s", b)
		}
	}
}
