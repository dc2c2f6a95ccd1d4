// SPDX-License-Identifier: Apache-2.0

// Package servertest runs a real server for the duration of a test program.
package servertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"syscall"
)

// Run starts `bin serve` with the given flags on a free port and calls the function
// use with the base URL. It then sends the signal end and waits for the process to
// exit. A non-zero exit is an error. Exception: end is SIGKILL.
func Run(ctx context.Context, bin string, flags []string, end syscall.Signal, use func(url string) error) error {
	cmd := exec.CommandContext(ctx, bin, append([]string{"serve", "--ready", "--listen", "127.0.0.1:0", "--grace", "1s", "--log-level", "warn"}, flags...)...)
	var log bytes.Buffer
	cmd.Stderr = &log
	server, err := Start(cmd)
	if err == nil {
		err = use(server.Line)
		if exit := server.Stop(end); err == nil && end != syscall.SIGKILL {
			err = exit
		}
	}
	if err != nil {
		return fmt.Errorf("%s serve: %w\n%s", bin, err, log.Bytes())
	}
	return nil
}

// Post sends body as JSON and returns the run_id of the response, if it has
// one. Status 429 is not an error.
func Post(ctx context.Context, url string, body any) (run string, err error) {
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
	if response.StatusCode >= 300 && response.StatusCode != http.StatusTooManyRequests {
		return "", fmt.Errorf("%s: %s: %s", url, response.Status, answer)
	}
	var told struct {
		Run string `json:"run_id"`
	}
	_ = json.Unmarshal(answer, &told)
	return told.Run, nil
}
