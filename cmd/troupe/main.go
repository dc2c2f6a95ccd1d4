// SPDX-License-Identifier: Apache-2.0

// Command troupe serves agents over HTTP, controls such a server, and simulates
// cells from a seed.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"github.com/troupe-run/troupe/internal/invariant"
)

// CLI defines all commands and their flags. An environment variable TROUPE_… can
// replace a flag.
type CLI struct {
	Serve  ServeCmd  `cmd:"" help:"Run the agents of a data folder and answer HTTP."`
	Call   CallCmd   `cmd:"" help:"Send a message to an agent and print its answer."`
	Agents AgentsCmd `cmd:"" help:"Look at the agents there are."`
	Check  CheckCmd  `cmd:"" help:"Look for mistakes in files of agents."`
	Runs   RunsCmd   `cmd:"" help:"Look at runs, and signal those that wait."`
	Keys   KeysCmd   `cmd:"" help:"Make, list and revoke API keys."`
	Sim    SimCmd    `cmd:"" help:"Run seeded worlds."`
	Replay ReplayCmd `cmd:"" help:"Run a failed seed again from its folder."`
	Load   LoadCmd   `cmd:"" help:"Put a node under load, and say how it bears it."`

	Doctor  DoctorCmd  `cmd:"" help:"Look at all of a store, and say what is wrong with it."`
	Backup  BackupCmd  `cmd:"" help:"Copy a store, while its server serves."`
	Restore RestoreCmd `cmd:"" help:"Make a data folder of a backup."`

	Completion CompletionCmd `cmd:"" help:"Print what a shell needs to complete commands."`

	Version kong.VersionFlag `help:"Print the version and end."`
}

// exitCode is an error that carries the exit code of the process. Its cause has been
// printed already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// The exit codes besides 0. A failure or refusal is exitFailed, a command line that
// cannot be parsed exitUsage.
const (
	exitFailed = 1
	exitUsage  = 2
)

// streams holds the output for data and the output for messages to people.
type streams struct{ out, err io.Writer }

func main() {
	os.Exit(run(os.Args[1:], streams{os.Stdout, os.Stderr}))
}

// run executes the command line and returns the exit code.
func run(args []string, s streams) (code int) {
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
	if err != nil {
		command := "troupe"
		var parseErr *kong.ParseError
		if errors.As(err, &parseErr) && parseErr.Context.Selected() != nil {
			command = parseErr.Context.Selected().FullPath()
		}
		fmt.Fprintf(s.err, "troupe: %v\nTry: %s --help\n", err, command)
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
		kong.Vars{"version": version()}, kong.Writers(s.out, s.err), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Bind(s), kong.Exit(func(code int) { panic(exitCode(code)) })))
}

// version returns the version of the module and the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && len(setting.Value) >= 12 {
			v += " (" + setting.Value[:12] + ")"
		}
	}
	return v
}
