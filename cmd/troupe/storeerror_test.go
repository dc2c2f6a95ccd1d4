// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command that cannot use a damaged store names doctor, which describes all damage. The
// command that it prints runs.
func TestDamagedStoreNamesDoctor(t *testing.T) {
	for pattern, damage := range map[string]func(name string) error{
		"pebble/*.log":             func(name string) error { return os.Truncate(name, 100) },
		"pebble/marker.manifest.*": os.Remove,
		"ANCHOR":                   func(name string) error { return os.WriteFile(name, []byte("anchor"), 0o600) },
		"FORMAT":                   func(name string) error { return os.WriteFile(name, []byte("format"), 0o600) },
	} {
		dir, _ := writeRuns(t, 10)
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			if err := damage(name); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]string{{"serve", "--data", dir, "--listen", "127.0.0.1:0"}, {"runs", "list", "--data", dir}, {"runs", "show", "01", "--data", dir},
			{"keys", "list", "--data", dir}, {"keys", "create", "--data", dir}, {"backup", filepath.Join(t.TempDir(), "copy"), "--data", dir}} {
			code, _, stderr := runProgram(t, args...)
			if code != 1 || !strings.HasSuffix(stderr, "; to see what is lost: troupe doctor "+dir+"\n") {
				t.Errorf("%s, %s: exit code %d\n%s", pattern, args, code, stderr)
			}
		}
		if code, out, stderr := runProgram(t, "doctor", dir); code != 1 || !strings.Contains(out, "errors found") {
			t.Errorf("%s: doctor: exit code %d\n%s%s", pattern, code, out, stderr)
		}
	}
}

// A command that reads a folder without a store asks for another one. Only serve, which
// would create a store, asks for an empty one.
func TestFolderWithoutStore(t *testing.T) {
	foreign, other, empty := t.TempDir(), t.TempDir(), t.TempDir()
	for _, name := range []string{filepath.Join(foreign, "MANIFEST-000001"), filepath.Join(other, "notes")} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for dir, found := range map[string]string{foreign: ", but a foreign Pebble or RocksDB store (MANIFEST-000001)", other: ", but other files (notes)", empty: ""} {
		for _, args := range [][]string{{"doctor", dir}, {"runs", "list", "--data", dir}, {"keys", "list", "--data", dir}, {"keys", "revoke", "abc", "--data", dir},
			{"backup", filepath.Join(t.TempDir(), "copy"), "--data", dir}} {
			code, _, stderr := runProgram(t, args...)
			if code != 1 || !strings.HasSuffix(stderr, " holds no store"+found+"; want the folder that `troupe serve --data` uses\n") {
				t.Errorf("%s: exit code %d\n%s", args, code, stderr)
			}
		}
		code, _, stderr := runProgram(t, "restore", dir, "--data", filepath.Join(t.TempDir(), "new"))
		if code != 1 || !strings.HasSuffix(stderr, " holds no store"+found+"; want a folder that `troupe backup` has made\n") {
			t.Errorf("restore: exit code %d\n%s", code, stderr)
		}
		if dir == empty {
			continue
		}
		if code, _, stderr := runProgram(t, "serve", "--data", dir, "--listen", "127.0.0.1:0"); code != 1 || !strings.HasSuffix(stderr, ": name an empty directory\n") {
			t.Errorf("serve: exit code %d\n%s", code, stderr)
		}
	}
}

// Only serve and keys create create a store. Other commands report a mistyped folder.
func TestMistypedFolderIsNotCreated(t *testing.T) {
	typo := filepath.Join(t.TempDir(), "typo")
	for _, args := range [][]string{{"keys", "list", "--data", typo}, {"keys", "revoke", "abc", "--data", typo}, {"runs", "list", "--data", typo},
		{"backup", filepath.Join(t.TempDir(), "copy"), "--data", typo}, {"doctor", typo}} {
		code, _, stderr := runProgram(t, args...)
		if code == 0 || !strings.Contains(stderr, typo) || !strings.Contains(stderr, "does not exist") && !strings.Contains(stderr, "no such file or directory") {
			t.Errorf("%s: exit code %d\n%s", args, code, stderr)
		}
		if _, err := os.Lstat(typo); err == nil {
			t.Fatalf("%s has created the folder", args)
		}
	}
	if code, _, stderr := runProgram(t, "keys", "create", "--data", typo); code != 0 {
		t.Errorf("keys create: exit code %d\n%s", code, stderr)
	}
}
