// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/node"
)

// echoAgent returns an agent that answers at once with its input.
func echoAgent(name string, durability actor.Durability) actor.Definition {
	return actor.Definition{Name: name, Hash: actor.HashOf([]byte(name)), Durability: durability, Behavior: echoBehavior{}}
}

type echoBehavior struct{}

func (echoBehavior) Begin(b actor.Begin) actor.Turn { return echoTurn{b.Call.Parts} }

type echoTurn struct{ parts []actor.Part }

func (t echoTurn) Next([]actor.Answer) (actor.Action, error) { return actor.Complete(t.parts), nil }
func (echoTurn) Stop()                                       {}

// startBenchGateway serves a node with a volatile and a durable echo agent. It
// requires the returned key.
func startBenchGateway(b *testing.B) (address, key string) {
	quietly := slog.New(slog.DiscardHandler)
	n, err := node.Open(node.Config{Data: b.TempDir(), Name: "n1", WriteBuffer: 1 << 20, Limits: dispatcher.DefaultLimits(), FreeFloor: 1,
		Native: []actor.Definition{echoAgent("none", actor.Volatile), echoAgent("durable", actor.Journaled)}}, quietly)
	if err != nil {
		b.Fatal(err)
	}
	var random [ingress.KeyRandomBytes]byte
	k, text, _ := ingress.NewKey(random, "", "", []ingress.Scope{ingress.ScopeCall}, 0, 0)
	var keys Keys
	keys.Set([]ingress.Key{k})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := New(n, quietly, Config{Keys: &keys, Secret: n.Secret()})
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(s.Shutdown(ctx), <-served, n.Close(ctx)); err != nil {
			b.Error(err)
		}
	})
	return listener.Addr().String(), text
}

// startEchoServer starts a bare fasthttp server that returns each body.
func startEchoServer(b *testing.B) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &fasthttp.Server{NoDefaultServerHeader: true, Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBody(ctx.PostBody())
	}}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	b.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			b.Error(err)
		}
		<-served
	})
	return listener.Addr().String()
}

// benchClient is a client with one connection.
type benchClient struct {
	conn    net.Conn
	reader  *bufio.Reader
	answer  fasthttp.Response
	request []byte
}

func newBenchClients(b *testing.B, n int, address, key, agent string) (all []*benchClient) {
	for i := range n {
		c, err := net.Dial("tcp", address)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() })
		body := fmt.Sprintf(`{"content":"hello","session":"s-%d"}`, i)
		all = append(all, &benchClient{conn: c, reader: bufio.NewReader(c), request: fmt.Appendf(nil,
			"POST /v1/agents/%s/messages HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", agent, address, key, len(body), body)})
	}
	return all
}

func (a *benchClient) do() error {
	if _, err := a.conn.Write(a.request); err != nil {
		return err
	}
	if err := a.answer.Read(a.reader); err != nil {
		return err
	}
	if a.answer.StatusCode() != fasthttp.StatusOK {
		return fmt.Errorf("%s", a.answer.String())
	}
	return nil
}

// cpuTime returns the CPU time used by this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkMessage measures messages to an agent that answers at once, over 64
// connections and with a key. Rounds alternate with a bare server that echoes
// the same body. The metric ratio is the fraction of the bare server's rate
// that remains. The metric cpu-ratio compares CPU time instead, including that
// of the clients. Other load on the machine disturbs it less. Both are medians
// of the rounds.
func BenchmarkMessage(b *testing.B) {
	address, key := startBenchGateway(b)
	echo := startEchoServer(b)
	for _, agent := range []string{"none", "durable"} {
		b.Run(agent, func(b *testing.B) {
			ours, bare := newBenchClients(b, 64, address, key, agent), newBenchClients(b, 64, echo, key, agent)
			work := func(all []*benchClient, count int) (took, busy time.Duration) {
				began, before := time.Now(), cpuTime()
				var done sync.WaitGroup
				for _, a := range all {
					done.Go(func() {
						for range count / len(all) {
							if err := a.do(); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				done.Wait()
				return time.Since(began), cpuTime() - before
			}
			const rounds = 9
			each := max(b.N/rounds, 64*50)
			work(ours, each)
			work(bare, each)
			b.ReportAllocs()
			var ratios, shares []float64
			var sum, sums time.Duration
			b.ResetTimer()
			for range rounds {
				took, busy := work(ours, each)
				bareTook, bareBusy := work(bare, each)
				ratios, shares = append(ratios, float64(bareTook)/float64(took)), append(shares, float64(bareBusy)/float64(busy))
				sum, sums = sum+busy, sums+bareBusy
			}
			slices.Sort(ratios)
			slices.Sort(shares)
			b.ReportMetric(ratios[rounds/2], "ratio")
			b.ReportMetric(shares[rounds/2], "cpu-ratio")
			b.ReportMetric(float64(sum)/float64(rounds*each), "cpu-ns/message")
			b.ReportMetric(float64(sums)/float64(rounds*each), "cpu-ns/echo")
			b.ReportMetric(0, "ns/op")
		})
	}
}
