// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/postgrestest"
	"github.com/troupe-run/troupe/runs"
	"github.com/troupe-run/troupe/store"
	"github.com/troupe-run/troupe/store/storetest"
)

// A store in a database gives the answers of every other store. Whatever the suite reads of runs and
// events, the tables show too.
func TestPostgresConforms(t *testing.T) { testConforms(t, 1) }

// So does one with several logs, of which another is written beside the one under test.
func TestPostgresWithSeveralLogsConforms(t *testing.T) { testConforms(t, 3) }

func testConforms(t *testing.T, logs int) {
	server := postgrestest.Start(t)
	url := server.Database()
	storetest.Run(t, func(t *rapid.T) func() (storetest.Store, error) {
		server.Exec(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'troupe %'") // of a draw that failed
		server.Exec(url, "DROP SCHEMA IF EXISTS troupe CASCADE")
		return func() (storetest.Store, error) {
			s, err := Open(url, storetest.Node, Options{logs: logs})
			if err != nil {
				return storetest.Store{}, err
			}
			reader := &tablesReader{Store: s, t: t}
			opened := storetest.Store{Log: s, Reader: reader, End: s.End(), Close: s.Close}
			if logs > 1 {
				opened.Beside = s.Ends()[1].Node
			}
			return opened, nil
		}
	})
}

// tablesReader compares answers about runs and events with the tables.
type tablesReader struct {
	*Store
	t *rapid.T
}

func (r *tablesReader) query(each func(pgx.Rows) error, query string, args ...any) {
	rows, err := r.gets.Query(context.Background(), query, args...)
	for err == nil && rows.Next() {
		err = each(rows)
	}
	if err == nil {
		err = rows.Err()
	}
	rows.Close()
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
}

// Events implements store.Reader.
func (r *tablesReader) Events(tenant string, run actor.CallID, after uint64, limit int) ([]store.RunEvent, error) {
	events, err := r.Store.Events(tenant, run, after, limit)
	var dropped store.EventsDropped
	if errors.As(err, &dropped) {
		r.query(func(rows pgx.Rows) error {
			r.t.Fatalf("events of run %s before %d are in a table", run, dropped.First)
			return nil
		}, "SELECT seq FROM troupe.event_rows WHERE run_id = $1 AND seq > $2 AND seq < $3 AND $3 > 0", run.String(), int64(after), int64(dropped.First))
	}
	if owner, known, err := r.Run(tenant, run); err != nil || !known || actor.IsSystemAgent(owner.Actor.Agent) {
		return events, err
	}
	if err != nil {
		return events, err
	}
	n := 0
	r.query(func(rows pgx.Rows) error {
		var seq int64
		var payload, kind string
		var at time.Time
		if err := rows.Scan(&seq, &payload, &kind, &at); err != nil {
			return err
		}
		if n >= len(events) || uint64(seq) != events[n].Seq {
			r.t.Fatalf("run %s: the table has event %d, the log has %d after %d", run, seq, len(events), after)
		}
		e, err := runs.Decode(events[n].Body) // those of the suite are no events of runs
		if !sameJSON(payload, AsJSON(events[n].Body)) || kind != e.Type.String() || err == nil && at.UnixMicro() != int64(e.At)/1000 {
			r.t.Fatalf("event %d of run %s: %s %s %s, want %s", seq, run, kind, at, payload, events[n].Body)
		}
		n++
		return nil
	}, "SELECT seq, payload_jsonb::text, type, ts FROM troupe.events WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3", run.String(), int64(after), limit)
	if n != len(events) {
		r.t.Fatalf("run %s: %d events in the table after %d, want %d", run, n, after, len(events))
	}
	return events, nil
}

// Runs implements store.Reader.
func (r *tablesReader) Runs(tenant string, f runs.Filter, before actor.CallID, limit int) (runs.Page, error) {
	page, err := r.Store.Runs(tenant, f, before, limit)
	if err != nil {
		return page, err
	}
	for i := range page.All {
		s := &page.All[i]
		var columns columns
		if addSummary(&columns, tenant, s); columns == nil {
			continue // of one of the runtime's own actors
		}
		found := false
		r.query(func(rows pgx.Rows) error {
			found = true
			values, err := rows.Values()
			if err != nil {
				return err
			}
			for at, v := range values {
				got, want := v, columns[at][0]
				if (got == nil) != (want == nil) {
					r.t.Fatalf("run %s: column %d is %v, want %v", s.Run, at, got, want)
				}
			}
			if status := values[5]; status != nil && status != s.Status.String() || values[1] == nil || values[3] != tenant {
				r.t.Fatalf("run %s: the table has %v, want %+v", s.Run, values, s)
			}
			return nil
		}, "SELECT * FROM troupe.run_rows WHERE run_id = $1", s.Run.String())
		if !found {
			r.t.Fatalf("run %s is not in the table", s.Run)
		}
	}
	if f == (runs.Filter{Calls: true}) && before.IsZero() && page.Next.IsZero() && len(page.All) < limit {
		r.query(func(rows pgx.Rows) error {
			var n int
			if err := rows.Scan(&n); err != nil || n != len(page.All) {
				r.t.Fatalf("%d runs of %s in the table, want %d, error %v", n, tenant, len(page.All), err)
			}
			return nil
		}, "SELECT count(*) FROM troupe.run_rows WHERE user_id = $1", tenant)
	}
	return page, nil
}

// sameJSON reports whether two texts are the same value.
func sameJSON(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// Every byte string becomes a value that a column takes.
func TestAsJSONIsTaken(t *testing.T) {
	server := postgrestest.Start(t)
	ctx := context.Background()
	c, err := pgx.Connect(ctx, server.Database())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx) //nolint:errcheck // the server ends
	try := func(b []byte) error {
		_, err := c.Exec(ctx, "SELECT $1::text::jsonb, $2::text", AsJSON(b), asText(string(b)))
		return err
	}
	deep := make([]byte, 0, 18_000)
	for range 9000 {
		deep = append(deep, '[')
	}
	for range 9000 {
		deep = append(deep, ']')
	}
	for _, b := range [][]byte{nil, []byte("null"), []byte("\x00"), []byte("\"a\\u0000b\""), []byte(`"\ud800"`), []byte(`"\udc00\ud800x"`), []byte(`"\ud83d\ude00"`), []byte(`"\\ud800"`), []byte("\"\xff\xfe\""),
		[]byte("1e400000"), []byte("-1e-400000"), []byte("1e99999999999999999999"), []byte(`{"a":1,"a":2}`), []byte("{"), []byte("\xef\xbb\xbf{}"), deep, []byte(`{"\u0000":"\u0000"}`), []byte(`"\\u0000"`)} {
		if err := try(b); err != nil {
			t.Errorf("%.40q: %v", b, err)
		}
	}
	alphabet := rapid.SampledFrom([]string{`"`, `\`, `\u0000`, `\ud800`, `\udc00`, `\ude00`, "u", "{", "}", "[", "]", ":", ",", "1", "e", "-", ".", "\x00", "\xff", "é", "null", " ", `"a"`, `"\\`, "1e5000"})
	rapid.Check(t, func(t *rapid.T) {
		b := []byte{}
		for _, s := range rapid.SliceOfN(alphabet, 0, 12).Draw(t, "pieces") {
			b = append(b, s...)
		}
		if rapid.Bool().Draw(t, "quoted") {
			b = append(append([]byte{'"'}, b...), '"')
		}
		if err := try(b); err != nil {
			t.Fatalf("%q as %q: %v", b, AsJSON(b), err)
		}
		var v, w any
		if json.Unmarshal(b, &v) == nil && (json.Unmarshal([]byte(AsJSON(b)), &w) != nil) {
			t.Fatalf("%q is JSON, %q is not", b, AsJSON(b))
		}
	})
}
