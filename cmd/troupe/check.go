// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/tools"
	"github.com/troupe-run/troupe/upstream"
)

// CheckCmd checks the files of agents and tools for errors.
type CheckCmd struct {
	Dir    string `arg:"" type:"path" help:"Folder with files of agents and tools named *.toml, or of a project: its troupe.toml then names that folder."`
	Config string `env:"TROUPE_CONFIG" type:"path" placeholder:"FILE" help:"Server configuration with the models that agents use, and the policy of tools."`
	Strict bool   `help:"Exit with code 1 for warnings too."`
	JSON   bool   `help:"Print JSON."`
}

// Help returns the text shown below the flags.
func (CheckCmd) Help() string {
	return `Reads every file and prints all errors as file:line:column: field: text. Warnings report a tool that
neither a file nor this program has, a call to an undeclared agent, a call cycle, and an MCP server whose command is
not found; with --config also a missing model, one without a price in a budget of money, a budget of an agent beyond that of the server,
and an address of a model, agent, tool or MCP server that the server may not reach. For each agent and
each of its tools that a file declares, shows the decision of the policy in --config and the rule that leads to it.

With --config the values of flags, models and secrets are checked as serve does at its start, with variables of this
environment; in CI set the variable of a key to any text. Only a start can check the data folder with the agents stored in it,
the files of TLS and the address to listen on. Exits with code 1 if there are errors, and with 0 if there are only warnings,
or with 1 with --strict.

Examples:
  troupe check .
  troupe check agents/
  troupe check agents/ --config troupe.toml
  troupe check agents/ --config troupe.toml --strict
  troupe check agents/ --json | jq .problems`
}

// Run executes the command.
func (c *CheckCmd) Run(s streams) error {
	project := c.inProject()
	config, configErr := readConfig(c.Config)
	if folder, ok := config.flags["agents"].(string); ok && project {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(c.Dir, folder)
		}
		c.Dir = folder
	}
	files, err := service.ReadAgentFiles(c.Dir)
	if err != nil {
		return errors.Join(configErr, err)
	}
	files.CheckCommands()
	var native []string
	if c.Config != "" {
		serve, problems := startProblems(c.Config, c.Dir, &config)
		if configErr != nil { // an error there hides none elsewhere
			problems = append(strings.Split(configErr.Error(), "\n"), problems...)
		}
		for _, line := range problems {
			files.Problems = append(files.Problems, configProblem(c.Config, line))
		}
		if configErr == nil {
			egress := serve.egress(&config)
			for _, err := range egress.UnreachableModels() {
				p := configProblem(c.Config, err.Error())
				p.Warning = true
				files.Problems = append(files.Problems, p)
			}
			if rules, err := upstream.NewEgress(egress.Allow); err == nil {
				files.CheckAddresses(rules.CheckURL)
			}
			files.CheckSecrets(&egress)
			files.CheckMemory(config.Memory)
			files.CheckBuiltin(config.Builtin)
			files.CheckBudgets(config.Budget.Tree, config.Budget.Day, config.Budget.Ask, config.Models)
			files.CheckModels(append(slices.Sorted(maps.Keys(config.Models)), upstream.ScriptName))
		}
		if serve.Ready {
			for _, def := range agents.Builtin() {
				native = append(native, def.Name)
			}
		}
	}
	files.CheckNames(native)
	if config.Chat != nil {
		names := slices.Clone(config.Chat.Agents)
		if name := config.Chat.Default; !slices.Contains(names, name) {
			names = append(names, name)
		}
		for _, name := range names {
			if name != "" && !slices.Contains(native, name) && !slices.ContainsFunc(files.Agents, func(a service.AgentFile) bool { return a.Spec.Name == name }) {
				files.Problems = append(files.Problems, service.FileProblem{File: c.Config, Warning: true, Text: fmt.Sprintf("chat: no file has an agent %s", name)})
			}
		}
	}
	for _, rule := range config.Policy.Narrowed() {
		files.Problems = append(files.Problems, service.FileProblem{File: c.Config, Warning: true,
			Text: fmt.Sprintf("policy: rule %d: allows calls of agents of the operator only, because any user may give an agent such a name; say owner = %q or owner = \"USER\"", rule, agents.Operator)})
	}
	decisions := []toolDecision{}
	if configErr == nil { // otherwise the policy is unknown
		decisions = decisionsOf(files, config.Policy, config.Builtin)
	}
	if c.JSON {
		err = c.printJSON(s, files, decisions)
	} else {
		err = c.print(s, files, decisions)
	}
	if err == nil && (files.HasErrors() || c.Strict && len(files.Problems) > 0) {
		return exitCode(exitFailed)
	}
	return err
}

// inProject makes the configuration of a project, as init creates it, that of the check; false if the folder has none,
// or if another file is given. The folder to check is then the one that it names.
func (c *CheckCmd) inProject() bool {
	path := filepath.Join(c.Dir, projectConfig)
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	if c.Config == "" {
		c.Config = path
	}
	given, err := os.Stat(c.Config)
	return err == nil && os.SameFile(info, given)
}

// configProblem returns a problem of the configuration, whose line begins with the path and
// may continue with the number of a line.
func configProblem(path, line string) service.FileProblem {
	p := service.FileProblem{File: path, Text: strings.TrimPrefix(line, path+": ")}
	number, rest, ok := strings.Cut(strings.TrimPrefix(line, path+":"), ": ")
	if n, err := strconv.Atoi(number); ok && err == nil {
		p.Line, p.Column, p.Text = n, 1, rest
	}
	return p
}

// toolDecision is a decision that the policy can make about calls of a tool by an agent.
type toolDecision struct {
	Agent    string `json:"agent_id"`
	Tool     string `json:"tool_name"`
	Decision string `json:"decision"`
	Rule     string `json:"rule"` // includes its condition
}

// decisionsOf returns the decisions about declared tools and built-in ones, by agent and tool in the order of
// the files, and then in the order of the rules.
func decisionsOf(files *service.AgentFiles, policy *tools.Policy, builtin []string) []toolDecision {
	all := []toolDecision{}
	registry := files.Registry(policy)
	for _, name := range builtin {
		if t, err := tools.Builtin(name, nil); err == nil {
			_ = registry.Register(t) // else a file declares a tool of this name
		}
	}
	for _, a := range files.Agents {
		for _, name := range a.Spec.Tools {
			tool, ok := registry.Tool(name)
			if !ok {
				continue
			}
			if tool.Declared == nil && policy.Decide(tools.Caller{Agent: a.Spec.ID, Owner: agents.Operator}, &tool, nil).Decision == runs.Allow {
				continue // as without a policy
			}
			for _, v := range policy.Possible(tools.Caller{Agent: a.Spec.ID, Owner: agents.Operator}, &tool) {
				all = append(all, toolDecision{a.Spec.ID, name, v.Decision.String(), v.Rule})
			}
		}
	}
	return all
}

func (c *CheckCmd) print(s streams, files *service.AgentFiles, decisions []toolDecision) error {
	for _, p := range files.Problems {
		if _, err := fmt.Fprintln(s.out, p); err != nil {
			return err
		}
	}
	for _, a := range files.Agents {
		fmt.Fprintf(s.err, "%s: %s\n", a.Path, a.Spec.String())
	}
	for _, t := range files.Tools {
		fmt.Fprintf(s.err, "%s: %s\n", t.Path, t.Declared.String())
	}
	for _, m := range files.Servers {
		fmt.Fprintf(s.err, "%s: %s %s\n", m.Path, m.Name, m.Config.String())
	}
	if c.Config == "" && len(decisions) > 0 {
		fmt.Fprintln(s.err, "no rules of a policy were read: --config names the file with them")
	}
	for _, d := range decisions {
		fmt.Fprintf(s.err, "%s uses %s: %s by %s\n", d.Agent, d.Tool, d.Decision, d.Rule)
	}
	wrong := 0
	for _, p := range files.Problems {
		if !p.Warning {
			wrong++
		}
	}
	_, err := fmt.Fprintf(s.err, "agents=%d tools=%d mistakes=%d warnings=%d\n", len(files.Agents), len(files.Tools), wrong, len(files.Problems)-wrong)
	return err
}

func (c *CheckCmd) printJSON(s streams, files *service.AgentFiles, decisions []toolDecision) error {
	type agent struct {
		File       string `json:"file"`
		ID         string `json:"agent_id"`
		Kind       string `json:"kind"`
		Definition string `json:"definition"`
	}
	type tool struct {
		File       string `json:"file"`
		Name       string `json:"tool_name"`
		Kind       string `json:"kind"`
		Definition string `json:"definition"`
	}
	out := struct {
		Agents    []agent               `json:"agents"`
		Tools     []tool                `json:"tools"`
		Decisions []toolDecision        `json:"decisions"`
		Problems  []service.FileProblem `json:"problems"`
	}{[]agent{}, []tool{}, decisions, files.Problems}
	for _, a := range files.Agents {
		out.Agents = append(out.Agents, agent{a.Path, a.Spec.ID, a.Spec.Kind, a.Spec.Hash().String()})
	}
	for _, t := range files.Tools {
		out.Tools = append(out.Tools, tool{t.Path, t.Declared.Name, t.Declared.Kind, t.Declared.Hash().String()})
	}
	if out.Problems == nil {
		out.Problems = []service.FileProblem{}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return printJSON(s.out, b)
}
