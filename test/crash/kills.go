// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// begin draws a seed unless one is given, creates the folder and prints what is run.
func (c *harness) begin(out, stderr io.Writer, with string) (err error) {
	c.seed = cmp.Or(c.seed, rand.Uint64())
	c.rng, c.ledger = rand.New(rand.NewPCG(c.seed, 0)), newLedger(stderr)
	if c.dir, err = os.MkdirTemp("", "troupe-crash-"); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d kills of %s%s, seed %d\n", c.kills, c.bin, with, c.seed)
	c.listen, err = freePort()
	return err
}

// eachKill starts one instance after the other. Each is sent its messages, and killed within the given time after
// them. The function met is called just before each kill.
func (c *harness) eachKill(ctx context.Context, within time.Duration, send func(*instance, int) error, met func()) error {
	for n := range c.kills {
		err := c.withInstance(ctx, func(s *server, inst *instance) error {
			if err := send(inst, n); err != nil {
				return err
			}
			if err := pause(ctx, time.Duration(c.rng.Int64N(int64(within)))); err != nil {
				return err
			}
			met()
			if killed, state := s.terminate(syscall.SIGKILL); !killed {
				return fmt.Errorf("the server exited before the kill: %s: %s", state, tail(c.dir))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("cycle %d: %w", n+1, err)
		}
	}
	return nil
}

// withInstance runs one instance for the duration of a function.
func (c *harness) withInstance(ctx context.Context, do func(*server, *instance) error) error {
	s, err := start(ctx, c.bin, c.dir, c.listen)
	if err != nil {
		return err
	}
	defer s.terminate(syscall.SIGKILL)
	inst := newInstance(ctx, s.Line, filepath.Join(c.dir, dataDir), s.Exited(), 0)
	defer inst.close()
	return do(s, inst)
}

// sendAsync sends a message without waiting for its answer, and returns its run.
func (inst *instance) sendAsync(agent, body string, headers ...string) (run string, err error) {
	response, err := inst.send(request{method: "POST", path: "/v1/agents/" + agent + "/messages", body: body, headers: append(headers, "Prefer", "respond-async")})
	if err != nil {
		return "", err
	}
	var out struct {
		Run string `json:"run_id"`
	}
	status, err := readJSON(response, &out)
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("the message got %d", status)
	}
	return out.Run, err
}

// serveHTTP serves a handler until the server is closed.
func serveHTTP(listener net.Listener, handler http.Handler) *http.Server {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			panic(err)
		}
	}()
	return server
}

// writeFiles writes texts to their paths, and creates the folders.
func writeFiles(texts map[string]string) error {
	for path, text := range texts {
		if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return err
		}
	}
	return nil
}
