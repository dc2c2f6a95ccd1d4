// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/troupe-run/troupe/host/mcp"
	"github.com/troupe-run/troupe/internal/nearest"
	"github.com/troupe-run/troupe/tools"
)

// ServerFile is an MCP server and the file that declares it.
type ServerFile struct {
	Path   string
	Name   string
	Config mcp.Config
	Module []byte // of a server that is one
}

// mcpTable is a table [mcp.NAME].
type mcpTable struct {
	Command          string         `toml:"command"`
	Args             []string       `toml:"args"`
	Env              []string       `toml:"env"`
	Wasm             string         `toml:"wasm"`
	SHA256           string         `toml:"sha256"`
	Grant            []string       `toml:"grant"`
	URL              string         `toml:"url"`
	Headers          map[string]any `toml:"headers"`
	TimeoutMS        int64          `toml:"timeout_ms"`
	MaxResultBytes   int            `toml:"max_result_bytes"`
	Concurrency      int            `toml:"concurrency"`
	Policy           string         `toml:"policy"`
	Identity         string         `toml:"identity"`
	TrustAnnotations bool           `toml:"trust_annotations"`
}

var mcpFields = []string{"command", "args", "env", "wasm", "sha256", "grant", "url", "headers", "timeout_ms", "max_result_bytes", "concurrency", "identity", "policy", "trust_annotations"}

// readServers reads the MCP servers of a file, the tables [mcp.NAME].
func (f *AgentFiles) readServers(path, text string) {
	reportAt := func(line, column int, field, format string, args ...any) {
		f.Problems = append(f.Problems, FileProblem{File: path, Line: line, Column: column, Field: fmt.Sprintf("%.120s", field), Text: fmt.Sprintf(format, args...)})
	}
	report := func(line int, field, format string, args ...any) {
		reportAt(line, min(line, 1), field, format, args...)
	}
	var file struct {
		MCP map[string]mcpTable `toml:"mcp"`
	}
	meta, err := toml.Decode(text, &file)
	var parse toml.ParseError
	switch {
	case errors.As(err, &parse):
		report(parse.Position.Line, parse.LastKey, "%s", parse.Message)
		return
	case err != nil:
		report(0, "mcp", "%s", strings.TrimPrefix(err.Error(), "toml: "))
		return
	}
	for _, key := range meta.Undecoded() {
		line, column := positionOf(text, key)
		switch name := key[len(key)-1]; {
		case len(key) > 3 && key[2] == "headers": // checked below
		case len(key) != 3:
			reportAt(line, column, key.String(), "is unknown in a file of MCP servers; want tables [mcp.NAME] only")
		case nearest.Of(name, mcpFields) != "":
			reportAt(line, column, key.String(), "is unknown; did you mean %s?", nearest.Of(name, mcpFields))
		default:
			reportAt(line, column, key.String(), "is unknown; known fields: %s", strings.Join(mcpFields, ", "))
		}
	}
	if len(file.MCP) == 0 {
		report(0, "mcp", "want a table [mcp.NAME] for each MCP server")
	}
	for _, name := range slices.Sorted(maps.Keys(file.MCP)) {
		t := file.MCP[name]
		at, field := lineOf(text, name), "mcp."+name
		c := mcp.Config{Command: t.Command, Args: t.Args, Env: t.Env, URL: t.URL, TimeoutMS: t.TimeoutMS, MaxResultBytes: t.MaxResultBytes,
			Grants: t.Grant, Concurrency: t.Concurrency, Policy: t.Policy, Identity: t.Identity, TrustAnnotations: t.TrustAnnotations}
		var problems tools.FieldErrors
		c.Headers, problems = readHeaders(t.Headers)
		if t.Wasm == "" && t.SHA256 != "" {
			problems = append(problems, tools.FieldError{Field: "wasm", Text: "is missing; want the path of the module, from the folder of this file"})
		} else if t.Wasm != "" {
			c.Wasm = cmp.Or(t.SHA256, "missing")
		}
		var further tools.FieldErrors
		if err := c.Check(); errors.As(err, &further) {
			problems = append(problems, further...)
		}
		for _, p := range problems {
			report(at, field+"."+p.Field, "%s", p.Text)
		}
		var module []byte
		if t.Wasm != "" && len(problems) == 0 {
			if module, err = readModule(path, t.Wasm, t.SHA256); err != nil {
				report(at, field+".wasm", "%v", err)
				continue
			}
		}
		i := slices.IndexFunc(f.Servers, func(s ServerFile) bool { return s.Name == name })
		switch err := mcp.CheckName(name); {
		case err != nil:
			report(at, field, "%v", err)
		case i >= 0:
			report(at, field, "is already declared in %s; rename one of them", f.Servers[i].Path)
		case len(f.Servers) == mcp.ServersMax:
			report(at, field, "a folder declares at most %d MCP servers", mcp.ServersMax)
		case len(problems) == 0:
			f.Servers = append(f.Servers, ServerFile{path, name, c, module})
		}
	}
}

// lineOf returns the line of the table of a server; 0 if it is spelled in another way.
func lineOf(text, name string) int {
	line := 0
	for l := range strings.Lines(text) {
		line++
		if strings.HasPrefix(strings.TrimSpace(l), "[mcp."+name+"]") {
			return line
		}
	}
	return 0
}

// positionOf returns the line and column of a key, a field of a server or one outside of the
// tables; 0 if it is spelled in another way.
func positionOf(text string, key toml.Key) (line, column int) {
	before := 0
	switch len(key) {
	case 1:
	case 3:
		if before = lineOf(text, key[1]); before == 0 {
			return 0, 0
		}
	default:
		return 0, 0
	}
	for i, l := range strings.Split(text, "\n")[before:] {
		words := strings.TrimLeft(l, " \t")
		if strings.HasPrefix(words, "[") && len(key) == 3 {
			break // the next table
		}
		rest, ok := strings.CutPrefix(words, key[len(key)-1])
		if ok && strings.HasPrefix(strings.TrimLeft(rest, " \t"), "=") || len(key) == 1 && strings.HasPrefix(words, "["+key[0]+"]") {
			return before + i + 1, len(l) - len(words) + 1
		}
	}
	return 0, 0
}

// CheckCommands adds a warning for each MCP server whose command is not found on this machine.
func (f *AgentFiles) CheckCommands() {
	for _, s := range f.Servers {
		if s.Config.Command == "" {
			continue
		}
		if _, err := exec.LookPath(s.Config.Command); err != nil {
			f.warn(s.Path, "mcp."+s.Name+".command", "%v; its tools are missing where it is not installed", err)
		}
	}
}

// readHeaders reads headers: each is a text, or a table with the name of a variable.
func readHeaders(all map[string]any) (out map[string]tools.Header, problems tools.FieldErrors) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var h tools.Header
		value, isText := all[name].(string)
		table, _ := all[name].(map[string]any)
		env, hasEnv := table["env"].(string)
		if h = (tools.Header{Value: value, Env: env}); !isText && (!hasEnv || len(table) != 1) {
			problems = append(problems, tools.FieldError{Field: "headers." + name, Text: `want a text, or a table like { env = "TROUPE_AUTH_FILES" }`})
			continue
		}
		if out == nil {
			out = map[string]tools.Header{}
		}
		out[name] = h
	}
	return out, problems
}

// MCP returns the MCP servers of the files by name.
func (f *AgentFiles) MCP() map[string]mcp.Config {
	if f == nil {
		return nil
	}
	all := map[string]mcp.Config{}
	for _, s := range f.Servers {
		all[s.Name] = s.Config
	}
	return all
}

// Modules returns the modules of MCP servers by their SHA-256.
func (f *AgentFiles) Modules() map[string][]byte {
	if f == nil {
		return nil
	}
	all := map[string][]byte{}
	for _, s := range f.Servers {
		if s.Module != nil {
			all[s.Config.Wasm] = s.Module
		}
	}
	return all
}

// ofOthers reports whether a tool belongs to an MCP server of the files, or is one that the configuration of the server switches on.
func (f *AgentFiles) ofOthers(tool string) bool {
	if tools.IsMemory(tool) || tools.IsBuiltin(tool) {
		return true
	}
	name, _, ok := strings.Cut(tool, ".")
	return ok && slices.ContainsFunc(f.Servers, func(s ServerFile) bool { return s.Name == name })
}
