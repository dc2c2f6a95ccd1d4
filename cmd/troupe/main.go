// SPDX-License-Identifier: Apache-2.0

// Command troupe serves agents over HTTP, controls such a server, and simulates
// cells from a seed.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"github.com/troupe-run/troupe/internal/invariant"
)

// CLI defines all commands and their flags. An environment variable TROUPE_… can
// replace a flag.
type CLI struct {
	Init   InitCmd   `cmd:"" help:"Create the folder of a new team."`
	Serve  ServeCmd  `cmd:"" help:"Run a node and serve its agents over HTTP."`
	Call   CallCmd   `cmd:"" help:"Send a message to an agent and print its answer."`
	Chat   ChatCmd   `cmd:"" help:"Talk to an agent: streamed answers, approvals and questions."`
	MCP    MCPCmd    `cmd:"" name:"mcp" help:"Offer the agents of a server as tools of an MCP server."`
	Agents AgentsCmd `cmd:"" help:"List, show, create and delete agents."`
	Check  CheckCmd  `cmd:"" help:"Check agent files for errors."`
	Runs   RunsCmd   `cmd:"" help:"List, show, signal and cancel runs."`

	Tasks     TasksCmd     `cmd:"" help:"List and show detached calls between agents."`
	Schedules SchedulesCmd `cmd:"" help:"List the messages that agents get at their times."`
	Usage     UsageCmd     `cmd:"" help:"Show tokens and money by day, user, agent and model."`
	Sessions  SessionsCmd  `cmd:"" help:"List, show and delete conversations."`
	Nodes     NodesCmd     `cmd:"" help:"List the orchestrators of a cluster, and have one leave."`

	Memory MemoryCmd `cmd:"" help:"List, show, search, forget and export what agents remember."`

	Capabilities CapabilitiesCmd `cmd:"" help:"List what agents do for others, with their owners."`

	Tools     ToolsCmd     `cmd:"" help:"List, show, check, call, add and delete declared tools."`
	Approvals ApprovalsCmd `cmd:"" help:"List, show and decide about tool calls that wait for a person."`

	Keys   KeysCmd   `cmd:"" help:"Create, list and revoke API keys."`
	Tokens TokensCmd `cmd:"" help:"Issue tokens for pages in browsers."`
	Sim    SimCmd    `cmd:"" help:"Run simulations from seeds."`
	Replay ReplayCmd `cmd:"" help:"Replay a failed seed from its folder."`
	Load   LoadCmd   `cmd:"" help:"Measure a node under load."`

	Health  HealthCmd  `cmd:"" help:"Report whether a server accepts work."`
	Doctor  DoctorCmd  `cmd:"" help:"Verify a store and print the damage found."`
	Backup  BackupCmd  `cmd:"" help:"Back up the store of a running server."`
	Restore RestoreCmd `cmd:"" help:"Create a data folder from a backup."`
	Migrate MigrateCmd `cmd:"" help:"Copy a store from a data folder into a database, or back."`

	Completion CompletionCmd `cmd:"" help:"Print a shell completion script."`
	Complete   CompleteCmd   `cmd:"" hidden:"" help:"Print words for shell completion."`
	WasmWorker WasmWorkerCmd `cmd:"" hidden:"" help:"Run modules of WebAssembly for a server."`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

// exitCode is an error that carries the exit code of the process. Its cause has been
// printed already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// The exit codes other than 0. exitFailed reports a failure or a refusal. exitUsage
// reports a command line that cannot be parsed. exitWaiting reports a call that ended
// without an answer, because its run waits or takes longer.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitWaiting     = 3
	exitInterrupted = 130 // SIGINT or SIGTERM, as in shells
)

// streams holds the output for data and the output for messages to people.
type streams struct{ out, err io.Writer }

func main() {
	os.Exit(run(os.Args[1:], streams{os.Stdout, os.Stderr}))
}

// run executes the command line and returns the exit code. A command whose output is lost fails.
func run(args []string, s streams) int {
	out, stderr := newOutput(s.out), newOutput(s.err)
	defer stderr.flush()
	code := runCommand(args, streams{out, stderr})
	out.flush()
	if code != 0 && code != exitWaiting {
		return code
	}
	if err := out.err(); err != nil {
		fmt.Fprintln(stderr, "troupe: standard output:", err)
		return exitFailed
	}
	return code
}

func runCommand(args []string, s streams) (code int) {
	parser := newParser(&CLI{}, s)
	defer func() { // --help and --version exit during parsing
		if p := recover(); p != nil {
			c, ok := p.(exitCode)
			if !ok {
				panic(p)
			}
			code = int(c)
		}
	}()
	if len(args) == 0 {
		args = []string{"--help"}
	}
	ctx, err := parser.Parse(args)
	switch {
	case err != nil && writeError(s.out) != nil: // of --help
		return 0 // run reports it
	case err != nil:
		command := "troupe"
		var parseErr *kong.ParseError
		if errors.As(err, &parseErr) && parseErr.Context.Selected() != nil {
			command = parseErr.Context.Selected().FullPath()
		}
		fmt.Fprintf(s.err, "troupe: %v\nTry: %s --help\n", withRemedy(command, err), command)
		return exitUsage
	}
	err = ctx.Run()
	var c exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &c):
		return int(c)
	default:
		fmt.Fprintln(s.err, "troupe:", err)
		return exitFailed
	}
}

func newParser(cli *CLI, s streams) *kong.Kong {
	return invariant.Must(kong.New(cli, mutantsOption(), kong.Name("troupe"), kong.Description("Teams of agents as durable virtual actors."),
		kong.Vars{"version": version(), "listen": defaultListen}, kong.Writers(s.out, s.err), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Bind(s), kong.Exit(func(code int) { panic(exitCode(code)) })))
}
