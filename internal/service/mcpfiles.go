// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"maps"
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
}

// mcpTable is a table [mcp.NAME].
type mcpTable struct {
	Command          string         `toml:"command"`
	Args             []string       `toml:"args"`
	Env              []string       `toml:"env"`
	URL              string         `toml:"url"`
	Headers          map[string]any `toml:"headers"`
	TimeoutMS        int64          `toml:"timeout_ms"`
	MaxResultBytes   int            `toml:"max_result_bytes"`
	Concurrency      int            `toml:"concurrency"`
	Policy           string         `toml:"policy"`
	TrustAnnotations bool           `toml:"trust_annotations"`
}

var mcpFields = []string{"command", "args", "env", "url", "headers", "timeout_ms", "max_result_bytes", "concurrency", "policy", "trust_annotations"}

// readServers reads the MCP servers of a file, the tables [mcp.NAME].
func (f *AgentFiles) readServers(path, text string) {
	report := func(line int, field, format string, args ...any) {
		f.Problems = append(f.Problems, FileProblem{File: path, Line: line, Column: min(line, 1), Field: fmt.Sprintf("%.120s", field), Text: fmt.Sprintf(format, args...)})
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
		switch name := key[len(key)-1]; {
		case len(key) > 3 && key[2] == "headers": // checked below
		case len(key) != 3:
			report(0, key.String(), "is unknown in a file of MCP servers; want tables [mcp.NAME] only")
		case nearest.Of(name, mcpFields) != "":
			report(0, key.String(), "is unknown; did you mean %s?", nearest.Of(name, mcpFields))
		default:
			report(0, key.String(), "is unknown; known fields: %s", strings.Join(mcpFields, ", "))
		}
	}
	if len(file.MCP) == 0 {
		report(0, "mcp", "want a table [mcp.NAME] for each MCP server")
	}
	for _, name := range slices.Sorted(maps.Keys(file.MCP)) {
		t := file.MCP[name]
		at, field := lineOf(text, name), "mcp."+name
		c := mcp.Config{Command: t.Command, Args: t.Args, Env: t.Env, URL: t.URL, TimeoutMS: t.TimeoutMS, MaxResultBytes: t.MaxResultBytes,
			Concurrency: t.Concurrency, Policy: t.Policy, TrustAnnotations: t.TrustAnnotations}
		var problems tools.FieldErrors
		c.Headers, problems = readHeaders(t.Headers)
		var further tools.FieldErrors
		if err := c.Check(); errors.As(err, &further) {
			problems = append(problems, further...)
		}
		for _, p := range problems {
			report(at, field+"."+p.Field, "%s", p.Text)
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
			f.Servers = append(f.Servers, ServerFile{path, name, c})
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

// ofServer reports whether a tool belongs to an MCP server of the files.
func (f *AgentFiles) ofServer(tool string) bool {
	name, _, ok := strings.Cut(tool, ".")
	return ok && slices.ContainsFunc(f.Servers, func(s ServerFile) bool { return s.Name == name })
}
