// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"log/slog"
	"net"

	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/internal/link"
)

// Ingress is a gateway whose node is an orchestrator in another process. It has no data folder.
type Ingress struct {
	Gateway *gateway.Server
	Keys    *gateway.Keys // API keys of the orchestrator
	node    *link.Node
	log     *slog.Logger
	scheme  string
}

// OpenIngress waits for an orchestrator at one of the addresses, or for ctx, and opens a gateway for it. The caller MUST
// stop the ingress.
func OpenIngress(ctx context.Context, addresses []link.Address, c gateway.Config, log *slog.Logger) (*Ingress, error) {
	i := &Ingress{Keys: new(gateway.Keys), log: log, scheme: schemeOf(c)}
	var err error
	if i.node, err = link.Connect(ctx, addresses, i.Keys, log); err != nil {
		return nil, err
	}
	i.node.Gateway(&c)
	findDescriptors(log).bound(&c, new(outbound.Config)) // an ingress asks no model
	i.Gateway = gateway.New(i.node, log, c)
	return i, nil
}

// URL returns the URL of a listener.
func (i *Ingress) URL(addr net.Addr) string { return i.scheme + hostOf(addr) }

// Done returns a channel that is closed once the link has failed for good. Err returns the
// reason.
func (i *Ingress) Done() <-chan struct{} { return i.node.Done() }

// Err returns the reason why the link has failed. It is valid once Done is closed.
func (i *Ingress) Err() error { return i.node.Err() }

// Stop waits until no client waits for an answer, or until ctx ends. Then it disconnects clients
// and the orchestrator.
func (i *Ingress) Stop(ctx context.Context) error {
	if err := i.Gateway.Shutdown(ctx); err != nil {
		i.log.Warn("clients disconnected", "error", err.Error())
	}
	i.node.Close()
	return nil
}
