// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/agents"
)

// Deep nesting takes longer to parse than flat text of the same length, so the depth
// is checked before parsing.
func TestTOMLNestingLimit(t *testing.T) {
	deep := strings.Repeat("{a=", 20_000)
	for _, c := range []struct{ text, want string }{
		{"name = \"a\"\nagents = " + strings.Repeat("[", 50_000), "2:18: nests deeper than 8 levels"},
		{"x=" + deep, "1:27: nests deeper"},
		{"x=[\n[\n[[[[[[[", "3:7: nests deeper"},
		{strings.Repeat("a.", 50_000) + "a=1", "1:18: nests deeper"},
		{"[" + strings.Repeat("a.", 50_000) + "a]", "1:19: nests deeper"},
		{"# [[[[[[[[[[[[ \"\ny=" + deep, "2:27: nests deeper"},
		// These quotes end a string, although they look like the start of one.
		{`x={b="""a"""",c=` + deep, "nests deeper"},
		{`x={b='''a''''',c=` + deep, "nests deeper"},
		{`x={b="\"",c=` + deep, "nests deeper"},
		// A closed list ends one level only, and a list may follow a string at once.
		{"x=" + strings.Repeat("[[]", 9), "nests deeper"},
		{"x=" + strings.Repeat(`[""`, 9), "nests deeper"},
		{`x={b='\',c=` + deep, "nests deeper"},
		{`x={b='''\''',c=` + deep, "nests deeper"},
		{`x={b="""\"""",c=1,d='` + "\n" + deep, "nests deeper"},
	} {
		_, err := agents.ReadTOML(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %.200v, want %s", c.text, err, c.want)
		}
	}
	// Closed tables and lists do not count.
	for _, text := range []string{strings.Repeat("[a]\n", 20), "x = [" + strings.Repeat("1.5, ", 20) + "]\n" + strings.Repeat("a.b = 1\n", 20),
		"x = [" + strings.Repeat(`["""a"""], `, 20) + "]\n"} {
		if _, err := agents.ReadTOML(text); err == nil || strings.Contains(err.Error(), "nests deeper") {
			t.Errorf("%.40q: %v", text, err)
		}
	}
	_, err := agents.ReadJSON([]byte(`{"name":"a","tools":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`))
	if err == nil || !strings.Contains(err.Error(), "tools: entry 1: want text, got a list") {
		t.Errorf("%.200v", err)
	}
	// The content of strings and comments does not count.
	for _, text := range []string{
		"name = \"a\" # {{{{{{{{{{{{{{ it's\nprompt = '''\n" + strings.Repeat(`{"a.b.c.d.e.f.g.h.i.j": [[[ "`, 100) + "'''\nparameters.temperature = 0.5\n",
		"name = \"a\"\nprompt = \"\"\"\n" + strings.Repeat(`{\"a.b.c.d.e.f.g.h.i.j\": [[[ ' `, 100) + "\"\"\"\ntools = [\"a.b\", \"c.d.e.f.g.h.i.j.k.l.m\"] # [",
		`name = "a"` + "\n" + `description = "{{{{{{{{{{{{{\"{{ ' "`,
	} {
		if _, err := agents.ReadTOML(text); err != nil {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}

func TestSpecMemberCountLimit(t *testing.T) {
	if _, err := agents.ReadTOML(strings.Join(toolNames(256), " = 1\n") + " = 1\n"); err == nil || strings.Contains(err.Error(), "members") {
		t.Errorf("256 members: %.200v, want only that they are unknown", err)
	}
	_, err := agents.ReadTOML(strings.Join(toolNames(5000), " = 1\n") + " = 1\n")
	var problems agents.Problems
	if !errors.As(err, &problems) || len(problems) != 1 || !strings.Contains(err.Error(), "has 5000 members") {
		t.Errorf("%.200v", err)
	}
	var members []string
	for _, name := range toolNames(5000) {
		members = append(members, fmt.Sprintf("%q:1", name))
	}
	if _, err := agents.ReadJSON([]byte("{" + strings.Join(members, ",") + "}")); err == nil || !strings.Contains(err.Error(), "has 5000 members") {
		t.Errorf("%.200v", err)
	}
}
