// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/outbound"
	"github.com/troupe-run/troupe/host/wasm"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/tools"
)

// AgentFilesMax is the maximum number of agent files in a folder.
const AgentFilesMax = agents.AgentsMax

// AgentFiles holds the agents and the declared tools of a folder, one per file named
// *.toml. The file of a tool has a table [tool], one of MCP servers has tables [mcp.NAME].
type AgentFiles struct {
	Agents   []AgentFile
	Tools    []ToolFile
	Servers  []ServerFile
	Problems []FileProblem // ordered by file and line

	provided []string // see Program
}

// AgentFile is an agent and the file that declares it.
type AgentFile struct {
	Path string
	Spec agents.Spec
}

// ToolFile is a tool and the file that declares it.
type ToolFile struct {
	Path     string
	Declared tools.Declared
}

// FileProblem is an error in an agent file, or a warning about it.
type FileProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitzero"`
	Column  int    `json:"column,omitzero"`
	Field   string `json:"field,omitzero"`
	Text    string `json:"text"`
	Warning bool   `json:"warning,omitzero"`
}

// String formats the problem as compilers do: file:line:column: field: text.
func (p FileProblem) String() string {
	s := p.File
	if p.Line > 0 {
		s += fmt.Sprintf(":%d:%d", p.Line, p.Column)
	}
	if p.Warning {
		s += ": warning"
	}
	if p.Field != "" {
		s += ": " + p.Field
	}
	return s + ": " + p.Text
}

// HasErrors reports whether a problem is more than a warning.
func (f *AgentFiles) HasErrors() bool {
	return slices.ContainsFunc(f.Problems, func(p FileProblem) bool { return !p.Warning })
}

// ReadAgentFiles reads all agents of a folder and checks the references between
// them. It returns an error only for the folder itself. Errors in the files are
// collected as problems.
func ReadAgentFiles(dir string) (*AgentFiles, error) { return ReadAgentFilesOf(dir, Program{}) }

// Program lists the agents and tools that a program adds to those in files.
type Program struct {
	Agents []string // names
	Tools  []tools.Tool

	Provided []string // codes of the capabilities of these agents
}

// ReadAgentFilesOf is ReadAgentFiles for a program with agents and tools of its own.
func ReadAgentFilesOf(dir string, program Program) (*AgentFiles, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, fmt.Errorf("agents: %s is not a folder; its folder is %s", dir, filepath.Dir(dir))
	}
	if err != nil {
		return nil, fmt.Errorf("agents: %w", err)
	}
	f := &AgentFiles{provided: program.Provided}
	count := 0
	for _, entry := range entries {
		if entry.IsDir() || filepath.Ext(entry.Name()) != ".toml" || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if count++; count > AgentFilesMax {
			return nil, fmt.Errorf("agents: %s contains more than %d files named *.toml", dir, AgentFilesMax)
		}
		f.read(filepath.Join(dir, entry.Name()))
	}
	if count == 0 {
		return nil, fmt.Errorf("agents: %s contains no file named *.toml; a minimal agent file has the line name = \"helper\"", dir)
	}
	f.orderOwners()
	f.checkReferences(program)
	return f, nil
}

// orderOwners orders the agents so that an owner of each capability in a workflow comes first, if a file has one:
// the registry knows the capability once its owner is stored. Orchestrators that need each other have no order,
// which is an error.
func (f *AgentFiles) orderOwners() {
	provided := map[string]bool{} // by the files; true: by an agent that has its place
	for _, a := range f.Agents {
		for _, c := range a.Spec.Provides {
			provided[c.Code] = false
		}
	}
	rest := f.Agents
	f.Agents = nil
	waits := func(a AgentFile) bool {
		return slices.ContainsFunc(a.Spec.Requests(), func(code string) bool {
			placed, known := provided[code]
			return known && !placed
		})
	}
	for placed := -1; placed != len(f.Agents); {
		placed = len(f.Agents)
		rest = slices.DeleteFunc(rest, func(a AgentFile) bool {
			if waits(a) {
				return false
			}
			for _, c := range a.Spec.Provides {
				provided[c.Code] = true
			}
			f.Agents = append(f.Agents, a)
			return true
		})
	}
	for _, a := range rest {
		f.Problems = append(f.Problems, FileProblem{File: a.Path, Field: "workflow", Text: "waits for a capability of an agent whose workflow waits for one of this agent; let one of them do without"})
	}
	f.Agents = append(f.Agents, rest...)
}

// ReadToolFiles reads files that each declare a tool. Errors in them are collected as
// problems.
func ReadToolFiles(paths []string) *AgentFiles {
	f := &AgentFiles{}
	for _, path := range paths {
		if text, ok := f.readText(path); ok {
			f.readTool(path, text)
		}
	}
	return f
}

// readText returns the text of a file, or false if it cannot be read.
func (f *AgentFiles) readText(path string) (string, bool) {
	text, err := readRegular(path, agents.SourceBytesMax)
	if err != nil {
		f.Problems = append(f.Problems, FileProblem{File: path, Text: err.Error()})
	}
	return string(text), err == nil
}

func (f *AgentFiles) read(path string) {
	text, ok := f.readText(path)
	if !ok {
		return
	}
	if agents.IsToolTOML(text) {
		f.readTool(path, text)
		return
	}
	if agents.IsServerTOML(text) {
		f.readServers(path, text)
		return
	}
	spec, err := agents.ReadTOML(text)
	if err != nil {
		f.addError(path, err)
	} else {
		if i := slices.IndexFunc(f.Agents, func(a AgentFile) bool { return a.Spec.ID == spec.ID }); i >= 0 {
			f.Problems = append(f.Problems, FileProblem{File: path, Field: "agent_id", Text: fmt.Sprintf("%s is already defined in %s; rename one of them", spec.ID, f.Agents[i].Path)})
			return
		}
		f.Agents = append(f.Agents, AgentFile{path, spec})
	}
}

func (f *AgentFiles) readTool(path, text string) {
	d, err := agents.ReadToolTOML(text)
	i := slices.IndexFunc(f.Tools, func(t ToolFile) bool { return t.Declared.Name == d.Name })
	switch {
	case err != nil:
		f.addError(path, err)
	case i >= 0:
		f.Problems = append(f.Problems, FileProblem{File: path, Field: "tool_name", Text: fmt.Sprintf("%s is already declared in %s; rename one of them", d.Name, f.Tools[i].Path)})
	case len(f.Tools) == agents.DeclaredToolsMax:
		f.Problems = append(f.Problems, FileProblem{File: path, Text: fmt.Sprintf("a folder declares at most %d tools", agents.DeclaredToolsMax)})
	default:
		if _, err := ReadModule(path, &d); err != nil {
			f.Problems = append(f.Problems, FileProblem{File: path, Field: "file", Text: err.Error()})
			return
		}
		f.Tools = append(f.Tools, ToolFile{path, d})
	}
}

// ReadModule returns the module of a tool, which the file at path declares; nil if it has none.
func ReadModule(path string, d *tools.Declared) ([]byte, error) {
	if d.Via != tools.ViaWasm {
		return nil, nil
	}
	if d.File == "" {
		return nil, errors.New("is missing; want the path of the module, from the folder of this file")
	}
	return readModule(path, d.File, d.SHA256)
}

// readModule returns the module with a sum in a file, whose path is from the folder of the one that names it.
func readModule(path, file, sum string) ([]byte, error) {
	at := file
	if !filepath.IsAbs(at) {
		at = filepath.Join(filepath.Dir(path), at)
	}
	module, err := readRegular(at, wasm.ModuleBytesMax)
	if err != nil {
		return nil, err
	}
	if err := wasm.CheckModule(module, sum); err != nil {
		return nil, fmt.Errorf("%s %w", file, err)
	}
	return module, nil
}

// addError adds the problems of an error in a file.
func (f *AgentFiles) addError(path string, err error) {
	var problems agents.Problems
	if !errors.As(err, &problems) {
		problems = agents.Problems{{Text: err.Error()}}
	}
	for _, p := range problems {
		f.Problems = append(f.Problems, FileProblem{File: path, Line: p.Line, Column: p.Column, Field: p.Field, Text: p.Text})
	}
}

// Registry returns the tools of this program and of the files, with the policy.
func (f *AgentFiles) Registry(policy *tools.Policy) *tools.Registry {
	var declared []tools.Declared
	for _, t := range f.Tools {
		declared = append(declared, t.Declared)
	}
	// The names and schemas were checked when the files were read.
	return invariant.Must(tools.NewRegistry().With(declared, policy))
}

// toolPath returns the file that declares a tool; "" if there is none.
func (f *AgentFiles) toolPath(name string) string {
	for _, t := range f.Tools {
		if t.Declared.Name == name {
			return t.Path
		}
	}
	return ""
}

// checkReferences adds warnings for missing tools, undeclared callees and call
// cycles. One file alone does not show these problems.
func (f *AgentFiles) checkReferences(program Program) {
	registry := f.Registry(nil)
	for _, t := range program.Tools {
		if err := registry.Register(t); err != nil { // the program has checked its tools
			f.Problems = append(f.Problems, FileProblem{File: f.toolPath(t.Name), Field: "tool_name", Text: "this program has a tool named " + t.Name + "; choose another name"})
		}
	}
	var specs []agents.Spec
	for _, a := range f.Agents {
		specs = append(specs, a.Spec)
	}
	for _, a := range f.Agents {
		for _, name := range slices.DeleteFunc(a.Spec.MissingTools(registry), f.ofOthers) {
			f.warn(a.Path, "tools", "no file here declares %s, and this program has no such tool; the agent runs without it", name)
		}
		for _, target := range a.Spec.Agents {
			if !slices.Contains(program.Agents, target) && !slices.ContainsFunc(specs, func(s agents.Spec) bool { return s.ID == target }) {
				f.warn(a.Path, "agents", "no file here declares %s; calls to it are refused until it exists", target)
			}
		}
	}
	f.checkFallbacks(registry)
	f.checkContradictions()
	f.checkWorkflows()
	for _, cycle := range agents.CallCycles(specs) {
		first, _, _ := strings.Cut(cycle, " ->")
		i := slices.IndexFunc(f.Agents, func(a AgentFile) bool { return a.Spec.ID == first })
		f.warn(f.Agents[i].Path, "agents", "possible call cycle: %s; the call that closes it is refused", cycle)
	}
}

// checkFallbacks adds a problem for each tool whose fallback does not accept the same arguments, and for each pipeline
// that lacks an argument of one of its steps. It adds a warning for each fallback and step that names an absent tool.
func (f *AgentFiles) checkFallbacks(registry *tools.Registry) {
	for i := range f.Tools {
		d := &f.Tools[i].Declared
		for n, step := range d.Steps {
			if tool, ok := registry.Tool(step.Tool); ok {
				if err := d.CheckStep(n, &tool); err != nil {
					f.Problems = append(f.Problems, FileProblem{File: f.Tools[i].Path, Field: "steps", Text: err.Error()})
				}
			} else if !f.ofOthers(step.Tool) {
				f.warn(f.Tools[i].Path, "steps", "no file here declares %s, and this program has no such tool; calls fail until it exists", step.Tool)
			}
		}
		if d.Fallback == "" || f.ofOthers(d.Fallback) {
			continue
		}
		other, ok := registry.Tool(d.Fallback)
		if !ok {
			f.warn(f.Tools[i].Path, "fallback", "no file here declares %s, and this program has no such tool; until it exists the failure of this one stays", d.Fallback)
		} else if err := d.CheckFallback(&other); err != nil {
			f.Problems = append(f.Problems, FileProblem{File: f.Tools[i].Path, Field: "fallback", Text: err.Error()})
		}
	}
}

// checkContradictions adds a problem for each agent that takes the code of an earlier one, or declares a capability of
// it otherwise: the registry would refuse it.
func (f *AgentFiles) checkContradictions() {
	for i := range f.Agents {
		for k := range f.Agents[:i] {
			a, earlier := &f.Agents[i], &f.Agents[k].Spec
			if p := a.Spec.Contradiction(earlier); p.Text != "" && a.Spec.ID != earlier.ID {
				f.Problems = append(f.Problems, FileProblem{File: a.Path, Field: p.Field, Text: p.Text})
				break
			}
		}
	}
}

// checkWorkflows adds a problem for each step whose capability no file declares: an error if its name is near
// another one, and else a warning, because an agent that is not in a file may have it.
func (f *AgentFiles) checkWorkflows() {
	for _, a := range f.Agents {
		known := slices.Clone(f.provided)
		for _, other := range f.Agents {
			for _, c := range other.Spec.Provides {
				if other.Spec.ID != a.Spec.ID {
					known = append(known, c.Code)
				}
			}
		}
		misspelt, missing := a.Spec.UnknownCapabilities(known, known)
		for i, p := range append(misspelt, missing...) {
			f.Problems = append(f.Problems, FileProblem{File: a.Path, Field: p.Field, Text: p.Text, Warning: i >= len(misspelt)})
		}
	}
}

// CheckMemory adds a warning for each agent that remembers, for a server whose configuration switches that off.
func (f *AgentFiles) CheckMemory(enabled bool) {
	for _, a := range f.Agents {
		if len(a.Spec.Memory.Tools()) > 0 && !enabled {
			f.warn(a.Path, "memory", "the configuration does not switch memory on, so the agent runs without it; add enabled = true to its table [memory]")
		}
	}
}

// CheckBuiltin adds a warning for each built-in tool that an agent lists although the configuration of the server does
// not switch it on, and for each tool of a file that has the name of a built-in tool.
func (f *AgentFiles) CheckBuiltin(enabled []string) {
	for _, t := range f.Tools {
		if slices.Contains(enabled, t.Declared.Name) {
			f.warn(t.Path, "tool_name", "the configuration switches on a built-in tool named %s, which is used instead; choose another name", t.Declared.Name)
		}
	}
	for _, a := range f.Agents {
		for _, name := range a.Spec.Tools {
			if tools.IsBuiltin(name) && !slices.Contains(enabled, name) {
				f.warn(a.Path, "tools", "the configuration does not switch %s on, so the agent runs without it; add %q to tools of its table [builtin]", name, name)
			}
		}
	}
}

// CheckModels adds a warning for each agent whose model is not in the list known.
func (f *AgentFiles) CheckModels(known []string) {
	for _, a := range f.Agents {
		if a.Spec.HasModel() && !slices.Contains(known, a.Spec.Model) {
			f.warn(a.Path, "model", "the configuration has no model %s; want one of %s", a.Spec.Model, strings.Join(known, ", "))
		}
	}
}

// CheckAddresses adds a warning for each tool, external agent and MCP server whose address the
// function check refuses, as the egress of a server does.
func (f *AgentFiles) CheckAddresses(check func(url string) error) {
	for _, t := range f.Tools {
		if err := check(t.Declared.URL); err != nil {
			f.warn(t.Path, "url", "%v", err)
		}
	}
	for _, a := range f.Agents {
		if err := check(a.Spec.Endpoint); err != nil {
			f.warn(a.Path, "endpoint", "%v", err)
		}
	}
	for _, s := range f.Servers {
		if err := check(s.Config.URL); err != nil {
			f.warn(s.Path, "mcp."+s.Name+".url", "%v", err)
		}
	}
}

// CheckNames adds an error for each agent and tool that a server with an empty store refuses,
// because its name looks like another: that of a file before it, or of a native agent.
func (f *AgentFiles) CheckNames(native []string) {
	report := func(path, field, text, other string) {
		f.Problems = append(f.Problems, FileProblem{File: path, Field: field, Text: fmt.Sprintf("%s looks like %s; rename one of them", text, other)})
	}
	for i, a := range f.Agents {
		for _, name := range native {
			if actor.FoldName(name) == actor.FoldName(a.Spec.ID) {
				report(a.Path, "agent_id", a.Spec.ID, name+", an agent of this program")
			}
		}
		for _, other := range f.Agents[:i] {
			switch {
			case looksLike(a.Spec.ID, other.Spec):
				report(a.Path, "agent_id", a.Spec.ID, "the agent "+other.Spec.ID+" in "+other.Path)
			case a.Spec.Name != a.Spec.ID && looksLike(a.Spec.Name, other.Spec):
				report(a.Path, "name", a.Spec.Name, "the agent "+other.Spec.ID+" in "+other.Path)
			}
		}
	}
	for i, t := range f.Tools {
		for _, other := range f.Tools[:i] {
			if actor.FoldName(t.Declared.Name) == actor.FoldName(other.Declared.Name) {
				report(t.Path, "tool_name", t.Declared.Name, "the tool "+other.Declared.Name+" in "+other.Path)
			}
		}
	}
}

// looksLike reports whether a text is not the ID or the name of an agent, but looks like one of
// them. Agents of one owner may share a name.
func looksLike(text string, other agents.Spec) bool {
	if text == other.ID || text == other.Name {
		return false
	}
	form := actor.FoldName(text)
	return actor.FoldName(other.ID) == form || actor.FoldName(other.Name) == form
}

// CheckSecrets adds an error for each agent and tool with a secret that a server with this egress
// may not send to its address.
func (f *AgentFiles) CheckSecrets(egress *outbound.Config) {
	for _, t := range f.Tools {
		if t.Declared.Via != tools.ViaHTTP {
			continue
		}
		if err := egress.PermitTool(&t.Declared); err != nil {
			f.Problems = append(f.Problems, FileProblem{File: t.Path, Text: err.Error()})
		}
	}
	for _, a := range f.Agents {
		if err := egress.Permit(a.Spec.Endpoint, a.Spec.Auth.Env); err != nil {
			f.Problems = append(f.Problems, FileProblem{File: a.Path, Field: "auth.env", Text: err.Error()})
		}
	}
}

func (f *AgentFiles) warn(file, field, format string, args ...any) {
	f.Problems = append(f.Problems, FileProblem{File: file, Field: field, Text: fmt.Sprintf(format, args...), Warning: true})
}

// ReadFile reads a file of at most limit bytes. A larger file is an error. It waits for the other end
// of a named pipe.
func ReadFile(path string, limit int) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return readOpen(file, limit)
}

// readRegular is ReadFile for a regular file or a link to one. It waits for no other process.
func readRegular(path string, limit int) ([]byte, error) {
	if err := disk.CheckRegular(path); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() { // it was replaced
		return nil, errors.Join(cmp.Or(err, fmt.Errorf("%s is no regular file", path)), file.Close())
	}
	return readOpen(file, limit)
}

// readOpen reads a file and closes it.
func readOpen(file *os.File, limit int) ([]byte, error) {
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err == nil && len(b) > limit {
		err = fmt.Errorf("file has more than %d bytes", limit)
	}
	return b, err
}

// AgentStore is the part of a node that stores agents and tools.
type AgentStore interface {
	PutModule(sum string, module []byte) error
	PutTool(ctx context.Context, d tools.Declared) (changed bool, warnings []string, err error)
	Tool(name string) (agents.DeclaredTool, bool)
	PutAgent(ctx context.Context, spec agents.Spec) (changed bool, warnings []string, err error)
	Agent(id string) (agents.Spec, bool)
}

// Apply stores the tools and then the agents of the files on a node. Unchanged ones are skipped. An
// agent or a tool whose file is gone stays. A stored agent or tool that the registry is too busy to
// change keeps its definition.
func (f *AgentFiles) Apply(n AgentStore, log *slog.Logger) error {
	for _, file := range f.Tools {
		name := file.Declared.Name
		switch module, err := ReadModule(file.Path, &file.Declared); {
		case err != nil:
			return fmt.Errorf("%s: file: %w", file.Path, err)
		case module == nil:
		default:
			if err := n.PutModule(file.Declared.SHA256, module); err != nil {
				return fmt.Errorf("%s: %w", file.Path, err)
			}
		}
		changed, warnings, err := n.PutTool(context.Background(), file.Declared)
		_, known := n.Tool(name)
		if err := applied(log.With("tool", name, "file", file.Path), "tool", known, changed, warnings, err); err != nil {
			return fmt.Errorf("%s: %w", file.Path, err)
		}
	}
	for _, file := range f.Agents {
		changed, warnings, err := n.PutAgent(context.Background(), file.Spec)
		_, known := n.Agent(file.Spec.ID)
		if err := applied(log.With("agent", file.Spec.ID, "file", file.Path), "agent", known, changed, warnings, err); err != nil {
			return fmt.Errorf("%s: %w", file.Path, err)
		}
	}
	return nil
}

// applied logs the result of storing an agent or a tool and returns its error, if that
// prevents the start.
func applied(log *slog.Logger, kind string, known, changed bool, warnings []string, err error) error {
	var refusal *actor.Refusal
	switch {
	case known && errors.As(err, &refusal) && refusal.Reason == actor.Busy:
		log.Warn(kind+" file not applied: the registry is busy, the "+kind+" is unchanged", "error", err.Error())
	case err != nil:
		return err
	case changed:
		if len(warnings) > 0 {
			log = log.With("warnings", warnings)
		}
		log.Info(kind + " file applied")
	}
	return nil
}
