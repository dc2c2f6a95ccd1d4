// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed" // the client's own program
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/troupe-run/troupe/internal/servertest"
)

//go:embed openai.mjs
var openAINode string

// checkOpenAI asks the models and the agents of a server with the package openai of npm, and keys that have the scope
// for one of both only.
func (h *harness) checkOpenAI(npm, node string) error {
	dir, data := filepath.Join(h.dir, "npm"), filepath.Join(h.dir, "openai")
	fmt.Println("npm install openai@7")
	install := exec.CommandContext(h.ctx, npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "openai@7")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("npm: %w: %s", err, out)
	}
	program := filepath.Join(dir, "openai.mjs")
	if err := os.WriteFile(program, []byte(openAINode), 0o600); err != nil {
		return err
	}
	arguments := []string{program, ""} // program, URL, and a key for models and one for agents
	for _, scope := range []string{"agents", "call"} {
		key, err := exec.CommandContext(h.ctx, h.bin, "keys", "create", "--data", data, "--scope", scope).Output()
		if err != nil {
			return fmt.Errorf("keys create: %w", err)
		}
		arguments = append(arguments, strings.TrimSpace(string(key)))
	}
	serve := exec.CommandContext(h.ctx, h.bin, "serve", "--data", data, "--listen", "127.0.0.1:0", "--keyless=off", "--log-level", "error")
	serve.Stderr = os.Stderr
	server, err := servertest.Start(serve)
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop(syscall.SIGKILL) }()
	arguments[1] = server.Line
	if out, err := exec.CommandContext(h.ctx, node, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("npm's openai: %w: %s", err, out)
	}
	fmt.Printf("  %-22s models, agents, answers, streams, a tool and errors are as it expects\n", "npm's openai")
	return nil
}
