// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/troupe-run/troupe/agents"
)

// The names in a project's folder.
const (
	AgentsDir = "agents"   // folder with one agent in each file named *.toml
	RulesFile = "sim.toml" // rules of the stubs and expectations
)

// rulesBytesMax is the maximum size of a rules file in bytes.
const rulesBytesMax = 1 << 20

// Load reads a project: the agents in dir/agents, and dir/sim.toml. Either may be
// absent if the rest of the team is written in Go. If both are absent, dir itself is
// a folder of agents. A tool of an MCP server that the folder declares is a stub, unless
// the rules have another.
func Load(dir string) (*Team, error) {
	t := &Team{}
	servers, err := t.readAgents(AgentsIn(dir))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, RulesFile)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("simulate: %w", err)
	default:
		if err := t.Rules(string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	t.stubServers(servers)
	return t, nil
}

// AgentsIn returns the agents folder of a project, or an empty string if it has none.
func AgentsIn(dir string) string {
	if info, err := os.Stat(filepath.Join(dir, AgentsDir)); err == nil && info.IsDir() {
		return filepath.Join(dir, AgentsDir)
	}
	if _, err := os.Stat(filepath.Join(dir, RulesFile)); err == nil {
		return ""
	}
	return dir
}

// readAgents reads the agents of a folder and returns the names of its MCP servers.
func (t *Team) readAgents(dir string) (servers []string, err error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() || filepath.Ext(e.Name()) != ".toml" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
		if agents.IsToolTOML(string(text)) { // the rules replace its tool
			continue
		}
		if agents.IsServerTOML(string(text)) {
			var file struct {
				MCP map[string]toml.Primitive `toml:"mcp"`
			}
			if _, err := toml.Decode(string(text), &file); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			servers = append(servers, slices.Sorted(maps.Keys(file.MCP))...)
			continue
		}
		spec, err := agents.ReadTOML(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		t.Specs = append(t.Specs, spec)
	}
	return servers, nil
}

// stubServers adds a stub for each tool of an MCP server that an agent names and the rules do not.
func (t *Team) stubServers(servers []string) {
	for _, spec := range t.Specs {
		for _, name := range spec.Tools {
			server, _, _ := strings.Cut(name, ".")
			if slices.Contains(servers, server) && !slices.ContainsFunc(t.Tools, func(other Tool) bool { return other.Name == name }) {
				t.Tools = append(t.Tools, Tool{Name: name, Description: "A tool of the MCP server " + server + "."})
			}
		}
	}
}

// Rules parses the content of a sim.toml and adds it to the team.
func (t *Team) Rules(text string) error {
	if len(text) > rulesBytesMax {
		return fmt.Errorf("%d bytes, at most %d allowed", len(text), rulesBytesMax)
	}
	var file struct {
		Asks     []Ask    `toml:"ask"`
		Models   []Rule   `toml:"model"`
		Services []Rule   `toml:"service"`
		Tools    []Tool   `toml:"tool"`
		Signals  []Signal `toml:"signal"`
		Expect   []Expect `toml:"expect"`
	}
	meta, err := toml.Decode(text, &file)
	var parseErr toml.ParseError
	switch {
	case errors.As(err, &parseErr):
		return fmt.Errorf("line %d: %s", parseErr.Position.Line, parseErr.Message)
	case err != nil:
		return err
	case len(meta.Undecoded()) > 0:
		return unknownKey(meta.Undecoded()[0])
	}
	t.Asks, t.Models, t.Services = append(t.Asks, file.Asks...), append(t.Models, file.Models...), append(t.Services, file.Services...)
	t.Tools, t.Signals, t.Expect = append(t.Tools, file.Tools...), append(t.Signals, file.Signals...), append(t.Expect, file.Expect...)
	return nil
}

// allowedKeys lists the tables of a sim.toml and the keys of each.
var allowedKeys = map[string][]string{
	"":              {"ask", "model", "service", "tool", "signal", "expect"},
	"ask":           keysOf[Ask](),
	"model":         keysOf[Rule](),
	"model.calls":   keysOf[Call](),
	"model.uses":    keysOf[Use](),
	"service":       keysOf[Rule]("uses"), // services have no tools
	"service.calls": keysOf[Call](),
	"tool":          keysOf[Tool](),
	"signal":        keysOf[Signal](),
	"expect":        keysOf[Expect](),
}

// keysOf returns the keys of a table, without the keys given as arguments.
func keysOf[T any](except ...string) (keys []string) {
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		if key := t.Field(i).Tag.Get("toml"); !slices.Contains(except, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

func unknownKey(key toml.Key) error {
	for depth := len(key) - 1; depth >= 0; depth-- {
		if keys, ok := allowedKeys[strings.Join(key[:depth], ".")]; ok {
			table := "a sim.toml has the tables"
			if depth > 0 {
				table = fmt.Sprintf("[[%s]] has", strings.Join(key[:depth], "."))
			}
			return fmt.Errorf("%s is unknown; %s %s", key, table, strings.Join(keys, ", "))
		}
	}
	return fmt.Errorf("%s is unknown", key)
}
