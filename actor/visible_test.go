// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"testing"

	"github.com/troupe-run/troupe/actor"
)

func TestIsLine(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "Trip to Rome, 3 €": true, "旅行": true, "رحلة": true, "e\u0301": true,
		"❤\ufe0f": true, "❤\ufe0f\u200d🔥": true, "👩🏽\u200d💻": true, "1\ufe0f\u20e3": true, "می\u200cخواهم": true, "葛\U000e0100": true,
		"a\nb": false, "a\tb": false, "\x1b[0m": false, "\u009b": false, "\xff": false,
		"pay\u202eecila": false, "\u2066a\u2069": false, "a\u200eb": false, "a\u200bb": false, "a\u200db": false, "\u200d": false, "\ufeffa": false, "a\u2028b": false,
		"a\u00adb": false, "a\ufe0fb": false, "❤\ufe0f\ufe0f": false, "葛\U000e0100\U000e0101": false, "\U000e0041": false, "a\u3164": false, "\u2800": false, "\ue000": false,
	} {
		if got := actor.IsLine(text); got != want {
			t.Errorf("%q: %t, want %t", text, got, want)
		}
	}
}
