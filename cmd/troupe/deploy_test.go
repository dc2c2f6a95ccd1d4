// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// The commands and variables of the container file and the unit are those of the program.
func TestDeployedCommands(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	image, unit := read("Dockerfile"), read("troupe.service")
	var commands [][]string
	for _, found := range regexp.MustCompile(`(?m)CMD (\[.*\])$`).FindAllStringSubmatch(image, -1) {
		var words []string
		if err := json.Unmarshal([]byte(found[1]), &words); err != nil {
			t.Fatalf("%s: %v", found[1], err)
		}
		commands = append(commands, words)
	}
	if found := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit); found != nil {
		commands = append(commands, strings.Fields(found[1]))
	}
	if len(commands) != 3 {
		t.Fatalf("want the health check and the command of the image, and that of the unit, got %q", commands)
	}
	for _, bound := range []string{`MemoryMax=\d+%`, `TasksMax=\d+`, "ProtectProc=invisible", "LimitCORE=0"} {
		if !regexp.MustCompile("(?m)^" + bound + "$").MatchString(unit) {
			t.Errorf("the unit does not bound what the server takes or sees: want %s", bound)
		}
	}
	if !strings.Contains(read("../sdk/python/pyproject.toml"), `"h11>=0.16,`) {
		t.Error("the Python package accepts an h11 that reads malformed chunks: want 0.16 or later")
	}
	for _, words := range commands {
		if strings.HasSuffix(words[0], "/troupe") {
			words = words[1:]
		}
		if ctx, err := newParser(&CLI{}, streams{io.Discard, io.Discard}).Parse(words); err != nil {
			t.Errorf("%q: %v", words, err)
		} else if name := ctx.Selected().Name; name != words[0] {
			t.Errorf("%q: the command %s", words, name)
		}
	}
	var known []string
	for _, command := range newParser(&CLI{}, streams{io.Discard, io.Discard}).Model.Children {
		for _, flag := range command.Flags {
			known = append(known, flag.Envs...)
		}
	}
	for _, text := range []string{image, unit, read("README.md")} {
		for _, name := range regexp.MustCompile(`TROUPE_[A-Z_]+[A-Z]`).FindAllString(text, -1) {
			if !slices.Contains(known, name) {
				t.Errorf("no command reads the variable %s", name)
			}
		}
	}
}
