// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/troupe-run/troupe/host/mcp"
	"github.com/troupe-run/troupe/internal/service"
)

// ToolsAcceptCmd accepts the changed list of tools of an MCP server.
type ToolsAcceptCmd struct {
	Server string `arg:"" help:"Name of the MCP server, as in its table [mcp.NAME]."`
	Data   string `env:"TROUPE_DATA" default:"data" type:"path" help:"Data folder of the server (${default})."`
	DryRun bool   `help:"Print the changes, and accept nothing."`
	Hash   string `placeholder:"HASH" help:"Accept only the list with this hash, as --dry-run and the log of the server print it."`
}

// Help returns the text shown below the flags.
func (ToolsAcceptCmd) Help() string {
	return `An MCP server may change the names, descriptions and schemas of its tools. Descriptions are instructions to
models, so a changed list is not used until it is accepted; until then the accepted one remains in use. Prints
the changes and accepts them. A running server uses them within seconds, a stopped one at its next start.

Examples:
  troupe tools accept files --data data --dry-run
  troupe tools accept files --data data`
}

// Validate returns an error for a name that no server has.
func (c *ToolsAcceptCmd) Validate() error {
	if server, _, ok := strings.Cut(c.Server, "."); ok && mcp.CheckName(server) == nil {
		return fmt.Errorf("%.80q: want the name of the MCP server, not of its tool: %s", c.Server, server)
	}
	return mcp.CheckName(c.Server)
}

// Run executes the command.
func (c *ToolsAcceptCmd) Run(s streams) error {
	offer, err := mcp.ReadOffer(service.MCPFolder(c.Data), c.Server)
	if errors.Is(err, mcp.ErrNothingOffered) {
		known, listErr := mcp.PinnedServers(service.MCPFolder(c.Data))
		switch {
		case listErr != nil:
			return listErr
		case len(known) == 0:
			return fmt.Errorf("MCP server %s is unknown: none has listed its tools in %s yet; want the data folder of the server, as --data", c.Server, c.Data)
		case !slices.Contains(known, c.Server):
			return fmt.Errorf("MCP server %s is unknown: it has not listed its tools in %s; want one of %s", c.Server, c.Data, strings.Join(known, ", "))
		}
		return fmt.Errorf("MCP server %s: %w in %s; a running server looks for changes when it connects, and when the MCP server announces some", c.Server, err, c.Data)
	}
	if err != nil {
		return err
	}
	hash := offer.Hash().String()
	for _, change := range mcp.Diff(offer.Accepted, offer.Offered) {
		if err := printChange(s, c.Server, change); err != nil {
			return err
		}
	}
	switch {
	case c.DryRun:
		_, err = fmt.Fprintf(s.err, "nothing is accepted; to accept exactly this: troupe tools accept %s --data %s --hash %s\n", c.Server, shellQuote(c.Data), hash)
		return err
	case c.Hash != "" && c.Hash != hash:
		return fmt.Errorf("MCP server %s: its list has the hash %s, and not %.80s: it has changed again; look at it with --dry-run", c.Server, hash, c.Hash)
	}
	if err := offer.Accept(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.err, "the tools of %s are accepted (%s)\n", c.Server, hash)
	return err
}

// printChange prints a change of a tool. Texts of the server are quoted, because they may contain
// control characters.
func printChange(s streams, server string, c mcp.Change) error {
	name := server + "." + c.Name()
	if quoted := strconv.QuoteToASCII(name); quoted != `"`+name+`"` {
		name = quoted
	}
	if _, err := fmt.Fprintf(s.out, "%s %s\n", c.Kind, name); err != nil {
		return err
	}
	for _, part := range []struct{ name, before, after string }{
		{"description", c.Old.Description, c.New.Description},
		{"input_schema", string(c.Old.InputSchema), string(c.New.InputSchema)},
		{"hints", hintsOf(c.Old), hintsOf(c.New)},
	} {
		if part.before == part.after {
			continue
		}
		for _, line := range []struct{ sign, text string }{{"-", part.before}, {"+", part.after}} {
			if line.text == "" {
				continue
			}
			if _, err := fmt.Fprintf(s.out, "  %s %s %q\n", line.sign, part.name, line.text); err != nil {
				return err
			}
		}
	}
	return nil
}

// hintsOf returns the hints of a tool that may allow a repetition of its calls.
func hintsOf(t mcp.Tool) string {
	var all []string
	if t.ReadOnly {
		all = append(all, "read_only")
	}
	if t.Idempotent {
		all = append(all, "idempotent")
	}
	return strings.Join(all, " ")
}
