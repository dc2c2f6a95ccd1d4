// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
)

// FORMAT of a store has a checksum: a missing one is damage.
func TestFormatHasChecksum(t *testing.T) {
	dir := t.TempDir()
	mustClose(t, mustOpen(t, dir, Options{WriteBuffer: 1 << 20}))
	path := filepath.Join(dir, formatFile)
	b, err := os.ReadFile(path)
	if want := "troupe store 3 of node n1, crc32c 85212bf2\n"; err != nil || string(b) != want {
		t.Errorf("got %q, error %v, want %q", b, err, want)
	}
	for content, want := range map[string]string{
		"troupe store 3 of node n1\n": `file FORMAT: is damaged: reads "troupe store 3 of node n1\n", want `,
		formatLine(1, "n1"):           "file FORMAT: is of format 1, this program reads format 3: use the program that wrote it",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, "n1", Options{WriteBuffer: 1 << 20}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
	}
}

// Each flipped bit and each truncation of FORMAT is reported as damage of that file,
// by a server and by an examination.
func TestDamagedFormatIsNamed(t *testing.T) {
	dir := t.TempDir()
	mustClose(t, mustOpen(t, dir, Options{WriteBuffer: 1 << 20}))
	whole, err := os.ReadFile(filepath.Join(dir, formatFile))
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, at int, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, formatFile), content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, opened := Open(dir, "n1", Options{WriteBuffer: 1 << 20})
		if opened == nil || !strings.Contains(opened.Error(), "file FORMAT: is damaged: ") {
			t.Errorf("%s %d: got %v, want damage of FORMAT", what, at, opened)
		}
		if x := examine(t, dir); x.Wrong != 1 || !strings.Contains(x.Findings[0].What, "file FORMAT: is damaged: ") || x.Findings[0].Lost != "" {
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

// Of a FORMAT that is no line of a store, nothing is shown, and no more is read than the
// longest line has.
func TestForeignFormatIsNotShown(t *testing.T) {
	dir := t.TempDir()
	mustClose(t, mustOpen(t, dir, Options{WriteBuffer: 1 << 20}))
	if err := os.Remove(filepath.Join(dir, anchorFile)); err != nil {
		t.Fatal(err)
	}
	secret := "troupe store 1 of node n1 secret"
	for _, content := range []string{secret, secret + "\n", "secret\n", "troupe store 3 of node n1, crc32c secret00\n", strings.Repeat("secret ", 1<<20)} {
		if err := os.WriteFile(filepath.Join(dir, formatFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, opened := Open(dir, "n1", Options{WriteBuffer: 1 << 20})
		_, examined := Examine(dir, Options{}, nil)
		for _, err := range []error{opened, examined} {
			if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "file FORMAT: is damaged: is no line such as ") {
				t.Errorf("FORMAT of %d bytes: got error %v", len(content), err)
			}
		}
	}
	longest := strings.Repeat("n", actor.NameBytesMax)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d, err := Open(dir, actor.NodeID(longest), Options{WriteBuffer: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		mustClose(t, d)
	}
}
