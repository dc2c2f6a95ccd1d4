// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FORMAT of a new store has a checksum. Only early stores, which are of format 1, have
// none: with another format, a missing checksum is damage.
func TestFormatHasChecksum(t *testing.T) {
	dir := t.TempDir()
	mustClose(t, mustOpen(t, dir, Options{}))
	path := filepath.Join(dir, formatFile)
	b, err := os.ReadFile(path)
	if want := "troupe store 2 of node n1, crc32c b450ffc2\n"; err != nil || string(b) != want {
		t.Errorf("got %q, error %v, want %q", b, err, want)
	}
	for content, want := range map[string]string{
		"troupe store 2 of node n1\n": "file FORMAT: is damaged: reads ",
		"troupe store 1 of node n1\n": "file FORMAT: is of format 1, ",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, "n1", Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
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
