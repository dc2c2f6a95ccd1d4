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
	nodes "github.com/troupe-run/troupe/internal/node"
)

// bed is a node that is made to be loaded, with a door on loopback that asks for
// a key like any other. Its folder goes with it.
type bed struct {
	node *node
	dir  string
	door *gateway.Server
	url  string
	key  string
	over chan error // of the door
}

func newBed(talk io.Writer) (_ *bed, err error) {
	b := &bed{over: make(chan error, 1)}
	if b.dir, err = os.MkdirTemp("", "troupe-load-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(b.dir))
		}
	}()
	var keys gateway.Keys
	if b.key, err = onlyKey(&keys); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewJSONHandler(talk, &slog.HandlerOptions{Level: slog.LevelWarn}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b.node, err = openNode(nodeConfig{Data: filepath.Join(b.dir, "data"), Name: "load", Limits: dispatcher.DefaultLimits(), Native: load.Agents()}, log)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	b.url = "http://" + listener.Addr().String()
	b.door = gateway.New(nodes.NewCommands(b.node.engine), log, gateway.Config{Keys: &keys, Secret: b.node.secret, External: b.node.outbound})
	go func() { b.over <- b.door.Serve(listener) }()
	return b, nil
}

// onlyKey makes the one key there is.
func onlyKey(keys *gateway.Keys) (text string, err error) {
	var random [ingress.KeyRandomBytes]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	key, text, refusal := ingress.NewKey(random, "load", []ingress.Scope{ingress.ScopeCall}, actor.Time(time.Now().UnixNano()), 0)
	if refusal != nil {
		return "", refusal
	}
	keys.Set([]ingress.Key{key})
	return text, nil
}

// targets are the places where the node can be asked.
func (b *bed) targets() map[string]func(load.Ask) (load.Target, error) {
	return map[string]func(load.Ask) (load.Target, error){
		"dispatcher": func(a load.Ask) (load.Target, error) { return load.NewCells(b.node.engine, a), nil },
		"gateway":    func(a load.Ask) (load.Target, error) { return load.NewDoor(b.url, b.key, a) },
	}
}

func (b *bed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	b.node.engine.Drain(ctx)
	err := b.door.Shutdown(ctx)
	return errors.Join(err, <-b.over, b.node.close(ctx), os.RemoveAll(b.dir))
}
