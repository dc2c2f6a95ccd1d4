// SPDX-License-Identifier: Apache-2.0

package actor

import "unicode"

// IsInvisible reports whether a character has no glyph or reorders its neighbours:
// format characters, such as bidirectional controls and zero-width joiners, line
// and paragraph separators, and blank letters.
func IsInvisible(c rune) bool {
	return unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Variation_Selector) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, c) || c == '\u2800'
}
