// SPDX-License-Identifier: Apache-2.0

// Command troupe wires a world to cells: the real one to serve, an imagined one to be sure.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"
)

var cli struct {
	Sim SimCmd `cmd:"" help:"Run seeded worlds."`
}

// exit is an error that says with which code the process ends; it is told already.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit %d", int(e)) }

func main() {
	ctx := kong.Parse(&cli, kong.Name("troupe"), kong.Description("Teams of agents as durable virtual actors."))
	err := ctx.Run()
	var code exit
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "troupe:", err)
		os.Exit(2)
	}
}
