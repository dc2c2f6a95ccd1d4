// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"unicode"
	"unicode/utf8"
)

// IsInvisible reports whether a character has no glyph or reorders its neighbours:
// format characters, such as bidirectional controls and zero-width joiners, line
// and paragraph separators, and blank letters.
func IsInvisible(c rune) bool {
	return unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Variation_Selector) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, c) || c == '\u2800'
}

// IsShown reports whether a reader sees a character after the previous one, 0 at the beginning:
// joiners and variation selectors are parts of emoji and of words in scripts without capitals, and
// elsewhere invisible.
func IsShown(previous, c rune) bool {
	switch {
	case c == '\u200c', c == '\u200d':
		return unicode.In(previous, unicode.Lo, unicode.M, unicode.So, unicode.Sk)
	case unicode.Is(unicode.Variation_Selector, c):
		return unicode.In(previous, unicode.Lo, unicode.Nd, unicode.Po, unicode.So, unicode.Sk, unicode.Sm)
	}
	return !unicode.IsControl(c) && !IsInvisible(c)
}

// IsLine reports whether a text is one line of which a reader sees each character.
func IsLine(text string) bool {
	previous := rune(0)
	for _, c := range text {
		if !IsShown(previous, c) {
			return false
		}
		previous = c
	}
	return utf8.ValidString(text)
}
