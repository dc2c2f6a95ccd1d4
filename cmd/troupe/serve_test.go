// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The size of the write buffers reaches the store, also from a configuration file.
func TestWriteBufferIsConfigured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "troupe.toml")
	if err := os.WriteFile(file, []byte("write_buffer_mib = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "mem_table_size=33554432\n"},
		{[]string{"--write-buffer-mib", "2"}, "mem_table_size=2097152\n"},
		{[]string{"--config", file}, "mem_table_size=3145728\n"},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		startServer(t, dir, test.args...)
		found, err := filepath.Glob(filepath.Join(dir, "pebble", "OPTIONS-*"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v: got option files %v, %v", test.args, found, err)
		}
		options, err := os.ReadFile(found[0])
		if err != nil || !strings.Contains(string(options), test.want) {
			t.Errorf("%v: want %sgot %v %s", test.args, test.want, err, options)
		}
	}
}

func TestKeepIsDaysOrDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{"": 0, "30d": 30 * day, "1m": time.Minute, "12h": 12 * time.Hour, "1d12h": 36 * time.Hour} {
		if got, err := parseKeep(text); got != want || err != nil {
			t.Errorf("%q: got %s, error %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "59s", "-1d", "1d-1h", "30", "d", "1.5d", "d30", "30 d", "forever", "65536d", "65535d2000000h"} {
		if got, err := parseKeep(text); err == nil || !strings.Contains(err.Error(), "30d") {
			t.Errorf("%q: got %s, error %v, want one that names a valid time", text, got, err)
		}
	}
	if c, err := parseServe(t, `keep = "30d"`); err != nil || c.Keep != "30d" {
		t.Errorf("in a configuration file: got %+v, error %v", c, err)
	}
	for _, file := range []string{"keep = 30", `keep = "5s"`} {
		if _, err := parseServe(t, file); err == nil || !strings.Contains(err.Error(), "keep") {
			t.Errorf("%s: got error %v", file, err)
		}
	}
}
