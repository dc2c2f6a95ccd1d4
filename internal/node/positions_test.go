// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/logs"
)

// testPositions tests an implementation. open opens empty positions, those of another log or kind in the same place
// among them, again and again.
func testPositions(t *testing.T, open func(kind string, log int) logs.Positions) {
	t.Helper()
	read := func(p logs.Positions, name, want string, found bool) {
		t.Helper()
		if value, ok, err := p.Read(name); err != nil || ok != found || string(value) != want {
			t.Errorf("position of %s: %.40q, %v, %v, want %.40q, %v", name, value, ok, err, want, found)
		}
	}
	names := func(p logs.Positions, want ...string) {
		t.Helper()
		if all, err := p.Names(); err != nil || !slices.Equal(all, want) {
			t.Errorf("names %q, %v, want %q", all, err, want)
		}
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	p := open("webhook", 0)
	read(p, "ops", "", false)
	names(p)
	ok(p.Remove("ops")) // there is none
	large := `"` + strings.Repeat("x", 1<<20) + `"`
	for _, value := range []string{`{"batch":1}`, `{"batch":2}`, large, `"é"`} {
		ok(p.Write("ops", []byte(value)))
		read(p, "ops", value, true)
	}
	ok(p.Write("Zulu", []byte("1")))
	ok(p.Write("alpha.json", []byte("2"))) // a name may look like a file
	read(open("webhook", 0), "ops", `"é"`, true)
	names(p, "Zulu", "alpha.json", "ops")
	for _, other := range []logs.Positions{open("webhook", 1), open("traces", 0)} {
		read(other, "ops", "", false)
		names(other)
		ok(other.Write("ops", []byte("3")))
		read(other, "ops", "3", true)
	}
	read(p, "ops", `"é"`, true)
	ok(p.Remove("ops"))
	read(p, "ops", "", false)
	names(p, "Zulu", "alpha.json")
	read(open("webhook", 1), "ops", "3", true)
	if place := p.Place("ops"); !strings.Contains(place, "ops") {
		t.Errorf("place %q", place)
	}
}

func TestPositionsInFiles(t *testing.T) {
	dir := t.TempDir()
	c := &Config{Data: dir}
	testPositions(t, func(kind string, log int) logs.Positions {
		if kind == "traces" {
			return tracePositions(c, nil, log)
		}
		return webhookPositions(c, nil, log)
	})
	// The paths and bytes are those of all versions.
	for _, one := range []struct {
		positions  logs.Positions
		name, path string
	}{
		{webhookPositions(c, nil, 0), "pager", "webhooks/pager.json"},
		{webhookPositions(c, nil, 3), "pager", "webhooks/log-3/pager.json"},
		{tracePositions(c, nil, 0), "traces", "traces.json"},
		{tracePositions(c, nil, 3), "traces", "traces-3.json"},
	} {
		if err := one.positions.Write(one.name, []byte(one.path)); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, one.path)); err != nil || string(b) != one.path {
			t.Errorf("%s has %q, %v", one.path, b, err)
		}
	}
	// A crash leaves a file that was not complete, and it goes with its webhook.
	file := filepath.Join(dir, "webhooks", "gone.json.new")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := webhookPositions(c, nil, 0)
	if all, err := p.Names(); err != nil || !slices.Contains(all, "gone") {
		t.Errorf("names %q, %v", all, err)
	}
	if _, ok, err := p.Read("gone"); ok || err != nil {
		t.Errorf("a file that was not complete was read: %v", err)
	}
	if err := p.Remove("gone"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(file); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
	if err := p.Write("ops", make([]byte, 4<<20+1)); err == nil {
		t.Error("a position without a bound was written")
	}
}

// testTakeOver tests that positions of files move into others, which are empty.
func testTakeOver(t *testing.T, to logs.Positions) {
	t.Helper()
	files := disk.NewPositions(t.TempDir(), positionType)
	p := takenOver{to, files}
	put := func(in logs.Positions, name, value string) {
		t.Helper()
		if err := in.Write(name, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	put(files, "old", `{"batch":7}`)
	put(files, "both", `{"batch":1}`)
	put(to, "both", `{"batch":9}`)
	put(files, "gone", `{"batch":5}`)
	put(files, "damaged", `{"batch":`)
	if all, err := p.Names(); err != nil || !slices.Equal(all, []string{"both", "damaged", "gone", "old"}) {
		t.Errorf("names %q, %v", all, err)
	}
	for name, want := range map[string]string{"old": `{"batch":7}`, "both": `{"batch":9}`, "new": ""} {
		for range 2 {
			value, ok, err := p.Read(name)
			if err != nil || ok != (want != "") || string(value) != want {
				t.Errorf("%s: %s, %v, %v", name, value, ok, err)
			}
		}
		if value, _, err := to.Read(name); err != nil || !bytes.Equal(value, []byte(want)) {
			t.Errorf("%s was moved as %s, %v", name, value, err)
		}
		if _, ok, err := files.Read(name); ok || err != nil {
			t.Errorf("the file of %s is left: %v", name, err)
		}
	}
	if _, _, err := p.Read("damaged"); err == nil || !strings.Contains(err.Error(), "delete the file") || !strings.Contains(err.Error(), "damaged.json") {
		t.Errorf("a damaged file: %v", err)
	}
	if _, ok, err := to.Read("damaged"); ok || err != nil {
		t.Errorf("a damaged file was taken over: %v", err)
	}
	if err := p.Remove("gone"); err != nil {
		t.Error(err)
	}
	if _, ok, err := p.Read("gone"); ok || err != nil {
		t.Errorf("a removed position is left: %v", err)
	}
}

func TestPositionsOfFilesAreTakenOver(t *testing.T) {
	testTakeOver(t, disk.NewPositions(t.TempDir(), positionType))
}
