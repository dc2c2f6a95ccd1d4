// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newToolService returns an HTTP server that performs tools: it answers with the request, or
// with the status that the path names.
func newToolService(t *testing.T) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/status/409" {
			w.WriteHeader(http.StatusConflict)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"did":"%s %s","with":%s,"secret":%v}`, r.Method, r.URL.Path, append([]byte(nil), body...), r.Header.Get("Authorization") == "Bearer s3cret")
	}))
	t.Cleanup(s.Close)
	return s
}

// commandCheck runs a command and checks its exit code and both outputs.
type commandCheck struct {
	*testing.T
	flags []string // added to every command
	env   []string
}

func (c commandCheck) run(wantCode int, wantOut, wantErr []string, args ...string) (out, stderr string) {
	c.Helper()
	cmd := programCmd(append(args, c.flags...)...)
	cmd.Env = append(cmd.Env, c.env...)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); cmd.ProcessState == nil {
		c.Fatal(err)
	}
	out, stderr = o.String(), e.String()
	bad := cmd.ProcessState.ExitCode() != wantCode || len(wantOut) == 0 && out != "" || len(wantErr) == 0 && stderr != ""
	for _, want := range wantOut {
		bad = bad || !strings.Contains(out, want)
	}
	for _, want := range wantErr {
		bad = bad || !strings.Contains(stderr, want)
	}
	if bad {
		c.Errorf("troupe %s: exit code %d\nstdout: %s\nstderr: %s\nwant %d, %q, %q", strings.Join(args, " "), cmd.ProcessState.ExitCode(), out, stderr, wantCode, wantOut, wantErr)
	}
	return out, stderr
}

func TestToolFilesAreChecked(t *testing.T) {
	dir := writeFiles(t, `>> good.toml
[tool]
tool_name = "weather.get"
url = "http://127.0.0.1:9000/w"
>> bad.toml
[tool]
tool_name = "pay"
url = "http://127.0.0.1:9000/pay/{to}"

timout_ms = 5
policy = "maybe"
>> same.toml
[tool]
tool_name = "weather.get"
url = "http://127.0.0.1:9000/v"
>> agent.toml
name = "a"`)
	file := func(name string) string { return filepath.Join(dir, name) }
	c := commandCheck{T: t}
	c.run(0, nil, []string{"good.toml: weather.get server_tool, POST http://127.0.0.1:9000/w\n"}, "tools", "check", file("good.toml"))
	c.run(1, []string{"bad.toml:3:1: url: {to} is no property", "bad.toml:5:1: timout_ms: is unknown; did you mean timeout_ms?", "bad.toml:6:1: policy: want allow",
		"same.toml: tool_name: weather.get is already declared in", "agent.toml:1:1: name: is unknown", "none.toml: "}, []string{"good.toml"},
		"tools", "check", file("good.toml"), file("bad.toml"), file("same.toml"), file("agent.toml"), file("none.toml"))
	c.run(1, []string{"want a regular file"}, nil, "tools", "check", dir)
	c.run(2, nil, []string{"Try: troupe tools check --help"}, "tools", "check")
	c.run(1, nil, []string{"bad.toml:6:1: policy"}, "tools", "call", file("bad.toml"))
	c.run(1, nil, []string{"bad.toml:6:1: policy"}, "tools", "add", file("bad.toml"))
}

func TestToolIsPerformedFromItsFile(t *testing.T) {
	service := newToolService(t)
	dir := writeFiles(t, strings.ReplaceAll(`>> weather.toml
[tool]
tool_name = "weather.get"
url = "URL/w/{city}"
max_result_bytes = 40
[tool.input_schema]
type = "object"
required = ["city"]
[tool.input_schema.properties.city]
type = "string"
[tool.input_schema.properties.days]
type = "integer"
>> pay.toml
[tool]
tool_name = "pay"
url = "URL/pay"
headers = { Authorization = { env = "TROUPE_AUTH_PAY" } }
>> careful.toml
[tool]
tool_name = "careful"
url = "URL/careful"
policy = "require_approval"
>> conflict.toml
[tool]
tool_name = "conflict"
url = "URL/status/409"
>> device.toml
[tool]
tool_name = "device"
kind = "client_tool"
>> troupe.toml
listen = "127.0.0.1:0"
[auth]
TROUPE_AUTH_PAY = "HOST"
[[policy]]
tool = "care*"
when = "args.amount > 5"
decision = "block"`, "URL", service.URL))
	config := filepath.Join(dir, "troupe.toml")
	text, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(config, []byte(strings.ReplaceAll(string(text), "HOST", strings.TrimPrefix(service.URL, "http://"))), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	c := commandCheck{T: t, env: []string{"TROUPE_AUTH_PAY=Bearer s3cret"}}
	// The body lacks the argument in the path. An agent would get the head of the result.
	c.run(0, []string{`{"did":"POST /w/Oslo x","with":{"days…` + "\n"}, []string{"POST " + service.URL + "/w/Oslo%20x\n{\"days\":2}\n", "attempt=1 status=200", "of which an agent gets 40, after "},
		"tools", "call", file("weather.toml"), "--args", `{"city": "Oslo x", "days": 2}`)
	c.run(1, nil, []string{"--args: InvalidInput: weather.get: days: want integer"}, "tools", "call", file("weather.toml"), "--args", `{"city": "Oslo", "days": "2"}`)
	c.run(1, nil, []string{"city"}, "tools", "call", file("weather.toml"))
	c.run(1, nil, []string{"JSON"}, "tools", "call", file("weather.toml"), "--args", "Oslo")
	c.run(1, nil, []string{"attempt=1 status=409", "failed after ", "conflict answers 409"}, "tools", "call", file("conflict.toml"))
	c.run(1, nil, []string{"a device of the user performs a client_tool"}, "tools", "call", file("device.toml"))

	c.run(0, []string{"did"}, []string{"without approval: the same call of an agent waits for a person: policy of the tool\n"}, "tools", "call", file("careful.toml"), "--config", config, "--args", `{"amount": 5}`)
	c.run(0, []string{"did"}, []string{"without a policy: the same call of an agent is blocked: rule 1 (care*)\n"}, "tools", "call", file("careful.toml"), "--config", config, "--args", `{"amount": 6}`)
	if _, stderr := c.run(0, []string{"did"}, []string{"POST"}, "tools", "call", file("weather.toml"), "--args", `{"city": "Oslo"}`); strings.Contains(stderr, "without ") {
		t.Errorf("an allowed call: %s", stderr)
	}

	out, stderr := c.run(0, []string{`"secret":true`}, []string{"POST " + service.URL + "/pay\n{}\n"}, "tools", "call", file("pay.toml"), "--config", config)
	if strings.Contains(out+stderr, "s3cret") {
		t.Errorf("the secret is printed:\n%s%s", out, stderr)
	}
	c.run(0, []string{`"secret":true`}, []string{"POST"}, "tools", "call", file("pay.toml"), "--auth", "TROUPE_AUTH_PAY="+strings.TrimPrefix(service.URL, "http://"))
	c.run(1, nil, []string{"TROUPE_AUTH_PAY"}, "tools", "call", file("pay.toml"))
	c.env = []string{"TROUPE_AUTH_PAY="}
	c.run(1, nil, []string{"TROUPE_AUTH_PAY is not set"}, "tools", "call", file("pay.toml"), "--config", config)
}

// Tools are added, listed, shown and deleted through a server.
func TestToolsOfServer(t *testing.T) {
	s := startServer(t, filepath.Join(t.TempDir(), "data"))
	dir := writeFiles(t, `>> pay.toml
[tool]
tool_name = "payments.transfer"
description = "`+strings.Repeat("Pays. ", 20)+`"
url = "http://127.0.0.1:9000/pay"
policy = "require_approval"
metadata = { team = "blue" }
headers = { X-Team = "blue" }`)
	file := filepath.Join(dir, "pay.toml")
	c := commandCheck{T: t, flags: []string{"--server", s.url}}
	c.run(0, nil, []string{"no tools are declared"}, "tools", "list")
	c.run(0, []string{`"tools": []`}, nil, "tools", "list", "--json")
	c.run(0, nil, []string{"tool payments.transfer is created; an agent uses it once"}, "tools", "add", file)
	c.run(0, nil, []string{"tool payments.transfer is unchanged"}, "tools", "add", file)
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(text), "9000", "9001", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.run(0, nil, []string{"tool payments.transfer is changed"}, "tools", "add", file)
	c.run(0, []string{"TOOL ", "payments.transfer  server_tool  http  require_approval  1m0s     Pays. Pays.", "…\n"}, nil, "tools", "list")
	c.run(0, []string{`"tool_name": "payments.transfer"`}, nil, "tools", "list", "--json")
	c.run(0, []string{"POST http://127.0.0.1:9001/pay", "X-Team (text)", "policy       require_approval", "owner ", `"team": "blue"`, `input_schema  {`}, nil, "tools", "show", "payments.transfer")
	c.run(0, []string{`"url": "http://127.0.0.1:9001/pay"`}, nil, "tools", "show", "payments.transfer", "--json")
	c.run(0, nil, []string{"tool payments.transfer is deleted"}, "tools", "delete", "payments.transfer")
	c.run(1, nil, []string{"tool_not_found", "troupe tools list"}, "tools", "show", "payments.transfer")
	c.run(1, nil, []string{"tool_not_found"}, "tools", "delete", "payments.transfer")
	c.run(2, nil, []string{"want the name of a tool, not of a file"}, "tools", "delete", file)
}
