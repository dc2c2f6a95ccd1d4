// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// CapabilitiesCmd groups the commands that show what agents do for others.
type CapabilitiesCmd struct {
	List CapabilitiesListCmd `cmd:"" help:"List the capabilities of a server, with the agents that own them."`
	Show CapabilitiesShowCmd `cmd:"" help:"Show a capability with its schemas."`
}

// CapabilitiesListCmd lists capabilities.
type CapabilitiesListCmd struct {
	ServerFlags
	JSON bool `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (CapabilitiesListCmd) Help() string {
	return `An agent declares its capabilities in its file, with [[provides]].

Examples:
  troupe capabilities list
  troupe capabilities list --json`
}

// Run executes the command.
func (c *CapabilitiesListCmd) Run(s streams) error {
	all, err := allOf[jsontext.Value](c.client(), "/v1/capabilities")
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(s.out, map[string][]jsontext.Value{"capabilities": all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(s.out, "no capabilities: an agent declares them in its file, with [[provides]]")
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CAPABILITY\tAGENTS\tVERSION\tTIMEOUT\tDESCRIPTION")
	for _, raw := range all {
		var one struct {
			Code        string   `json:"capability_code"`
			Owners      []string `json:"owner_agents"`
			Version     string   `json:"version"`
			Timeout     int64    `json:"timeout_ms"`
			Description string   `json:"description"`
		}
		if err := json.Unmarshal(raw, &one); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d ms\t%s\n", one.Code, strings.Join(one.Owners, ", "), cmp.Or(one.Version, "-"), one.Timeout, one.Description)
	}
	return w.Flush()
}

// CapabilitiesShowCmd shows a capability.
type CapabilitiesShowCmd struct {
	ServerFlags
	Code string `arg:"" help:"Code of the capability, such as DOC_GENERATE."`
}

// Help returns the text shown below the flags.
func (CapabilitiesShowCmd) Help() string {
	return "Examples:\n  troupe capabilities show DOC_GENERATE"
}

// Run executes the command.
func (c *CapabilitiesShowCmd) Run(s streams) error {
	if strings.Trim(c.Code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
		return fmt.Errorf("%.80q is no code of a capability: want capitals, digits and '_' such as DOC_GENERATE", c.Code)
	}
	body, err := c.client().get("/v1/capabilities/" + c.Code)
	return printJSONOrError(s.out, body, err)
}
