// SPDX-License-Identifier: Apache-2.0

package sim

import "testing"

// TestRequestForms checks that the gateway accepts and refuses many objects of each form
// as documented, and that each form has objects of both kinds.
func TestRequestForms(t *testing.T) {
	for _, f := range requestForms {
		valid, mistakes := 0, map[string]int{}
		for seed := range uint64(4000) {
			o := f.draw(&picker{seed: seed})
			if o.mistake == "" {
				valid++
			} else {
				mistakes[o.mistake]++
			}
			got, refusal := f.read([]byte(o.text))
			if why := f.judge(&o, got, refusal); why != "" {
				t.Errorf("%s %.300q (%s): %s", f.name, o.text, o.mistake, why)
				break
			}
		}
		if valid < 1000 || len(mistakes) < 4 {
			t.Errorf("%s: %d valid objects, mistakes %v", f.name, valid, mistakes)
		}
	}
}

// TestHeaderForms checks that the program reads many trace headers and bindings as
// documented, and that some are valid.
func TestHeaderForms(t *testing.T) {
	valid := 0
	for seed := range uint64(20_000) {
		p := &picker{seed: seed}
		if _, parent := drawTraceParents(&picker{seed: seed}); parent != "" {
			valid++
		}
		for _, why := range []string{checkTrace(p), checkBindings(p)} {
			if why != "" {
				t.Fatal(why)
			}
		}
	}
	if valid < 5000 {
		t.Errorf("%d valid headers", valid)
	}
}
