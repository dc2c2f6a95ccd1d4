// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/internal/servertest"
)

const (
	loadClients  = 6
	loadRequests = 8 // per client
	loadTimeout  = time.Minute
)

// traceServer starts a server that records its history in the file trace. It runs concurrent
// clients against the server and then stops it.
func traceServer(ctx context.Context, trace string) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	data, err := os.MkdirTemp("", "troupe")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	return servertest.Run(ctx, "bin/troupe", []string{"--data", data, "--cells", "2", "--trace", trace}, syscall.SIGTERM,
		func(url string) error { return sendRequests(ctx, url) })
}

// sendRequests runs concurrent clients that call a few actors. The coordinator calls the helper
// and then waits for a person. Half of the clients cancel the runs of the coordinator.
func sendRequests(ctx context.Context, url string) error {
	var clients sync.WaitGroup
	errs := make([]error, loadClients)
	for n := range loadClients {
		clients.Go(func() {
			for i := range loadRequests {
				agent, session := "helper", fmt.Sprintf("s%d", i%3)
				if i%4 == 0 {
					agent, session = "coordinator", fmt.Sprintf("s%d-%d", n, i)
				}
				run, err := servertest.Post(ctx, url+"/v1/agents/"+agent+"/messages", map[string]any{"content": "word", "session": session, "timeout_ms": 20000})
				if err == nil && agent == "coordinator" && n%2 == 0 {
					_, err = servertest.Post(ctx, url+"/v1/runs/"+run+":cancel", map[string]any{})
				}
				if err != nil {
					errs[n] = err
					return
				}
			}
		})
	}
	clients.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
