// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// CompletionCmd prints the completion script of a shell.
type CompletionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help returns the text shown below the flags.
func (CompletionCmd) Help() string {
	return `Examples:
  source <(troupe completion bash)
  troupe completion zsh > ~/.zsh/completions.zsh && source ~/.zsh/completions.zsh
  troupe completion fish > ~/.config/fish/completions/troupe.fish`
}

// Run executes the command.
func (c *CompletionCmd) Run(s streams, ctx *kong.Context) error {
	all := commandsOf(ctx.Model.Node, nil)
	switch c.Shell {
	case "fish":
		return fish(s.out, all)
	case "zsh":
		if _, err := io.WriteString(s.out, "autoload -U +X bashcompinit && bashcompinit\n"); err != nil {
			return err
		}
	}
	return bash(s.out, all)
}

// subcommand is a command with the words that may follow it.
type subcommand struct {
	path     []string // words of the command, for example runs, show
	children []string // names of its subcommands
	values   []string // values of its argument if it is an enum
	help     map[string]string
	flags    []*kong.Flag
}

// commandsOf lists a command and its descendants, descendants first.
func commandsOf(n *kong.Node, path []string) []subcommand {
	c := subcommand{path: path, help: map[string]string{}}
	for _, f := range n.Flags {
		if !f.Hidden {
			c.flags = append(c.flags, f)
		}
	}
	for _, p := range n.Positional {
		if p.Enum != "" {
			c.values = append(c.values, p.EnumSlice()...)
		}
	}
	var all []subcommand
	for _, child := range n.Children {
		if child.Hidden {
			continue
		}
		c.children = append(c.children, child.Name)
		c.help[child.Name] = child.Help
		all = append(all, commandsOf(child, append(path[:len(path):len(path)], child.Name))...)
	}
	return append(all, c)
}

func (c *subcommand) words() string {
	words := slices.Concat(c.children, c.values)
	for _, f := range c.flags {
		words = append(words, "--"+f.Name)
	}
	if !slices.Contains(words, "--help") {
		words = append(words, "--help")
	}
	return strings.Join(words, " ")
}

// bash writes a completion function that selects the command by the words typed so
// far.
func bash(w io.Writer, all []subcommand) error {
	var b strings.Builder
	b.WriteString(`_troupe() {
  local word path="" words
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in -*) ;; *) path="$path $word" ;; esac
  done
  case "$path " in
`)
	for _, c := range all {
		pattern := "*"
		if len(c.path) > 0 {
			pattern = `" ` + strings.Join(c.path, " ") + ` "*`
		}
		words := fmt.Sprintf("%q", c.words())
		if what := completedBy(strings.Join(c.path, " ")); what != "" {
			words += ` "$(troupe complete ` + what + ` 2>/dev/null)"`
			words = strings.Replace(words, `" "`, ` `, 1)
		}
		fmt.Fprintf(&b, "    %s) words=%s ;;\n", pattern, words)
	}
	b.WriteString(`  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _troupe troupe
`)
	_, err := io.WriteString(w, b.String())
	return err
}

func fish(w io.Writer, all []subcommand) error {
	var b strings.Builder
	b.WriteString("complete -c troupe -f\n")
	quote := func(text string) string {
		first, _, _ := strings.Cut(text, ";")
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "${default}", "").Replace(first) + "'"
	}
	for _, c := range all {
		when := "__fish_use_subcommand"
		if len(c.path) > 0 {
			var seen []string
			for _, name := range c.path {
				seen = append(seen, "__fish_seen_subcommand_from "+name)
			}
			when = strings.Join(seen, "; and ")
		}
		for _, name := range c.children {
			not := ""
			if len(c.path) > 0 {
				not = "; and not __fish_seen_subcommand_from " + strings.Join(c.children, " ")
			}
			fmt.Fprintf(&b, "complete -c troupe -n '%s%s' -a %s -d %s\n", when, not, name, quote(c.help[name]))
		}
		if len(c.values) > 0 {
			fmt.Fprintf(&b, "complete -c troupe -n '%s' -a '%s'\n", when, strings.Join(c.values, " "))
		}
		if what := completedBy(strings.Join(c.path, " ")); what != "" {
			fmt.Fprintf(&b, "complete -c troupe -n '%s' -a '(troupe complete %s 2>/dev/null)'\n", when, what)
		}
		for _, f := range c.flags {
			takes := ""
			if !f.IsBool() {
				takes = " -r -F"
			}
			fmt.Fprintf(&b, "complete -c troupe -n '%s' -l %s%s -d %s\n", when, f.Name, takes, quote(f.Help))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
