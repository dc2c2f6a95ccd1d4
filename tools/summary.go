// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/invariant"
)

// argumentRunesMax is the maximum length of an argument in a summary, in characters.
const argumentRunesMax = 100

// absentArgument is the text for an argument that a call does not have.
const absentArgument = "(absent)"

// Summary returns one line of at most SummaryBytesMax bytes that describes a call to the
// person who decides about it: ArgsSummary with the arguments in it, or else the arguments.
// The model chooses the arguments, so characters that cannot be seen are removed, white space
// is reduced to single spaces, and each argument is cut: none pushes another out of sight.
func (d *Declared) Summary(args []byte) string {
	members, err := objectMembers(args)
	switch {
	case err != nil:
		return summaryLine(string(args))
	case d.ArgsSummary == "":
		return summaryOfArguments(members)
	}
	literals, placeholders := 0, 0
	for rest := d.ArgsSummary; rest != ""; {
		before, _, after, ok := cutPlaceholder(rest)
		literals += len(before)
		if rest = after; ok {
			placeholders++
		}
	}
	limit := argumentBytes(literals, placeholders)
	texts := make(map[string]string, len(members))
	for _, m := range members {
		var text string
		if m.value.Kind() != '"' || json.Unmarshal(m.value, &text) != nil {
			text = compactText(m.value)
		}
		texts[m.name] = shortArgument(text, limit)
	}
	var b strings.Builder
	for rest := d.ArgsSummary; rest != "" && b.Len() <= SummaryBytesMax; {
		before, name, after, ok := cutPlaceholder(rest)
		b.WriteString(before)
		if rest = after; !ok {
			continue
		}
		text, found := texts[name]
		if !found {
			text = absentArgument
		}
		b.WriteString(text)
	}
	return summaryLine(b.String())
}

// summaryOfArguments returns the arguments in JSON, each name and value cut.
func summaryOfArguments(members []declaredMember) string {
	limit := argumentBytes(2*len(members)+1, 2*len(members))
	var b strings.Builder
	b.WriteByte('{')
	for i, m := range members {
		if b.Len() > SummaryBytesMax {
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		name := invariant.Must(jsontext.AppendQuote(nil, m.name))
		b.WriteString(shortArgument(string(name), limit))
		b.WriteByte(':')
		b.WriteString(shortArgument(compactText(m.value), limit))
	}
	b.WriteByte('}')
	return summaryLine(b.String())
}

// argumentBytes returns the length to which each of n arguments is cut, so that all fit
// together with literal text of the given length. It does not go below a few characters.
func argumentBytes(literals, n int) int {
	return max((SummaryBytesMax-literals)/max(n, 1), len(absentArgument))
}

// shortArgument returns the visible text of an argument, at most argumentRunesMax characters
// and limit bytes. It reads no more than it returns, except for white space and characters
// that cannot be seen.
func shortArgument(text string, limit int) string {
	var b strings.Builder
	runes, space := 0, false
	for _, c := range text {
		if unicode.IsSpace(c) {
			space = true
			continue
		}
		if unicode.IsControl(c) || actor.IsInvisible(c) {
			continue
		}
		if runes > argumentRunesMax {
			break
		}
		if space && runes > 0 {
			b.WriteByte(' ')
			runes++
		}
		b.WriteRune(c)
		runes, space = runes+1, false
	}
	short := b.String()
	if all := []rune(short); len(all) > argumentRunesMax {
		short = string(all[:argumentRunesMax-1]) + "…"
	}
	return actor.FitText(short, limit)
}

// cutPlaceholder cuts a template around its first {{name}}.
func cutPlaceholder(template string) (before, name, after string, ok bool) {
	before, rest, opened := strings.Cut(template, "{{")
	name, after, closed := strings.Cut(rest, "}}")
	if !opened || !closed {
		return template, "", "", false
	}
	return before, strings.TrimSpace(name), after, true
}

func compactText(value []byte) string {
	compact := jsontext.Value(value).Clone()
	if compact.Compact() != nil {
		return string(value)
	}
	return string(compact)
}

// summaryLine returns visible text on one line, cut to SummaryBytesMax.
func summaryLine(text string) string {
	line := strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\r' || c == '\t':
			return ' '
		case unicode.IsControl(c) || actor.IsInvisible(c):
			return -1
		}
		return c
	}, text[:min(len(text), InputBytesMax)])
	return actor.FitText(line, SummaryBytesMax)
}

// checkSummary returns an error that describes the first violation of the rules of
// ArgsSummary.
func checkSummary(template string, known func(string) bool) error {
	if err := checkText(template, SummaryBytesMax); err != nil {
		return err
	}
	for rest := template; ; {
		before, name, after, ok := cutPlaceholder(rest)
		switch {
		case strings.Contains(before, "{{") || strings.Contains(before, "}}"):
			return fmt.Errorf("want pairs of double braces, like {{city}}")
		case !ok:
			return nil
		case !known(name):
			return fmt.Errorf("{{%.80s}} is no property of input_schema", name)
		}
		rest = after
	}
}
