// SPDX-License-Identifier: Apache-2.0

package actor

import (
	"strings"
	"testing"
)

func TestFoldedNames(t *testing.T) {
	for name, want := range map[string]string{
		"Fancy": "fancy", " Fancy ": "fancy", "Ｆancy": "fancy", "FANCY": "fancy", "Fancy\u00a0 Bot": "fancy bot", "ﬁne": "fine",
		"Straße": "strasse", "STRASSE": "strasse", "É": "é", "E\u0301": "é", "Σίσυφος": "σίσυφοσ", "東京": "東京", "": "",
		"Fаncy": "fаncy", // with a Cyrillic letter, which CheckScripts refuses
	} {
		if got := FoldName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
		if got := FoldName(FoldName(name)); got != want {
			t.Errorf("%q: folded twice %q, want %q", name, got, want)
		}
	}
}

func TestMixedScriptsAreRefused(t *testing.T) {
	for name, mixed := range map[string]bool{
		"Fancy 2": false, "Ｆancy": false, "Café": false, "Помощник": false, "東京Bot": false, "東京タワーbot": false, "서울 bot": false, "γάμμα": false, "E\u0301": false,
		"Fаncy": true, "Ηelper": true, "Помощник bot": true, "ひсе": true, "서울ひ": true,
	} {
		err := CheckScripts(name)
		if (err != nil) != mixed || mixed && !strings.Contains(err.Error(), "use those of one script") {
			t.Errorf("%q: got %v", name, err)
		}
	}
	for user, mixed := range map[string]bool{"анна@example.com": false, "Anna Петрова": false, "аnna@example.com": true} {
		if err := CheckUserScripts(user); (err != nil) != mixed {
			t.Errorf("%q: got %v", user, err)
		}
	}
}
