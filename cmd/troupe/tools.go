// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/tools"
)

// ToolsCmd groups the commands about declared tools.
type ToolsCmd struct {
	List   ToolsListCmd   `cmd:"" help:"List the declared tools of a server."`
	Show   ToolsShowCmd   `cmd:"" help:"Show the definition of a tool."`
	Check  ToolsCheckCmd  `cmd:"" help:"Check files of tools for errors."`
	Call   ToolsCallCmd   `cmd:"" help:"Perform the tool of a file once, without a server."`
	Add    ToolsAddCmd    `cmd:"" help:"Create or change a tool by its file."`
	Delete ToolsDeleteCmd `cmd:"" help:"Delete a tool."`
	Accept ToolsAcceptCmd `cmd:"" help:"Accept the changed tools of an MCP server."`
}

// ToolsListCmd lists declared tools.
type ToolsListCmd struct {
	ServerFlags
	JSON bool `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (ToolsListCmd) Help() string {
	return `Lists the tools that users declared and those of MCP servers, not those of the program. The policy is that of the tool; rules of the
server's configuration come before it. Long descriptions are cut.

Examples:
  troupe tools list
  troupe tools list --json | jq -r '.tools[].tool_name'`
}

// toolView holds the fields of a tool in GET /v1/tools that the commands print.
type toolView struct {
	Name        string         `json:"tool_name"`
	Kind        string         `json:"kind"`
	Via         string         `json:"via"`
	Description string         `json:"description"`
	Policy      string         `json:"policy"`
	Timeout     int64          `json:"timeout_ms"`
	Owner       string         `json:"owner"`
	Definition  string         `json:"definition"`
	URL         string         `json:"url"`
	Method      string         `json:"method"`
	SHA256      string         `json:"sha256"`
	Grant       []string       `json:"grant"`
	Idempotent  bool           `json:"idempotent"`
	Batch       bool           `json:"batch"`
	Cache       int64          `json:"cache_ms"`
	Summary     string         `json:"args_summary"`
	Schema      jsontext.Value `json:"input_schema"`
	Metadata    jsontext.Value `json:"metadata"`
	Headers     map[string]struct {
		Env string `json:"env"`
	} `json:"headers"`
}

// policyText returns the policy of the tool.
func (t *toolView) policyText() string { return cmp.Or(t.Policy, "default") }

// descriptionRunesMax is the maximum length of a description in a list.
const descriptionRunesMax = 60

// cutLine returns the beginning of a text on one line.
func cutLine(text string, limit int) string {
	line := strings.Join(strings.Fields(text), " ")
	if utf8.RuneCountInString(line) <= limit {
		return line
	}
	return string([]rune(line)[:limit-1]) + "…"
}

// Run executes the command.
func (c *ToolsListCmd) Run(s streams) error {
	all, err := allOf[jsontext.Value](c.client(), "/v1/tools")
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(s.out, map[string][]jsontext.Value{"tools": append([]jsontext.Value{}, all...)})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintf(s.err, "no tools are declared; a file with a table [tool] declares one:\n  %s\n", c.hint("tools add", []string{"FILE"}))
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOOL\tKIND\tVIA\tPOLICY\tTIMEOUT\tDESCRIPTION")
	for _, raw := range all {
		var t toolView
		if err := json.Unmarshal(raw, &t); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.Name, t.Kind, cmp.Or(t.Via, "-"), t.policyText(), formatMillis(t.Timeout), cutLine(t.Description, descriptionRunesMax))
	}
	return w.Flush()
}

// ToolsShowCmd shows one declared tool.
type ToolsShowCmd struct {
	ServerFlags
	Name string `arg:"" help:"Name of the tool."`
	JSON bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (ToolsShowCmd) Help() string {
	return `Shows the definition of the tool and its owner. Of a header with a secret it shows the name of the
variable. To find the agents that use a tool, see the field tools of troupe agents show.

Examples:
  troupe tools show weather.get
  troupe tools show weather.get --json | jq .input_schema`
}

// toolPath returns the path of a tool.
func toolPath(name string) string { return "/v1/tools/" + url.PathEscape(name) }

// Run executes the command.
func (c *ToolsShowCmd) Run(s streams) error {
	body, err := c.client().get(toolPath(c.Name))
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	var t toolView
	if err := json.Unmarshal(body, &t); err != nil {
		return err
	}
	return t.print(s.out)
}

func (t *toolView) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	put := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, strings.Join(strings.Fields(value), " "))
		}
	}
	put("tool", t.Name)
	put("kind", strings.TrimSpace(t.Kind+" "+t.Via))
	put("description", t.Description)
	put("request", strings.TrimSpace(t.Method+" "+t.URL))
	put("module", t.SHA256)
	put("granted", strings.Join(t.Grant, ", "))
	for _, name := range slices.Sorted(maps.Keys(t.Headers)) {
		source := "text"
		if env := t.Headers[name].Env; env != "" {
			source = "variable " + env
		}
		put("header", name+" ("+source+")")
	}
	put("timeout", formatMillis(t.Timeout))
	if t.Idempotent {
		put("idempotent", "yes")
	}
	if t.Batch {
		put("batch", "yes")
	}
	if t.Cache > 0 {
		put("cache", formatMillis(t.Cache))
	}
	put("policy", t.policyText())
	put("summary", t.Summary)
	put("owner", t.Owner)
	put("definition", t.Definition)
	if err := w.Flush(); err != nil {
		return err
	}
	for _, part := range []struct {
		name  string
		value jsontext.Value
	}{{"input_schema", t.Schema}, {"metadata", t.Metadata}} {
		if len(part.value) == 0 {
			continue
		}
		if err := part.value.Indent(); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s  %s\n", part.name, part.value); err != nil {
			return err
		}
	}
	return nil
}

// ToolsCheckCmd checks files of tools.
type ToolsCheckCmd struct {
	Files []string `arg:"" name:"file" type:"path" help:"Files of tools."`
}

// Help returns the text shown below the flags.
func (ToolsCheckCmd) Help() string {
	return `Reads every file and prints all errors as file:line:column: field: text. Exits with code 1 if there are errors.
To check a folder of agents and tools with the policy, use troupe check.

Examples:
  troupe tools check weather.toml`
}

// Run executes the command.
func (c *ToolsCheckCmd) Run(s streams) error {
	files := service.ReadToolFiles(c.Files)
	for _, t := range files.Tools {
		fmt.Fprintf(s.err, "%s: %s\n", t.Path, t.Declared.String())
	}
	return printProblems(s, files)
}

// printProblems prints the errors in files, and returns an error if there are some.
func printProblems(s streams, files *service.AgentFiles) error {
	for _, p := range files.Problems {
		if _, err := fmt.Fprintln(s.out, p); err != nil {
			return err
		}
	}
	if files.HasErrors() {
		return exitCode(exitFailed)
	}
	return nil
}

// readToolFile reads the file of a tool. It prints the errors in it.
func readToolFile(s streams, path string) (*tools.Declared, error) {
	files := service.ReadToolFiles([]string{path})
	if err := printProblems(streams{s.err, s.err}, files); err != nil {
		return nil, err
	}
	return &files.Tools[0].Declared, nil
}

// ToolsAddCmd creates or changes a tool.
type ToolsAddCmd struct {
	ServerFlags
	File string `arg:"" type:"path" help:"File of the tool."`
	JSON bool   `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (ToolsAddCmd) Help() string {
	return `Creates the tool that a file declares, or changes the one of its name; needs the scope operator. The next call of
every agent that lists the tool uses it. A secret in its headers is read by the server, which must have the variable.
A tool of another owner, or of the folder of serve --agents, is changed with a key of scope admin only.

Examples:
  troupe tools add weather.toml`
}

// Run executes the command.
func (c *ToolsAddCmd) Run(s streams) error {
	d, err := readToolFile(s, c.File)
	if err != nil {
		return err
	}
	_, body, err := c.client().do(context.Background(), http.MethodPut, toolPath(d.Name), d.Encode())
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	out, err := readPutAnswer(s, body)
	if err != nil {
		return err
	}
	next := ""
	if out.Created {
		next = "; an agent uses it once its tools list it"
	}
	_, err = fmt.Fprintf(s.err, "tool %s %s%s\n", d.Name, out.effect(), next)
	return err
}

// ToolsDeleteCmd deletes a tool.
type ToolsDeleteCmd struct {
	OwnerFlags
	Name string `arg:"" help:"Name of the tool."`
}

// Help returns the text shown below the flags.
func (ToolsDeleteCmd) Help() string {
	return `Deletes a tool; needs the scope operator, or admin for a tool of another owner or of the folder of serve --agents.
The owner of the data folder deletes any tool with --data, also while the server runs. Agents that list the tool run
without it. Calls that have started finish; those that wait for an approval are not performed.

Examples:
  troupe tools delete weather.get
  troupe tools delete weather.get --data data`
}

// Run executes the command.
func (c *ToolsDeleteCmd) Run(s streams) error {
	if err := c.deleteFromRegistry(s, toolPath(c.Name), agents.OpDeleteTool, map[string]string{"tool_name": c.Name}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.err, "tool %s is deleted\n", c.Name)
	return err
}

// Validate returns an error for a name that no tool has.
func (c *ToolsShowCmd) Validate() error { return checkToolName(c.Name) }

// Validate returns an error for a name that no tool has.
func (c *ToolsDeleteCmd) Validate() error { return checkToolName(c.Name) }

func checkToolName(name string) error {
	if strings.HasSuffix(name, ".toml") {
		return errors.New("want the name of a tool, not of a file")
	}
	if actor.CheckName(name) != nil {
		return fmt.Errorf("%.80q: want the name of a tool, of letters, digits, '.', '_' and '-'", name)
	}
	return nil
}
