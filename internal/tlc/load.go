// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	loadClients  = 6
	loadRequests = 8 // of each
	loadLongest  = time.Minute
)

// underLoad starts a server of its own that writes its history down, has clients
// ask it all at once, and ends it.
func underLoad(ctx context.Context, trace string) error {
	ctx, cancel := context.WithTimeout(ctx, loadLongest)
	defer cancel()
	data, err := os.MkdirTemp("", "troupe")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	server := exec.CommandContext(ctx, "bin/troupe", "serve", "--ready", "--data", data, "--listen", "127.0.0.1:0", "--cells", "2", "--trace", trace, "--grace", "1s", "--log-level", "warn")
	var said bytes.Buffer
	server.Stderr = &said
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		err = load(ctx, strings.TrimSpace(url))
	}
	_ = server.Process.Signal(syscall.SIGTERM)
	if waited := server.Wait(); err == nil {
		err = waited
	}
	if err != nil {
		return fmt.Errorf("bin/troupe serve: %w\n%s", err, said.Bytes())
	}
	return nil
}

// load has clients ask a few actors at once. The coordinator asks the helper and
// then waits for a person: some of those runs are cancelled.
func load(ctx context.Context, url string) error {
	var clients sync.WaitGroup
	errs := make([]error, loadClients)
	for n := range loadClients {
		clients.Go(func() {
			for i := range loadRequests {
				agent, session := "helper", fmt.Sprintf("s%d", i%3)
				if i%4 == 0 {
					agent, session = "coordinator", fmt.Sprintf("s%d-%d", n, i)
				}
				run, err := post(ctx, url+"/v1/agents/"+agent+"/messages", map[string]any{"content": "word", "session": session, "timeout_ms": 20000})
				if err == nil && agent == "coordinator" && n%2 == 0 {
					_, err = post(ctx, url+"/v1/runs/"+run+":cancel", map[string]any{})
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

// post sends JSON, and returns the run that it is about.
func post(ctx context.Context, url string, body any) (run string, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	var told struct {
		Run string `json:"run_id"`
	}
	if response.StatusCode >= 300 && response.StatusCode != http.StatusTooManyRequests {
		return "", fmt.Errorf("%s: %s: %s", url, response.Status, answer)
	}
	_ = json.Unmarshal(answer, &told) // of a cancel nothing is told
	return told.Run, nil
}
