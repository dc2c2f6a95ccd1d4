// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	"github.com/troupe-run/troupe/tools"
)

// agentFilesMax is the maximum number of agent files in a folder.
const agentFilesMax = agents.AgentsMax

// agentFiles holds the agents of a folder, one per file named *.toml.
type agentFiles struct {
	Agents   []agentFile
	Problems []fileProblem // ordered by file and line
}

type agentFile struct {
	Path string
	Spec agents.Spec
}

// fileProblem is an error in an agent file, or a warning about it.
type fileProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitzero"`
	Column  int    `json:"column,omitzero"`
	Field   string `json:"field,omitzero"`
	Text    string `json:"text"`
	Warning bool   `json:"warning,omitzero"`
}

// String formats the problem as compilers do: file:line:column: field: text.
func (p fileProblem) String() string {
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
func (f *agentFiles) HasErrors() bool {
	return slices.ContainsFunc(f.Problems, func(p fileProblem) bool { return !p.Warning })
}

// readAgentFiles reads all agents of a folder and checks the references between
// them. It returns an error only for the folder itself. Errors in the files are
// collected as problems.
func readAgentFiles(dir string) (*agentFiles, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, fmt.Errorf("agents: %s is not a folder; its folder is %s", dir, filepath.Dir(dir))
	}
	if err != nil {
		return nil, fmt.Errorf("agents: %w", err)
	}
	f := &agentFiles{}
	count := 0
	for _, entry := range entries {
		if entry.IsDir() || filepath.Ext(entry.Name()) != ".toml" || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if count++; count > agentFilesMax {
			return nil, fmt.Errorf("agents: %s contains more than %d files named *.toml", dir, agentFilesMax)
		}
		f.read(filepath.Join(dir, entry.Name()))
	}
	if count == 0 {
		return nil, fmt.Errorf("agents: %s contains no file named *.toml; a minimal agent file has the line name = \"helper\"", dir)
	}
	f.checkReferences()
	return f, nil
}

func (f *agentFiles) read(path string) {
	text, err := readFileMax(path, agents.SourceBytesMax)
	if err != nil {
		f.Problems = append(f.Problems, fileProblem{File: path, Text: err.Error()})
		return
	}
	spec, err := agents.ReadTOML(string(text))
	var problems agents.Problems
	switch {
	case errors.As(err, &problems):
		for _, p := range problems {
			f.Problems = append(f.Problems, fileProblem{File: path, Line: p.Line, Column: p.Column, Field: p.Field, Text: p.Text})
		}
	case err != nil:
		f.Problems = append(f.Problems, fileProblem{File: path, Text: err.Error()})
	default:
		if i := slices.IndexFunc(f.Agents, func(a agentFile) bool { return a.Spec.ID == spec.ID }); i >= 0 {
			f.Problems = append(f.Problems, fileProblem{File: path, Field: "agent_id", Text: fmt.Sprintf("%s is already defined in %s; rename one of them", spec.ID, f.Agents[i].Path)})
			return
		}
		f.Agents = append(f.Agents, agentFile{path, spec})
	}
}

// checkReferences adds warnings for missing tools, undeclared callees and call
// cycles. One file alone does not show these problems.
func (f *agentFiles) checkReferences() {
	var specs []agents.Spec
	for _, a := range f.Agents {
		specs = append(specs, a.Spec)
	}
	for _, a := range f.Agents {
		for _, name := range a.Spec.MissingTools(tools.NewRegistry()) {
			f.warn(a.Path, "tools", "this program has no tool %s; the agent runs without it", name)
		}
		for _, target := range a.Spec.Agents {
			if !slices.ContainsFunc(specs, func(s agents.Spec) bool { return s.ID == target }) {
				f.warn(a.Path, "agents", "no file here declares %s; calls to it are refused until it exists", target)
			}
		}
	}
	for _, cycle := range agents.CallCycles(specs) {
		first, _, _ := strings.Cut(cycle, " ->")
		i := slices.IndexFunc(f.Agents, func(a agentFile) bool { return a.Spec.ID == first })
		f.warn(f.Agents[i].Path, "agents", "possible call cycle: %s; the call that closes it is refused", cycle)
	}
}

// checkModels adds a warning for each agent whose model is not in the list known.
func (f *agentFiles) checkModels(known []string) {
	for _, a := range f.Agents {
		if a.Spec.Kind == agents.KindDeclared && !slices.Contains(known, a.Spec.Model) {
			f.warn(a.Path, "model", "the configuration has no model %s; want one of %s", a.Spec.Model, strings.Join(known, ", "))
		}
	}
}

func (f *agentFiles) warn(file, field, format string, args ...any) {
	f.Problems = append(f.Problems, fileProblem{File: file, Field: field, Text: fmt.Sprintf(format, args...), Warning: true})
}

// readFileMax reads a file of at most limit bytes. A larger file is an error.
func readFileMax(path string, limit int) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err == nil && len(b) > limit {
		err = fmt.Errorf("file has more than %d bytes", limit)
	}
	return b, err
}

// agentStore is the part of a node that stores agents.
type agentStore interface {
	PutAgent(ctx context.Context, spec agents.Spec) (changed bool, warnings []string, err error)
	Agent(id string) (agents.Spec, bool)
}

// apply stores the agents of the files on a node. Unchanged agents are skipped. An
// agent whose file is gone stays. If the registry refuses to change a stored agent
// because it is busy, the agent keeps its definition.
func (f *agentFiles) apply(n agentStore, log *slog.Logger) error {
	for _, file := range f.Agents {
		changed, warnings, err := n.PutAgent(context.Background(), file.Spec)
		var refusal *actor.Refusal
		_, known := n.Agent(file.Spec.ID)
		switch {
		case known && errors.As(err, &refusal) && refusal.Reason == actor.Busy:
			log.Warn("agent file not applied: the registry is busy, the agent is unchanged", "agent", file.Spec.ID, "file", file.Path, "error", err.Error())
		case err != nil:
			return fmt.Errorf("%s: %w", file.Path, err)
		case changed:
			log.Info("agent file applied", "agent", file.Spec.ID, "file", file.Path, "warnings", warnings)
		}
	}
	return nil
}
