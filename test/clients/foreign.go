// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
)

// foreignAgents is the folder of the answers of agents that others send, seen from the root of the project.
const foreignAgents = "test/foreign/agents"

// foreignAnswer is an answer of an agent: its content type and body, and the text that a person sees; null if the run fails.
type foreignAnswer struct {
	Name  string  `json:"name"`
	Text  *string `json:"text"`
	media string
	body  string
}

func readForeign(path string) (foreignAnswer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return foreignAnswer{}, err
	}
	input, meant, _ := strings.Cut(string(text), "----\n")
	lines := strings.Split(strings.TrimSuffix(input, "\n"), "\n")
	if len(lines) < 2 {
		return foreignAnswer{}, fmt.Errorf("%s is no transcript", path)
	}
	f := foreignAnswer{Name: strings.TrimSuffix(filepath.Base(path), ".txt")}
	_, f.media, _ = strings.Cut(lines[1], " ")
	for _, line := range lines[2:] {
		f.body += strings.NewReplacer("<CR>", "\r", "<BOM>", "\uFEFF", "<FF>", "\xff").Replace(strings.TrimPrefix(strings.TrimPrefix(line, "|"), " ")) + "\n"
	}
	shown, done := "", false
	for line := range strings.Lines(meant) {
		line = strings.TrimSuffix(line, "\n")
		if quoted, ok := strings.CutPrefix(line, "delta "); ok {
			piece, err := strconv.Unquote(quoted)
			if err != nil {
				return f, fmt.Errorf("%s: %s: %w", path, line, err)
			}
			shown += piece
		}
		done = done || strings.HasPrefix(line, "done")
	}
	if done {
		f.Text = &shown
	}
	return f, nil
}

// writeForeign writes a list of all answers for the page and returns its path.
func writeForeign(dir string) (string, error) {
	paths, _ := filepath.Glob(filepath.Join(foreignAgents, "*.txt"))
	if len(paths) < 15 {
		return "", fmt.Errorf("%d answers in %s: start this program in the root of the project", len(paths), foreignAgents)
	}
	var all []foreignAnswer
	for _, path := range paths {
		f, err := readForeign(path)
		if err != nil {
			return "", err
		}
		all = append(all, f)
	}
	list, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "foreign.json")
	return path, os.WriteFile(path, list, 0o644)
}
