// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
