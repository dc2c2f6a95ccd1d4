// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/load"
	"github.com/troupe-run/troupe/internal/node"
)

// testbed is a temporary node for load tests. Its gateway listens on loopback and
// requires an API key, as in production. The method close removes its folder.
type testbed struct {
	node    *node.Node
	dir     string
	gateway *gateway.Server
	url     string
	key     string
	served  chan error // result of gateway.Serve
}

func newTestbed(stderr io.Writer) (_ *testbed, err error) {
	t := &testbed{served: make(chan error, 1)}
	if t.dir, err = os.MkdirTemp("", "troupe-load-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(t.dir))
		}
	}()
	var keys gateway.Keys
	if t.key, err = createKey(&keys); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t.node, err = node.Open(node.Config{Data: filepath.Join(t.dir, "data"), Name: "load", Limits: dispatcher.DefaultLimits(), Native: load.Agents()}, log)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	t.url = "http://" + listener.Addr().String()
	t.gateway = gateway.New(t.node, log, gateway.Config{Keys: &keys, Secret: t.node.Secret(), External: t.node.External()})
	go func() { t.served <- t.gateway.Serve(listener) }()
	return t, nil
}

// createKey creates the only key of the testbed and returns its text.
func createKey(keys *gateway.Keys) (text string, err error) {
	var random [ingress.KeyRandomBytes]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	key, text, refusal := ingress.NewKey(random, "load", "", []ingress.Scope{ingress.ScopeCall}, actor.Time(time.Now().UnixNano()), 0)
	if refusal != nil {
		return "", refusal
	}
	keys.Set([]ingress.Key{key})
	return text, nil
}

// targets returns constructors of load targets by place.
func (t *testbed) targets() map[string]func(load.CallOptions) (load.Target, error) {
	return map[string]func(load.CallOptions) (load.Target, error){
		"dispatcher": func(o load.CallOptions) (load.Target, error) { return load.NewNodeTarget(t.node, o), nil },
		"gateway":    func(o load.CallOptions) (load.Target, error) { return load.NewGatewayTarget(t.url, t.key, o) },
	}
}

func (t *testbed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	t.node.Drain(ctx)
	err := t.gateway.Shutdown(ctx)
	return errors.Join(err, <-t.served, t.node.Close(ctx), os.RemoveAll(t.dir))
}
