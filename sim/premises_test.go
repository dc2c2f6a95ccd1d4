// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/specs"
	"github.com/troupe-run/troupe/specs/linear"
)

// A spec or property whose workload never occurs is reported as missing, by its name.
func TestExcludedWorkloadHasNoPremise(t *testing.T) {
	excluded := []string{specs.RetriedUnheard, linear.LinearKeys, RequestAsAsked, RegistryHolds} // plain runs have no models, external agents, idempotency keys or registry
	named := func(list []string, spec string) bool {
		return slices.ContainsFunc(list, func(line string) bool { return strings.HasPrefix(line, "premise "+spec+": ") })
	}
	missing := func(plain bool, seeds int) (list []string) {
		var sum Summary
		RunSeeds(1, seeds, func(seed uint64) Result { return RunSeed(Options{Seed: seed, Plain: plain, Unhashed: true}) }, func(r Result) bool {
			sum.Add(r)
			list = sum.PrintPremises(io.Discard, false)
			return slices.ContainsFunc(excluded, func(spec string) bool { return named(list, spec) })
		})
		return list
	}
	all, plain := missing(false, 24), missing(true, 6)
	for _, spec := range excluded {
		if named(all, spec) || !named(plain, spec) {
			t.Errorf("%s: missing in usual runs %v, in plain runs %v; want the premise in usual runs only", spec, named(all, spec), named(plain, spec))
		}
	}
	if named(plain, specs.AckedIsDurable) {
		t.Errorf("%v: plain runs have effects", plain)
	}
}

// The report shows every spec with a count of zero and a few more, or all.
func TestPremisesReport(t *testing.T) {
	var sum Summary
	sum.Total.Premises = specs.Premises{SingleActivation: 7, AckedIsDurable: 5}
	lines := func(all bool) (text string, missing int) {
		var b strings.Builder
		missing = len(sum.PrintPremises(&b, all))
		return b.String(), missing
	}
	text, missing := lines(false)
	checked := len(specs.All()) + len(Properties())
	if want := checked - 2; missing != want || strings.Count(text, "\n") != want+2 {
		t.Errorf("%d missing, want %d:\n%s", missing, want, text)
	}
	if last := strings.Fields(text[strings.LastIndex(text[:len(text)-1], "\n")+1:]); fmt.Sprint(last[:3]) != "[premise SingleActivation 7]" {
		t.Errorf("last line %v: want the highest count", last)
	}
	for _, counts := range []reflect.Value{reflect.ValueOf(&sum.Total.Premises).Elem(), reflect.ValueOf(&sum.Total.Audit).Elem()} {
		for i := range counts.NumField() {
			counts.Field(i).SetInt(1)
		}
	}
	if text, missing := lines(false); missing != 0 || strings.Count(text, "\n") != premisesShown {
		t.Errorf("%d missing:\n%s", missing, text)
	}
	if text, missing := lines(true); missing != 0 || strings.Count(text, "\n") != checked {
		t.Errorf("%d missing:\n%s", missing, text)
	}
}

// Each property has a count with its name and a premise.
func TestEachPropertyHasAPremise(t *testing.T) {
	var names []string
	for _, p := range specs.ListPremises(&AuditPremises{}) {
		if names = append(names, p.Spec); p.Situation == "" {
			t.Errorf("%s has no premise", p.Spec)
		}
	}
	if want := Properties(); !slices.Equal(names, want) {
		t.Errorf("got premises of %v, want %v", names, want)
	}
}
