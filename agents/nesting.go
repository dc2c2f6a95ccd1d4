// SPDX-License-Identifier: Apache-2.0

package agents

import "strings"

// nestingMax is the maximum nesting depth of a source. A spec has at most two
// levels. The time that the TOML parser takes grows with the square of the depth,
// so deeper sources are rejected before parsing.
const nestingMax = 8

// toolNestingMax is nestingMax for the file of a tool, whose schema may be deeper.
const toolNestingMax = 32

// findExcessNesting returns the offset at which open tables and lists, or the dots of
// a key, exceed limit. It returns -1 if there is no such offset. Dots and brackets
// in strings and comments are not counted.
func findExcessNesting(text string, limit int) int {
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
			if depth++; depth > limit {
				return i
			}
		case '}', ']':
			depth = max(depth-1, 0)
		case '.':
			if dots++; dots > limit {
				return i
			}
		case '=', ',', '\n':
			dots = 0
		}
	}
	return -1
}

// skipString returns the offset after the string that begins at begin. The
// content of a string in triple quotes may end with one or two quotes.
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
