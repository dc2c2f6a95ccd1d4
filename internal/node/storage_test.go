// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A folder whose store is in a database does not get a second store, and one with a store of its own is
// not left behind.
func TestPlaceOfTheStore(t *testing.T) {
	const url = "postgres://u:s3cret@db/troupe"
	folder, moved := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "FORMAT"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MarkPlace(moved, url); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, url, want string }{
		{folder, "", ""},
		{folder, url, "has a store of its own"},
		{moved, url, ""},
		{moved, "", "give --store"},
		{filepath.Join(folder, "absent"), url, ""},
		{filepath.Join(folder, "absent"), "", ""},
	} {
		err := checkPlace(c.dir, c.url)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%s with %q: %v, want %q", c.dir, c.url, err, c.want)
		}
	}
	if place := Place(moved); strings.Contains(place, "s3cret") || !strings.Contains(place, "db/troupe") {
		t.Errorf("place: %s", place)
	}
}
