// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/runs"
)

// Spendings implements Reader. It decodes of each row only what a report of usage needs.
func (r Rows) Spendings(tenant string, f runs.Filter, before actor.CallID, each func(*runs.Summary)) (next actor.CallID, err error) {
	prefix := tenantKey(tenant, 'r')
	first, last := f.Range()
	if !before.IsZero() && (last.IsZero() || before.Compare(last) < 0) {
		last = before
	}
	to := prefixEnd(prefix)
	if !last.IsZero() {
		to = runKey(tenant, last)
	}
	l := listing{rows: r, tenant: tenant}
	r.with(func(x *Index) { l.forgotten = slices.Clone(x.forgotten) })
	newer := r.newerSummaries(tenant, first, last)
	names, read, previous := spentNames{}, 0, actor.CallID{}
	visit := func(s *runs.Summary) bool {
		if read == ListedRowsMax {
			next = previous
			return false
		}
		read++
		if previous = s.Run; len(s.Spent) > 0 && (len(l.forgotten) == 0 || !l.isForgotten(s.Actor)) {
			each(s)
		}
		return true
	}
	var s runs.Summary
	err = r.KV.ScanBack(runKey(tenant, first), to, func(key, value []byte) bool {
		run, err := actor.ParseCallID(string(key[len(prefix):]))
		for err == nil && len(newer) > 0 && newer[0].Run.Compare(run) > 0 {
			if !visit(&newer[0]) {
				return false
			}
			newer = newer[1:]
		}
		switch {
		case err != nil:
		case len(newer) > 0 && newer[0].Run == run:
			s, newer = newer[0], newer[1:]
		default:
			s, err = decodeSpending(run, value, names)
		}
		if err != nil {
			l.failure = fmt.Errorf("key %s: %w", key, err)
			return false
		}
		return visit(&s)
	})
	for err == nil && l.failure == nil && next.IsZero() && len(newer) > 0 && visit(&newer[0]) {
		newer = newer[1:]
	}
	return next, cmp.Or(l.failure, err)
}

// spentNames holds names that many rows have, so that each is allocated once.
type spentNames map[string]string

// spentNamesMax is the maximum number of names that are held.
const spentNamesMax = 4096

// read reads a name.
func (n spentNames) read(d decoder, limit int) string {
	b := d.Raw(int(d.UintMax(uint64(limit), "length")))
	if name, known := n[string(b)]; known {
		return name
	}
	name := string(b)
	if len(n) < spentNamesMax {
		n[name] = name
	}
	return name
}

// decodeSpending decodes the ID, the actor, the user and the Spent of an index row, whose other fields it passes over.
func decodeSpending(run actor.CallID, value []byte, names spentNames) (runs.Summary, error) {
	d := newDecoder(value)
	if err := d.readVersion("owner", summaryVersion); err != nil {
		return runs.Summary{}, err
	}
	pass := func(limit int) { d.Raw(int(d.UintMax(uint64(limit), "length"))) }
	s := runs.Summary{Run: run, Actor: actor.ID{Tenant: names.read(d, actor.NameBytesMax), Agent: names.read(d, actor.NameBytesMax)}}
	s.Actor.Key = string(d.Raw(int(d.UintMax(actor.NameBytesMax, "length"))))
	s.User = names.read(d, actor.TextBytesMax)
	d.CallID()
	d.CallID()
	d.Uint()
	pass(actor.TextBytesMax)
	pass(actor.TextBytesMax)
	pass(actor.NameBytesMax)
	_, spent := decodeStatus(d.Decoder)
	d.time()
	d.time()
	d.time()
	pass(actor.TextBytesMax)
	d.time()
	d.UintMax(math.MaxUint8, "outcome")
	pass(runs.ListedTextMax)
	d.Bool()
	d.Refusal()
	d.Usage()
	d.Usage()
	if spent {
		for range d.UintMax(runs.SpentMax, "models of a run") {
			s.Spent = append(s.Spent, runs.Spending{Model: names.read(d, runs.NameBytesMax), Answers: d.UintMax(actor.UsageMax, "answers"), Unmeasured: d.UintMax(actor.UsageMax, "answers without usage"), Usage: d.Usage()})
		}
	}
	want := summarySum(run, value[:max(len(value)-8, 0)])
	if got := d.Raw(len(want)); d.Err() == nil && !bytes.Equal(got, want[:]) {
		d.Fail("differs from the row that was written")
	}
	return s, d.End()
}
