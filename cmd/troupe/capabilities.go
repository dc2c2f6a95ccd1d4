// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/agents"
)

// CapabilitiesCmd groups the commands about what agents do for others.
type CapabilitiesCmd struct {
	List   CapabilitiesListCmd   `cmd:"" help:"List the capabilities of a server, with the agents that own them."`
	Show   CapabilitiesShowCmd   `cmd:"" help:"Show a capability with its schemas."`
	Add    CapabilitiesAddCmd    `cmd:"" help:"Create or change a capability of agents by its file."`
	Delete CapabilitiesDeleteCmd `cmd:"" help:"Take a capability from all agents that own it."`
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
	path, err := capabilityPath(c.Code)
	if err != nil {
		return err
	}
	body, err := c.client().get(path)
	return printJSONOrError(s.out, body, err)
}

// capabilityPath returns the path of a capability.
func capabilityPath(code string) (string, error) {
	if code == "" || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
		return "", fmt.Errorf("%.80q is no code of a capability: want capitals, digits and '_' such as DOC_GENERATE", code)
	}
	return "/v1/capabilities/" + code, nil
}

// CapabilitiesAddCmd creates or changes a capability.
type CapabilitiesAddCmd struct {
	OwnerFlags
	File string `arg:"" type:"path" help:"File of the capability, or - for standard input: JSON as 'capabilities show' prints it."`
	JSON bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (CapabilitiesAddCmd) Help() string {
	return `The agents in owner_agents become its owners, and no others; without owner_agents these stay. All of them are changed at once.
An agent of a file has what its file says again at the next start. Needs the scope agents, and admin for agents of others.
The owner of the data folder changes any capability with --data, also while the server runs.

Examples:
  troupe capabilities show DOC_GENERATE > doc.json
  troupe capabilities add doc.json
  troupe capabilities add doc.json --data data`
}

// Run executes the command.
func (c *CapabilitiesAddCmd) Run(s streams) error {
	text, err := readFile("capability", c.File)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return fmt.Errorf(`%s: want a JSON object as PUT /v1/capabilities in docs/api.md, and as 'troupe capabilities show CODE' prints it; [[provides]] belongs in the file of an agent`, c.File)
	}
	var row struct {
		Code string `json:"capability_code"`
	}
	file := []byte(text)
	if err := json.Unmarshal(file, &row); err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	path, err := capabilityPath(row.Code)
	if err != nil {
		return fmt.Errorf("%s: capability_code: %w", c.File, err)
	}
	body, err := c.changeRegistry(s, http.MethodPut, path, file, agents.OpPutCapability, file)
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	out, err := readPutAnswer(s, body)
	if err == nil {
		_, err = fmt.Fprintf(s.err, "capability %s %s\n", row.Code, out.effect())
	}
	return err
}

// CapabilitiesDeleteCmd deletes a capability.
type CapabilitiesDeleteCmd struct {
	OwnerFlags
	Code string `arg:"" help:"Code of the capability, such as DOC_GENERATE."`
}

// Help returns the text shown below the flags.
func (CapabilitiesDeleteCmd) Help() string {
	return `Its owners no longer declare it; requests for it are refused. Requests that were made are answered.
The owner of the data folder deletes any capability with --data, also while the server runs.

Examples:
  troupe capabilities delete DOC_GENERATE
  troupe capabilities delete DOC_GENERATE --data data`
}

// Run executes the command.
func (c *CapabilitiesDeleteCmd) Run(s streams) error {
	path, err := capabilityPath(c.Code)
	if err == nil {
		err = c.deleteFromRegistry(s, path, agents.OpDeleteCapability, map[string]string{"capability_code": c.Code})
	}
	if err == nil {
		_, err = fmt.Fprintf(s.err, "capability %s is deleted\n", c.Code)
	}
	return err
}
