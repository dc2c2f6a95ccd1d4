// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/memory"
)

// MemoryCmd groups the commands about what agents remember.
type MemoryCmd struct {
	List   MemoryListCmd   `cmd:"" help:"List what is remembered, by name."`
	Show   MemoryShowCmd   `cmd:"" help:"Show an entity with its facts, superseded ones too, and its relations."`
	Search MemorySearchCmd `cmd:"" help:"Search facts by words."`
	Forget MemoryForgetCmd `cmd:"" help:"Forget an entity with all its facts, for good."`
	Export MemoryExportCmd `cmd:"" help:"Print all entities of a scope, one JSON object a line."`
}

// MemoryFlags select a scope.
type MemoryFlags struct {
	UserFlags
	Scope   string `placeholder:"SCOPE" help:"session, agent, workspace or global; by default that of --session or --agent, otherwise workspace."`
	Session string `placeholder:"SESSION" help:"Session of the scope session."`
	Agent   string `placeholder:"AGENT" help:"Agent of the scope agent."`
}

// fields returns the fields that select the scope, in a body or a query.
func (f *MemoryFlags) fields() map[string]any {
	in := map[string]any{}
	for name, value := range map[string]string{"scope": f.Scope, "session_id": f.Session, "agent_id": f.Agent} {
		if value != "" {
			in[name] = value
		}
	}
	return in
}

// ask sends a question or a change, whose text is in a field.
func (f *MemoryFlags) ask(path, field, text string, more map[string]any) ([]byte, error) {
	in := f.fields()
	in[field] = text
	for name, value := range more {
		in[name] = value
	}
	_, answer, err := f.client().post(path, in)
	return answer, err
}

// each passes all entities of the scope to a function, as JSON.
func (f *MemoryFlags) each(pass func(jsontext.Value) error) error {
	q := url.Values{"limit": {fmt.Sprint(memory.PageMax)}}
	for name, value := range f.fields() {
		q.Set(name, value.(string))
	}
	for {
		body, err := f.client().get("/v1/memory?" + encodeQuery(q))
		if err != nil {
			return err
		}
		var page struct {
			All  []jsontext.Value `json:"entities"`
			Next string           `json:"next_cursor"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return err
		}
		for _, e := range page.All {
			if err := pass(e); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		q.Set("cursor", page.Next)
	}
}

// MemoryListCmd lists entities.
type MemoryListCmd struct{ MemoryFlags }

// Help returns the text shown below the flags.
func (MemoryListCmd) Help() string {
	return `Agents remember if the configuration of the server has [memory] with enabled = true, and their own memory = {...}.

Examples:
  troupe memory list
  troupe memory list --session s-1
  troupe memory list --agent clerk`
}

// Run executes the command.
func (c *MemoryListCmd) Run(s streams) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	n := 0
	err := c.each(func(raw jsontext.Value) error {
		var e memory.EntityView
		if err := json.Unmarshal(raw, &e); err != nil {
			return err
		}
		if n++; n == 1 {
			fmt.Fprintln(w, "ENTITY\tFACTS\tRELATIONS\tSINCE\tNEWEST FACT")
		}
		valid, newest := 0, ""
		for _, f := range e.Facts {
			if f.ValidUntil == "" {
				valid, newest = valid+1, f.Content
			}
		}
		_, err := fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", e.Entity, valid, len(e.Relations), e.CreatedAt[:min(19, len(e.CreatedAt))], cmp.Or(shortFact(newest), "-"))
		return err
	})
	if err != nil {
		return err
	}
	if n == 0 {
		_, err := fmt.Fprintln(s.out, "nothing is remembered in this scope")
		return err
	}
	return w.Flush()
}

// shortFact returns the beginning of a text on one line, without characters that control a terminal.
func shortFact(text string) string {
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 {
			return ' '
		}
		return r
	}, text)), " ")
	if all := []rune(text); len(all) > 80 {
		text = string(all[:79]) + "…"
	}
	return text
}

// MemoryShowCmd shows an entity.
type MemoryShowCmd struct {
	MemoryFlags
	Entity string `arg:"" help:"Name of the entity."`
}

// Help returns the text shown below the flags.
func (MemoryShowCmd) Help() string {
	return "Examples:\n  troupe memory show Ada\n  troupe memory show Ada --session s-1"
}

// Run executes the command.
func (c *MemoryShowCmd) Run(s streams) error {
	body, err := c.ask("/v1/memory/entity", "entity", c.Entity, nil)
	return printJSONOrError(s.out, body, err)
}

// MemorySearchCmd searches facts.
type MemorySearchCmd struct {
	MemoryFlags
	Query      []string `arg:"" help:"Words to search for: plain text without operators."`
	Limit      int      `default:"10" help:"Maximum number of facts, 1 to 50 (${default})."`
	Superseded bool     `help:"Also find facts that are true no longer."`
	JSON       bool     `help:"Print the JSON response of the server."`
}

// Help returns the text shown below the flags.
func (MemorySearchCmd) Help() string {
	return "Examples:\n  troupe memory search oolong\n  troupe memory search what does Ada drink --superseded --json"
}

// Run executes the command.
func (c *MemorySearchCmd) Run(s streams) error {
	body, err := c.ask("/v1/memory/search", "query", strings.Join(c.Query, " "), map[string]any{"limit": c.Limit, "superseded": c.Superseded})
	if err != nil || c.JSON {
		return printJSONOrError(s.out, body, err)
	}
	var found memory.SearchView
	if err := json.Unmarshal(body, &found); err != nil {
		return err
	}
	if len(found.Hits) == 0 {
		_, err := fmt.Fprintf(s.out, "nothing found in the scope %s, after %d changes\n", found.Scope, found.Position)
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENTITY\tFACT\tVALID\tFROM\tCONTENT")
	for _, h := range found.Hits {
		valid := "since " + h.ValidFrom[:min(19, len(h.ValidFrom))]
		if h.ValidUntil != "" {
			valid = "until " + h.ValidUntil[:min(19, len(h.ValidUntil))]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", shortFact(h.Entity), h.Fact, valid, cmp.Or(h.Source.Agent, h.Source.User, "-"), shortFact(h.Content))
	}
	return w.Flush()
}

// MemoryForgetCmd forgets an entity.
type MemoryForgetCmd struct {
	MemoryFlags
	Entity string `arg:"" help:"Name of the entity."`
	Reason string `required:"" placeholder:"TEXT" help:"Why. The reason is kept: do not repeat in it what is forgotten."`
}

// Help returns the text shown below the flags.
func (MemoryForgetCmd) Help() string {
	return `Searches find it no longer at once. It leaves the files of the store once the log is cut: see --keep of troupe serve. The file forgets.jsonl in the data folder keeps a restore of an older backup from bringing it back.

Examples:
  troupe memory forget Ada --reason "she asked for it"`
}

// Run executes the command.
func (c *MemoryForgetCmd) Run(s streams) error {
	body, err := c.ask("/v1/memory/forget", "entity", c.Entity, map[string]any{"reason": c.Reason})
	if err != nil {
		return err
	}
	var done memory.ChangeView
	if err := json.Unmarshal(body, &done); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "forgot %s in the scope %s at %s\n", done.Entity, done.Scope, done.At)
	return err
}

// MemoryExportCmd prints a scope.
type MemoryExportCmd struct{ MemoryFlags }

// Help returns the text shown below the flags.
func (MemoryExportCmd) Help() string {
	return "Examples:\n  troupe memory export > workspace.jsonl\n  troupe memory export --agent clerk | jq -r .entity"
}

// Run executes the command.
func (c *MemoryExportCmd) Run(s streams) error {
	return c.each(func(e jsontext.Value) error {
		_, err := fmt.Fprintf(s.out, "%s\n", e)
		return err
	})
}
