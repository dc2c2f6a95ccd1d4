// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/wasm"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/runtime"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// ToolsCallCmd performs a tool once. A call of a server belongs to a run, so this command
// performs the tool itself, in the way that a server does.
type ToolsCallCmd struct {
	File   string            `arg:"" type:"path" help:"File of the tool."`
	Args   string            `default:"{}" help:"Arguments as a JSON object; - reads standard input, @FILE a file (${default})."`
	Allow  []string          `placeholder:"HOST" help:"Host, address or prefix that the tool may reach, as of troupe serve. Loopback is allowed."`
	Auth   map[string]string `placeholder:"NAME=HOST" help:"Host to which the secret in the variable TROUPE_AUTH_… may be sent, as of troupe serve."`
	Config string            `env:"TROUPE_CONFIG" type:"path" placeholder:"FILE" help:"Server configuration, for its allow, auth and policy."`
}

// Help returns the text shown below the flags.
func (ToolsCallCmd) Help() string {
	return `Checks the arguments, sends the request that an agent's call would send, and prints the result as an agent gets it.
The request, and the status and the duration of each attempt, go to standard error, without headers. The policy is
not applied: a line warns if a call of an agent would wait for a person or be blocked. Exits with code 1 if an agent would get an error.

Examples:
  troupe tools call weather.toml --args '{"city": "Oslo"}'
  troupe tools call pay.toml --args @payment.json --config troupe.toml`
}

// Run executes the command.
func (c *ToolsCallCmd) Run(s streams) error {
	d, err := readToolFile(s, c.File)
	if err != nil {
		return err
	}
	args, err := readArgument("--args", c.Args)
	if err != nil {
		return err
	}
	config, policy, err := c.outbound(s.err)
	if err != nil {
		return err
	}
	if d.Via == tools.ViaWasm {
		workers, err := startWorkers(c.File, d)
		if err != nil {
			return err
		}
		defer workers.close()
		config.Sandbox = workers
	}
	out, err := outbound.New(config)
	if err != nil {
		return err
	}
	defer out.Close()
	left := cmp.Or(d.Timeout(), tools.TimeoutDefault)
	caller := tools.NewContext(actor.Call{To: actor.ID{Agent: "nobody"}}, left, nil) // a tool does not see it
	registry := invariant.Must(tools.NewRegistry().With([]tools.Declared{*d}, nil))
	ask, refused := registry.Plan(caller,
		actor.Ask{Kind: actor.AskTool, Name: d.Name, Parts: []actor.Part{{Media: actor.MediaJSON, Bytes: []byte(args)}}})
	if refused != nil {
		return fmt.Errorf("--args: %w", refused.Refusal)
	}
	input := ask.Parts[0].Bytes
	tool, _ := registry.Tool(d.Name)
	switch v := policy.Decide(tools.Caller{}, &tool, input); v.Decision {
	case runs.RequireApproval:
		fmt.Fprintf(s.err, "without approval: the same call of an agent waits for a person: %s\n", v.Rule)
	case runs.Block:
		fmt.Fprintf(s.err, "without a policy: the same call of an agent is blocked: %s\n", v.Rule)
	}
	if err := printToolRequest(s.err, d, input); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := time.Now()
	answer := out.Tool(ctx, actor.EffectID{}, runtime.Tool{Name: d.Name, Input: input, Left: left, Declared: d})
	took := time.Since(start).Round(time.Millisecond)
	switch {
	case ctx.Err() != nil:
		return exitCode(exitInterrupted)
	case answer.Refusal != nil:
		return fmt.Errorf("failed after %s: %w", took, answer.Refusal)
	}
	result := answer.Parts[0].Bytes
	shown := actor.FitText(string(result), d.ResultBytesMax())
	if _, err := fmt.Fprintln(s.out, shown); err != nil {
		return err
	}
	note := ""
	if len(shown) < len(result) {
		note = fmt.Sprintf(", of which an agent gets %d", len(shown))
	}
	_, err = fmt.Fprintf(s.err, "result: %d bytes%s, after %s\n", len(result), note, took)
	return err
}

// outbound returns the configuration of the connection, which logs each attempt, and the policy.
func (c *ToolsCallCmd) outbound(log io.Writer) (outbound.Config, *tools.Policy, error) {
	handler := slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.TimeKey, slog.LevelKey, slog.MessageKey, "upstream":
			return slog.Attr{}
		}
		return a
	}})
	config := outbound.Config{Allow: append(upstream.AllowLoopback(), c.Allow...), Auth: c.Auth, Logger: slog.New(handler)}
	file, err := readConfig(c.Config)
	if err != nil {
		return config, nil, err
	}
	hosts, _ := file.flags["allow"].([]any)
	for _, host := range hosts {
		config.Allow = append(config.Allow, fmt.Sprint(host))
	}
	bindings, _ := file.flags["auth"].(map[string]any)
	for name, host := range bindings {
		if config.Auth == nil {
			config.Auth = upstream.Bindings{}
		}
		if _, given := c.Auth[name]; !given {
			config.Auth[name] = fmt.Sprint(host)
		}
	}
	return config, file.Policy, nil
}

// oneWorkers are workers whose modules are kept in a temporary folder.
type oneWorkers struct {
	*wasm.Workers
	dir string
}

// startWorkers returns workers that have the module of a tool in a file.
func startWorkers(path string, d *tools.Declared) (*oneWorkers, error) {
	module, err := service.ReadModule(path, d)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "troupe-wasm-")
	if err != nil {
		return nil, err
	}
	w := &oneWorkers{wasm.New(wasm.Options{Command: wasmWorker(), Dir: dir}), dir}
	if err := w.Install(d.SHA256, module); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *oneWorkers) close() {
	w.Close()
	_ = os.RemoveAll(w.dir)
}

// printToolRequest prints the request of a tool without its headers, which may hold secrets.
func printToolRequest(w io.Writer, d *tools.Declared, input []byte) error {
	if d.Kind == tools.KindClient {
		return fmt.Errorf("tool %s: a device of the user performs a %s; this command has none", d.Name, tools.KindClient)
	}
	if d.Via == tools.ViaPipeline {
		return fmt.Errorf("tool %s: a pipeline calls other tools, which this command does not: call them one by one", d.Name)
	}
	if d.Via == tools.ViaWasm {
		_, err := fmt.Fprintf(w, "module %s\n%s\n", d.SHA256, input)
		return err
	}
	if d.Batch {
		input = upstream.BatchBody([]upstream.BatchCall{{ID: "1", Arguments: input}})
	}
	request, refusal := upstream.HTTPTool{Name: d.Name, URL: d.URL, Method: d.Method, Body: d.Body, Batch: d.Batch}.Request(upstream.ToolInput{Arguments: input})
	if refusal != nil {
		return refusal
	}
	if _, err := fmt.Fprintf(w, "%s %s\n", request.Method, request.URL); err != nil || len(request.Body) == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "%s\n", request.Body)
	return err
}
