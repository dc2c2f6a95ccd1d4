// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fasthttp/websocket"

	"github.com/troupe-run/troupe"
)

// BenchmarkChannel streams an answer to 200 sockets at the same time, each with a session of its own, and
// prints the time from the call of Emit to the message at the client.
func BenchmarkChannel(b *testing.B) {
	const sockets, pieces, every = 200, 50, 100 * time.Millisecond
	clock := troupe.Agent{Name: "clock", Func: func(t *troupe.Turn) (string, error) {
		_, err := t.Do("emit", func(ctx context.Context) ([]byte, error) {
			next := time.NewTicker(every)
			defer next.Stop()
			for range pieces {
				<-next.C
				if err := troupe.Emit(ctx, strconv.FormatInt(time.Now().UnixNano(), 10)); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
		return "", err
	}}
	server, err := troupe.Open(troupe.Config{Data: b.TempDir(), Agents: []troupe.Agent{clock}})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	var mu sync.Mutex
	var all []time.Duration
	for b.Loop() {
		var done sync.WaitGroup
		for i := range sockets {
			done.Go(func() {
				took, err := delays(l.Addr().String(), i)
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
