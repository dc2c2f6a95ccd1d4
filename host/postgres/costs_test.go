// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package postgres

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/postgrestest"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
)

// spentBy returns the entries of a run of a user whose models answered at a time with this usage.
func spentBy(user string, number uint64, at actor.Time, usage runs.Usage) []store.Entry {
	id, run := actor.NewID("front", fmt.Sprint("s-", number)), actor.NewCallID(at, 1, number)
	call := actor.Call{ID: run, Root: run, To: id, Operation: actor.HandleMessageFull, Kind: actor.Waiting, Lane: actor.Normal, Left: 1000, Attempt: 1, Origin: actor.Human, Principal: user, Parts: actor.Text("x")}
	accepted := store.Entry{Actor: id, N: 1, Record: store.Accepted{At: at, Call: call}}
	ended := store.Entry{Actor: id, N: 2, Record: store.Ended{Call: run, At: at + 1, Until: at + 2, Reply: actor.Reply{Call: run, Run: run, Status: actor.Succeeded, Parts: actor.Text("y")}}}
	accepted.Summary = &runs.Summary{Run: run, Root: run, Actor: id, User: user, Status: runs.Running, Created: at}
	ended.Summary = &runs.Summary{Run: run, Root: run, Actor: id, User: user, Status: runs.Done, Created: at, Ended: at + 1, Outcome: actor.Succeeded, Usage: usage, Tree: usage.Add(usage)}
	return []store.Entry{accepted, ended}
}

// The tables have what runs cost from the transaction of the answer on, the query of the manual sums it by user and day, and
// rows of an earlier schema have it once they are written anew.
func TestMoneyByUserAndDay(t *testing.T) {
	manual, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	_, query, _ := strings.Cut(string(manual), "Money by user and day")
	_, query, _ = strings.Cut(query, "```sql\n")
	query, _, _ = strings.Cut(query, "```")
	server := postgrestest.Start(t)
	url := server.Database()
	s := mustOpen(t, url, Options{})
	const day = actor.Time(86_400_000_000_000)
	priced := func(cost int64) runs.Usage { return runs.Usage{Input: 7, Output: 3, Total: 10, Priced: 10, Cost: cost} }
	end := s.End()
	for number, run := range [][]store.Entry{
		spentBy("ann", 1, 20*day-2, priced(250_000)), spentBy("ann", 2, 20*day-3, runs.Usage{Total: 8, Priced: 5, Cost: 1}),
		spentBy("ann", 3, 20*day, priced(actor.UsageMax)), spentBy("bob", 4, 20*day, runs.Usage{Input: 4, Total: 4}), spentBy("eve", 5, 20*day, runs.Usage{}),
		spentBy("", 6, 21*day, priced(3)),
	} {
		b := batchAfter(t, end, run...)
		if err := s.Append(&b); err != nil {
			t.Fatalf("run %d: %v", number, err)
		}
		end = b.Mark()
	}
	const want = "default 1970-01-22 0.000003 0; ann 1970-01-21 9007199254.740991 0; bob 1970-01-21 0.000000 4; ann 1970-01-20 0.250001 3; "
	read := func(query string) (all string) {
		t.Helper()
		rows, err := s.gets.Query(context.Background(), "SELECT * FROM ("+strings.TrimSuffix(strings.TrimSpace(query), ";")+") AS answer")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var user, day, money, unpriced *string
			if err := rows.Scan(&user, &day, &money, &unpriced); err != nil {
				t.Fatal(err)
			}
			all += fmt.Sprintf("%s %s %s %s; ", *user, *day, *money, *unpriced)
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		return all
	}
	text := strings.NewReplacer("::date AS day", "::date::text AS day", ", 6) AS money", ", 6)::text AS money", "sum(unpriced_tokens) AS", "sum(unpriced_tokens)::text AS").Replace(query)
	if got := read(text); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	const tree = "SELECT 'tree', '', sum(tree_cost_micros)::text, sum(tree_unpriced_tokens)::text FROM troupe.runs"
	if got := read(tree); got != "tree  9007199255240999 14; " { // a sum of counts is at most the largest
		t.Errorf("got %s", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	// A database of the schema before, whose rows have no costs, and of none that followed.
	server.Exec(url, "DROP TABLE troupe.positions")
	server.Exec(url, "DROP VIEW troupe.runs")
	server.Exec(url, "ALTER TABLE troupe.run_rows DROP COLUMN cost_micros, DROP COLUMN unpriced_tokens, DROP COLUMN tree_cost_micros, DROP COLUMN tree_unpriced_tokens")
	server.Exec(url, "UPDATE troupe.schema SET version = 4")
	s = mustOpen(t, url, Options{})
	if got := read(text); got != "" {
		t.Errorf("before the rows are written anew: %s", got)
	}
	if err := s.Rebuild(); err != nil {
		t.Fatal(err)
	}
	if got := read(text); got != want {
		t.Errorf("written anew: %s, want %s", got, want)
	}
}
