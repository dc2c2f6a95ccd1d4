// SPDX-License-Identifier: Apache-2.0

package agents

import "strings"

// nestingMax is how deep a source may nest: no spec has more than two levels. What
// reads TOML takes a time that grows with the square of the depth.
const nestingMax = 8

// findExcessNesting is the byte at which TOML opens one table, list or part of a key too
// many, or -1. It knows what is text and what is a comment, and no more.
func findExcessNesting(text string) int {
	depth, dots := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '#':
			if end := strings.IndexByte(text[i:], '\n'); end >= 0 {
				i += end - 1
			} else {
				i = len(text)
			}
		case '"', '\'':
			i = skipString(text, i) - 1
		case '{', '[':
			dots = 0
			if depth++; depth > nestingMax {
				return i
			}
		case '}', ']':
			depth = max(depth-1, 0)
		case '.':
			if dots++; dots > nestingMax {
				return i
			}
		case '=', ',', '\n':
			dots = 0
		}
	}
	return -1
}

// skipString is the byte behind the text that begins with a quote. Text between
// three quotes may end with two more of its own.
func skipString(text string, begin int) int {
	quote := text[begin]
	three := strings.Repeat(text[begin:begin+1], 3)
	long := strings.HasPrefix(text[begin:], three)
	i := begin + 1
	if long {
		i += 2
	}
	for ; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote == '"':
			i++
		case long && strings.HasPrefix(text[i:], three):
			for i += 3; i < len(text) && text[i] == quote; i++ {
			}
			return i
		case !long && (text[i] == quote || text[i] == '\n'):
			return i + 1
		}
	}
	return len(text)
}
