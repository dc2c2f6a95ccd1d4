// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/store"
)

// A new store has a checksum in FORMAT, and one without it stays readable.
func TestFormatChecksumIsOptional(t *testing.T) {
	dir := t.TempDir()
	mustClose(t, mustOpen(t, dir, Options{}))
	path := filepath.Join(dir, formatFile)
	b, err := os.ReadFile(path)
	if want := "troupe store 1 of node n1, crc32c e7c28392\n"; err != nil || string(b) != want {
		t.Errorf("got %q, error %v, want %q", b, err, want)
	}
	if err := os.WriteFile(path, []byte("troupe store 1 of node n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, dir, Options{}))
	if x := examine(t, dir); x.Wrong != 0 {
		t.Errorf("%+v", x.Findings)
	}
}

// Each flipped bit and each truncation of FORMAT is reported as damage of that file,
// by a server and by an examination.
func TestDamagedFormatIsNamed(t *testing.T) {
	dir := t.TempDir()
	mustClose(t, mustOpen(t, dir, Options{}))
	whole, err := os.ReadFile(filepath.Join(dir, formatFile))
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, at int, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, formatFile), content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, opened := Open(dir, "n1", Options{})
		if opened == nil || !strings.Contains(opened.Error(), "file FORMAT: is damaged: reads ") {
			t.Errorf("%s %d: got %v, want damage of FORMAT", what, at, opened)
		}
		if x := examine(t, dir); x.Wrong != 1 || !strings.Contains(x.Findings[0].What, "file FORMAT: is damaged: reads ") || x.Findings[0].Lost != "" {
			t.Errorf("%s %d: got %+v, want damage of FORMAT", what, at, x.Findings)
		}
	}
	for bit := range 8 * len(whole) {
		flipped := append([]byte(nil), whole...)
		flipped[bit/8] ^= 1 << (bit % 8)
		check("flip of bit", bit, flipped)
	}
	for n := range whole {
		check("truncation to bytes", n, whole[:n])
	}
}

// A store of an older format names the command that copies it into the current one.
func TestOlderFormatNamesMigrate(t *testing.T) {
	dir := t.TempDir()
	mustClose(t, mustOpen(t, dir, Options{}))
	if err := os.WriteFile(filepath.Join(dir, formatFile), []byte(formatLine(store.FormatVersion-1, "n1")), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, "n1", Options{})
	if want := "type `troupe migrate " + dir + " NEW`"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
