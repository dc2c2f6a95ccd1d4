// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestSecretIsCreatedOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o755); err != nil { // readable by other users
		t.Fatal(err)
	}
	var first []byte
	for i := range 3 {
		d, err := Open(dir, "n1", Options{FreeFloor: 1, WriteBuffer: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			secret, err := d.Secret()
			if err != nil || len(secret) != 32 || bytes.Equal(secret, make([]byte, 32)) {
				t.Fatalf("secret %x: %v", secret, err)
			}
			if first == nil {
				first = secret
			}
			if !bytes.Equal(secret, first) {
				t.Errorf("start %d: got a different secret", i)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, secretFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("permissions %v, want 0600: %v", info.Mode(), err)
	}
	d, err := Open(filepath.Join(t.TempDir(), "other"), "n1", Options{FreeFloor: 1, WriteBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if other, err := d.Secret(); err != nil || bytes.Equal(other, first) {
		t.Errorf("another store has the same secret, or none: %v", err)
	}
}

// A secret that was returned survives the loss of all unsynced data.
func TestSecretIsDurable(t *testing.T) {
	mem := vfs.NewCrashableMem()
	d, err := Open("data", "n1", Options{FreeFloor: 1, fs: mem})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := d.Secret()
	if err != nil {
		t.Fatal(err)
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = Open("data", "n1", Options{FreeFloor: 1, fs: crashed}); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if again, err := d.Secret(); err != nil || !bytes.Equal(secret, again) {
		t.Errorf("got %x, then %x: %v", secret, again, err)
	}
}

func TestInvalidSecretIsRejected(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	d, err := Open(dir, "n1", Options{FreeFloor: 1, WriteBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"", "short", strings.Repeat("x", secretBytes), strings.Repeat("x", 33), strings.Repeat("x", 1<<20)} {
		if err := os.WriteFile(filepath.Join(dir, secretFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if secret, err := d.Secret(); err == nil || !strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "xxx") {
			t.Errorf("%d bytes: got %x, error %v", len(content), secret, err)
		}
	}
	// A flipped bit is detected anywhere in the file.
	whole := append(bytes.Repeat([]byte("s"), secretBytes), secretChecksum(bytes.Repeat([]byte("s"), secretBytes))...)
	for i := range 8 * len(whole) {
		flipped := bytes.Clone(whole)
		flipped[i/8] ^= 1 << (i % 8)
		if err := os.WriteFile(filepath.Join(dir, secretFile), flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Secret(); err == nil || !strings.Contains(err.Error(), "SECRET: is damaged") {
			t.Fatalf("bit %d: got %v", i, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, secretFile), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if secret, err := d.Secret(); err != nil || string(secret) != string(whole[:secretBytes]) {
		t.Errorf("got %x, error %v", secret, err)
	}
	// The leftover of a crash during creation is not a secret and does not
	// prevent creating one.
	if err := os.Rename(filepath.Join(dir, secretFile), filepath.Join(dir, secretFile+tempSuffix)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Secret(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, secretFile)); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = Open(dir, "", Options{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Secret(); err == nil {
		t.Error("read-only open created a secret")
	}
	if names, err := filepath.Glob(filepath.Join(dir, secretFile+"*")); err != nil || len(names) > 0 {
		t.Errorf("files left: %v: %v", names, err)
	}
}
