// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
)

// Waiting answers the clients of an ingress until its orchestrator is connected: /healthz says that the
// process lives, and every other request is refused.
type Waiting struct {
	listener net.Listener
	ended    chan struct{}
	err      error // valid once ended is closed
}

// waitingConnectionsMax is the maximum number of connections of Waiting; further ones wait.
const waitingConnectionsMax = 256

// ServeWaiting answers on a socket of its own at the address of the listener, which stays open for the
// gateway. The caller MUST call Stop.
func ServeWaiting(l *net.TCPListener, c Config, log *slog.Logger) (*Waiting, error) {
	file, err := l.File()
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	own, err := net.FileListener(file)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if c.Certificate != nil {
		own = tls.NewListener(own, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: c.Certificate.get})
	}
	const patience = 10 * time.Second
	w := &Waiting{listener: own, ended: make(chan struct{})}
	server := &fasthttp.Server{
		Handler: func(ctx *fasthttp.RequestCtx) {
			if string(ctx.Path()) == "/healthz" {
				healthz(ctx)
				return
			}
			refusalProblem(actor.RefuseUnavailable(time.Second, "the orchestrator is not connected: retry later")).write(ctx)
		},
		Concurrency: waitingConnectionsMax, ReadBufferSize: HeaderBytesMax, MaxRequestBodySize: BodyBytesMax,
		ReadTimeout: patience, WriteTimeout: patience, DisableKeepalive: true,
		DisablePreParseMultipartForm: true, NoDefaultServerHeader: true, NoDefaultContentType: true,
		Logger: httpLog{log},
	}
	go func() {
		w.err = server.Serve(own)
		close(w.ended)
	}()
	return w, nil
}

// Stop accepts no more connections. Those that are open get their answer.
func (w *Waiting) Stop() error {
	err := w.listener.Close()
	<-w.ended
	return errors.Join(err, w.err)
}
