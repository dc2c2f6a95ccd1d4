// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"fmt"
	"strings"
	"unicode"
)

// checkVisible returns problems for a name or description of which a reader sees
// something else than its characters. Specs stored by earlier versions may have
// them, so ReadJSON does not check it.
func (s *Spec) checkVisible() (problems Problems) {
	for _, f := range []struct{ field, text string }{{"name", s.Name}, {"description", s.Description}} {
		if i := strings.IndexFunc(f.text, isInvisible); i >= 0 {
			c := []rune(f.text[i:])[0]
			problems = append(problems, Problem{Field: f.field, Text: fmt.Sprintf("remove the character %U: it is invisible or changes the direction of the text", c)})
		}
	}
	return problems
}

// isInvisible reports whether a character has no glyph or reorders its neighbours:
// format characters, such as bidirectional controls and zero-width joiners, line
// and paragraph separators, and blank letters.
func isInvisible(c rune) bool {
	return unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Variation_Selector) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, c) || c == '\u2800'
}
