// SPDX-License-Identifier: Apache-2.0

//go:build postgres

package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/troupe-run/troupe/internal/postgrestest"
)

var (
	clusterKills   = flag.Int("kills", 4, "kills of TestPostgresCluster")
	clusterMembers = flag.Int("members", 2, "its orchestrators")
	clusterFaults  = flag.Bool("faults", false, "drain an orchestrator, let the database crash, or restart all orchestrators, in three of four cycles before the kill")
)

// The orchestrators of a cluster, which all serve, are killed or frozen in turn, and others take over. make cluster lets
// them be drained and restarted too, and the database crash.
func TestPostgresCluster(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "troupe")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/troupe").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	database := postgrestest.Start(t)
	url := database.Database()
	t.Setenv("TROUPE_STORE", url)
	var out, stderr strings.Builder
	c := &harness{kills: *clusterKills, bin: bin, store: url, within: time.Duration(1+*clusterKills) * time.Minute, members: *clusterMembers, freeze: true}
	if *clusterFaults {
		c.crashDatabase = func() { database.Kill(syscall.SIGQUIT); database.Run() }
	}
	if code := c.main(&out, &stderr); code != 0 {
		t.Fatalf("code %d\n%s\n%s", code, out.String(), stderr.String())
	}
	if !strings.Contains(out.String(), " lost=0 duplicated=0 reordered=0 wrong=0\n") {
		t.Errorf("unexpected output:\n%s", out.String())
	}
	if n := rowsOf(t, url, "SELECT log::text FROM troupe.logs WHERE batch > 0"); len(n) != 16 {
		t.Errorf("%d logs have entries, want 16", len(n))
	}
	t.Log(out.String())
}

// The server is killed while its store is in a database. Afterwards the tables are those that the log
// gives, also at the end of a way into a folder and back, and the queries of the manual have answers.
func TestPostgresUnderRepeatedKills(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "troupe")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/troupe").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	database := postgrestest.Start(t)
	url := database.Database()
	t.Setenv("TROUPE_STORE", url)
	var out, stderr strings.Builder
	c := &harness{kills: 4, bin: bin, store: url, within: 5 * time.Minute}
	if code := c.main(&out, &stderr); code != 0 {
		t.Fatalf("code %d\n%s\n%s", code, out.String(), stderr.String())
	}
	if !strings.Contains(out.String(), " lost=0 duplicated=0 reordered=0 wrong=0\n") {
		t.Errorf("unexpected output:\n%s", out.String())
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(bin, args...)
		cmd.Env = slicesWithout(os.Environ(), "TROUPE_STORE=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
		return string(out)
	}
	written := contents(t, url)
	for _, table := range tables {
		if table != "context_blobs" && len(written[table]) == 0 {
			t.Errorf("table %s is empty", table)
		}
	}
	database.Exec(url, "DELETE FROM troupe.tool_calls")
	run("doctor", "--store", url, "--tables")
	compare(t, "written anew", contents(t, url), written)

	folder, again := filepath.Join(t.TempDir(), "data"), database.Database()
	run("migrate", "--from", url, "--to", folder)
	run("doctor", folder)
	for _, command := range [][]string{{"runs", "list", "--user", "*", "--limit", "200", "--json"}, {"runs", "list", "--system", "--json"}} {
		inDatabase, inFolder := run(append(command, "--store", url)...), run(append(command, "--data", folder)...)
		if inDatabase != inFolder || !strings.Contains(inDatabase, `"run_id"`) {
			t.Errorf("%s: got from the database\n%s\nand from the folder\n%s", command, inDatabase, inFolder)
		}
	}
	run("migrate", "--from", folder, "--to", again)
	run("doctor", "--store", again)
	compare(t, "after a way into a folder and back", contents(t, again), written)
	queries(t, url)
}

func slicesWithout(all []string, prefix string) (left []string) {
	for _, s := range all {
		if !strings.HasPrefix(s, prefix) {
			left = append(left, s)
		}
	}
	return left
}

var tables = []string{"sessions", "run_rows", "event_rows", "tool_calls", "approvals", "agents", "tools", "context_blobs"}

// contents returns the rows of the tables as text.
func contents(t *testing.T, url string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, table := range tables {
		all[table] = rowsOf(t, url, "SELECT row_to_json(x)::text FROM troupe."+table+" x ORDER BY 1")
	}
	return all
}

// rowsOf returns the rows of a query, each of which is a text.
func rowsOf(t *testing.T, url, query string) []string {
	t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx) //nolint:errcheck // it only read
	rows, err := c.Query(ctx, query)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func compare(t *testing.T, what string, got, want map[string][]string) {
	t.Helper()
	for _, table := range tables {
		for i := range max(len(got[table]), len(want[table])) {
			at := func(rows []string) string {
				if i < len(rows) {
					return rows[i]
				}
				return "nothing"
			}
			if at(got[table]) != at(want[table]) {
				t.Errorf("%s: table %s: row %d\n%.400s\nwant\n%.400s", what, table, i, at(got[table]), at(want[table]))
				break
			}
		}
	}
}

// queries runs each query of the manual.
func queries(t *testing.T, url string) {
	t.Helper()
	manual, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx) //nolint:errcheck // it only read
	n, answered := 0, 0
	for _, block := range strings.Split(string(manual), "```sql\n")[1:] {
		query, _, _ := strings.Cut(block, "```")
		rows, err := c.Query(ctx, query)
		if err == nil {
			for rows.Next() {
				answered++
				break
			}
			rows.Close()
			err = rows.Err()
		}
		if n++; err != nil {
			t.Errorf("%s\n%v", query, err)
		}
	}
	if n != 11 || answered < 7 {
		t.Errorf("%d queries, %d with rows, want 11 and 7", n, answered)
	}
}
