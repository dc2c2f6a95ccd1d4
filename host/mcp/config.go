// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupe-run/troupe/tools"
)

// Bounds of a configuration.
const (
	ServersMax    = 32
	argsMax       = 128
	envMax        = 64
	textBytesMax  = 4 << 10 // length of a command and of an argument
	nameBytesMax  = 24      // maximum length of a server's name; models accept 64 characters for server and tool together
	defaultAtOnce = 16
)

// Config is the configuration of one MCP server: a command, a module, or a URL.
type Config struct {
	Command string   // program, found by the PATH of this process
	Args    []string // its arguments; no shell reads them
	Env     []string // names of the variables that it gets from this process; it gets no others

	Wasm   string   // SHA-256 of a module of WebAssembly, whose worker is the process; see Options.Module
	Grants []string // what the module is given beyond its standard streams, such as tools.GrantClock

	URL     string                  // endpoint of streamable HTTP
	Headers map[string]tools.Header // sent with each request to the URL

	TimeoutMS      int64  // maximum time of a call; 0: the limit tool_timeout_ms of the server
	MaxResultBytes int    // size of a result that an agent gets as a whole; 0: tools.ResultBytesDefault
	Concurrency    int    // calls at once; 0: 16. Further calls wait
	Identity       string // how it is told who asks, one of tools.Identities: in _meta; "": it is not
	Policy         string // decision about calls of its tools; "": the default of the deployment
	// Spans means that a call names the span of this server in its trace, instead of that of the client.
	Spans bool
	// TrustAnnotations means that a tool which its server calls read-only or idempotent may be
	// performed twice.
	TrustAnnotations bool
}

// CheckName returns an error unless a server may have the name. Names of tools begin with it.
func CheckName(name string) error {
	if name == "" || len(name) > nameBytesMax || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" ||
		strings.Contains(name, "__") || strings.Trim(name, "_") != name {
		return fmt.Errorf("%.80q: want 1 to %d small letters, digits, '-' and single '_' within, like files", name, nameBytesMax)
	}
	return nil
}

// Check returns all errors of the configuration as tools.FieldErrors, or nil.
func (c *Config) Check() error {
	var problems tools.FieldErrors
	report := func(field, format string, args ...any) {
		problems = append(problems, tools.FieldError{Field: field, Text: fmt.Sprintf(format, args...)})
	}
	kinds := 0
	for _, set := range []bool{c.Command != "", c.URL != "", c.Wasm != ""} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		report("command", "want either command, the program of the server, or wasm, its module, or url, its address")
	}
	if c.Wasm == "" && len(c.Grants) > 0 {
		report("grant", "not allowed without wasm: other servers reach what their process reaches")
	}
	switch {
	case c.Wasm != "" && c.Headers != nil:
		report("headers", "not allowed with wasm: a module reaches no address")
	case c.Command != "" && c.Headers != nil:
		report("headers", "not allowed with command; use env for the variables of the process")
	case c.Command == "" && len(c.Args)+len(c.Env) > 0:
		report("command", "is missing; args and env belong to it")
	}
	if len(c.Args) > argsMax {
		report("args", "%d arguments, at most %d allowed", len(c.Args), argsMax)
	}
	for _, text := range append([]string{c.Command}, c.Args...) {
		if len(text) > textBytesMax || strings.Contains(text, "\x00") {
			report("args", "want texts of at most %d bytes without NUL", textBytesMax)
			break
		}
	}
	if len(c.Env) > envMax {
		report("env", "%d variables, at most %d allowed", len(c.Env), envMax)
	}
	for _, name := range c.Env {
		if name == "" || len(name) > tools.NameBytesMax || strings.ContainsAny(name, "= \x00") {
			report("env", "%.80q: want the name of an environment variable, not its value", name)
		}
	}
	// The rules of the other fields are those of a tool.
	as := tools.Declared{Name: "x", URL: cmp.Or(c.URL, "http://localhost"), Headers: c.Headers, TimeoutMS: c.TimeoutMS,
		MaxResultBytes: c.MaxResultBytes, Concurrency: c.Concurrency, Policy: c.Policy, Identity: c.Identity}
	if c.URL == "" {
		as.Headers = nil
	}
	if c.Wasm != "" {
		as.Via, as.URL, as.Identity, as.SHA256, as.Grant = tools.ViaWasm, "", "", c.Wasm, c.Grants
	}
	if c.Wasm != "" && c.Identity != "" && !slices.Contains(tools.Identities, c.Identity) {
		report("identity", "%.40q: want one of %s", c.Identity, strings.Join(tools.Identities, ", "))
	}
	if c.Identity == tools.IdentityJWT {
		report("identity", "want %s: identities for MCP servers are not signed yet", tools.IdentityHeaders)
	}
	var further tools.FieldErrors
	if errors.As(as.Check(), &further) {
		problems = append(problems, further...)
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}

// atOnce returns the number of calls at once. A module is one thread, which answers them one after the
// other: those that wait here have their turns by user, and time of their own.
func (c *Config) atOnce() int {
	if c.Wasm != "" {
		return cmp.Or(c.Concurrency, 1)
	}
	return cmp.Or(c.Concurrency, defaultAtOnce)
}

// String returns a short description of the server without its secrets.
func (c *Config) String() string {
	if c.URL != "" {
		return "MCP server at " + c.URL
	}
	if c.Wasm != "" {
		return fmt.Sprintf("MCP server in the module %.12s", c.Wasm)
	}
	return "MCP server " + strings.Join(append([]string{c.Command}, c.Args...), " ")
}

// Times of servers. Tests shorten them.
type times struct {
	connect    time.Duration // to start a server and read its list
	compile    time.Duration // in addition, for a module
	grace      time.Duration // for a process to end, before each signal
	backoff    time.Duration // delay after the first failure
	backoffMax time.Duration
	relist     time.Duration // between two lists of a server over HTTP
	announced  time.Duration // minimum time from a list to the next one that an announcement of the server causes
	warned     time.Duration // at least, between two lines of the log about changed lists
	watch      time.Duration // between two looks at the files of accepted lists
}

var defaultTimes = times{connect: 30 * time.Second, compile: 2 * time.Minute, grace: 2 * time.Second, backoff: time.Second, backoffMax: time.Minute,
	relist: time.Minute, announced: 5 * time.Second, warned: time.Minute, watch: 2 * time.Second}
