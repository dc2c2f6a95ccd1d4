// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// What makes the store: a real server, begun anew between the rounds, the second
// time after it was killed, and clients of several kinds.
const (
	nodeName   = "n1"
	rounds     = 3
	clients    = 4
	eachClient = 9
	workWithin = 2 * time.Minute
)

// makeStores has a real server write a store into dir, and a backup of it while
// it serves.
func makeStores(ctx context.Context, bin, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, workWithin)
	defer cancel()
	for round := range rounds {
		last := round == rounds-1
		end := syscall.SIGTERM
		if round == 1 {
			end = syscall.SIGKILL
		}
		if err := serveOnce(ctx, bin, dir, end, func(url string) error {
			if err := work(ctx, url, round); err != nil || !last {
				return err
			}
			_, err := post(ctx, url+"/v1/backups", map[string]any{"dir": filepath.Join(dir, theBackup)})
			return err
		}); err != nil {
			return err
		}
	}
	for _, name := range []string{"LOCK", "HOLDER"} { // of a process that has ended
		if err := os.Remove(filepath.Join(dir, theBackup, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func serveOnce(ctx context.Context, bin, dir string, end syscall.Signal, use func(url string) error) error {
	server := exec.CommandContext(ctx, bin, "serve", "--ready", "--node", nodeName, "--data", filepath.Join(dir, theStore), "--listen", "127.0.0.1:0", "--grace", "1s", "--log-level", "warn")
	var said bytes.Buffer
	server.Stderr = &said
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return fmt.Errorf("%w: make build makes it", err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		err = use(strings.TrimSpace(url))
	}
	_ = server.Process.Signal(end)
	if ended := server.Wait(); err == nil && end != syscall.SIGKILL {
		err = ended
	}
	if err != nil {
		return fmt.Errorf("%s serve: %w\n%s", bin, err, said.Bytes())
	}
	return nil
}

// work is what the clients of a round do: they talk in sessions that go on, send
// small and large messages, have one agent call another, leave runs open that
// wait for a person, and cancel some of them.
func work(ctx context.Context, url string, round int) error {
	var all sync.WaitGroup
	errs := make([]error, clients)
	for n := range clients {
		all.Go(func() {
			for i := range eachClient {
				if errs[n] = message(ctx, url, round, n, i); errs[n] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func message(ctx context.Context, url string, round, n, i int) error {
	agent, session, text := "helper", fmt.Sprintf("s%d-%d", n, i%3), fmt.Sprintf("word %d of client %d", i, n)
	switch {
	case i%8 == 0:
		agent, session = "coordinator", fmt.Sprintf("r%d-%d-%d", round, n, i)
	case i%5 == 0:
		text = strings.Repeat(fmt.Sprintf("many words %d %d ", n, i), 400) // kept by itself, under its digest
	}
	run, err := post(ctx, url+"/v1/agents/"+agent+"/messages", map[string]any{"content": text, "session": session, "timeout_ms": 20000})
	if err == nil && agent == "coordinator" && i%16 == 0 {
		_, err = post(ctx, url+"/v1/runs/"+run+":cancel", map[string]any{})
	}
	return err
}

// post sends JSON, and returns the run that the answer is about.
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
