// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/ingress"
	nodes "github.com/troupe-run/troupe/internal/node"
)

const connections = 64

// studyHTTP measures messages sent over HTTP with an API key to an echo agent. The
// clients share the process with both servers.
func studyHTTP(b *bench) (rows []row, err error) {
	bare, stop, err := echoServer()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, v := range []struct {
		name       string
		durability actor.Durability
		floor      floor
	}{
		{"POST /v1/agents/{id}/messages, nothing written down, 64 connections", actor.Volatile, ratioAtLeast(0.6)},
		{"POST /v1/agents/{id}/messages, durable, 64 connections", actor.Journaled, ratioAtLeast(0.35)},
	} {
		err := b.withNode(nil, func(n *node) error {
			r, err := b.httpRow(n, v.name, bare, v.floor)
			if err == nil {
				rows = append(rows, r)
			}
			return err
		}, echo("echo", v.durability))
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func (b *bench) httpRow(n *node, name, bare string, f floor) (r row, err error) {
	var random [ingress.KeyRandomBytes]byte
	rand.Read(random[:]) //nolint:errcheck // never fails
	key, text, refusal := ingress.NewKey(random, "bench", "", []ingress.Scope{ingress.ScopeCall}, n.Now(), 0)
	if refusal != nil {
		return r, refusal
	}
	keys := new(gateway.Keys)
	keys.Set([]ingress.Key{key})
	server := gateway.New(nodes.NewCommands(n.Engine), slog.New(slog.DiscardHandler), gateway.Config{Keys: keys})
	address, stop, err := serve(server.Serve, server.Shutdown)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if status, err := newClient(address, "/v1/agents/echo/messages", "troupe_no_such_key", 1).post(0); err != nil || status != fasthttp.StatusUnauthorized {
		return r, fmt.Errorf("unknown key: %w", cmp.Or(err, fmt.Errorf("got status %d, want 401", status)))
	}
	ours, theirs := newClient(address, "/v1/agents/echo/messages", text, connections), newClient(bare, "/", text, connections)
	rounds, err := b.runRounds(comparison{name: name, sideTime: durableSideTime,
		ours:   func(n int) (time.Duration, error) { return runConcurrent(connections, n, ours.postOK) },
		theirs: func(n int) (time.Duration, error) { return runConcurrent(connections, n, theirs.postOK) }})
	if err != nil {
		return r, err
	}
	r = throughputRow(name, "a bare fasthttp server that echoes the same body", rounds, f)
	return r, b.addPercentiles(&r, connections, ours.postOK, theirs.postOK)
}

// echoServer starts the counterpart: a fasthttp server that returns the request
// body.
func echoServer() (address string, stop func() error, err error) {
	s := &fasthttp.Server{NoDefaultServerHeader: true, CloseOnShutdown: true, Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBody(ctx.PostBody())
	}}
	return serve(s.Serve, s.ShutdownWithContext)
}

// serve runs a server on a free port. The returned stop shuts the server down
// within 10 seconds.
func serve(with func(net.Listener) error, shutdown func(context.Context) error) (address string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- with(l) }()
	return l.Addr().String(), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(shutdown(ctx), <-ended)
	}, nil
}

// client posts to one path repeatedly.
type client struct {
	host     fasthttp.HostClient
	requests []*fasthttp.Request // indexed by connection
}

func newClient(address, path, key string, connections int) *client {
	c := &client{host: fasthttp.HostClient{Addr: address, MaxConns: connections, MaxIdleConnDuration: time.Minute,
		ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second}}
	for i := range connections {
		r := &fasthttp.Request{}
		r.SetRequestURI("http://" + address + path)
		r.Header.SetMethod(fasthttp.MethodPost)
		r.Header.SetContentType("application/json")
		r.Header.Set(fasthttp.HeaderAuthorization, "Bearer "+key)
		body, _ := json.Marshal(map[string]string{"content": string(payload[0].Bytes), "session": fmt.Sprintf("session-%d", i)}) // marshaling strings cannot fail
		r.SetBody(body)
		c.requests = append(c.requests, r)
	}
	return c
}

// post sends one request and returns the status.
func (c *client) post(connection int) (int, error) {
	response := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(response)
	err := c.host.Do(c.requests[connection], response)
	return response.StatusCode(), err
}

func (c *client) postOK(connection, _ int) error {
	status, err := c.post(connection)
	if err == nil && status != fasthttp.StatusOK {
		err = fmt.Errorf("status %d, want 200", status)
	}
	return err
}
