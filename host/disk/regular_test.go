// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"os"
	"path/filepath"
	"testing"
)

// A file is replaced as a whole: one that cannot be written keeps its content.
func TestWriteFileReplacesAsAWhole(t *testing.T) {
	name := filepath.Join(t.TempDir(), "CLOCK")
	read := func(want string) {
		t.Helper()
		if got, err := ReadFile(name, 64); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	for _, content := range []string{"first", "second"} {
		if err := WriteFile(name, []byte(content)); err != nil {
			t.Fatal(err)
		}
		read(content)
	}
	if err := os.MkdirAll(filepath.Join(name+tempSuffix, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(name, []byte("third")); err == nil {
		t.Error("a write to a folder succeeds")
	}
	read("second")
}
