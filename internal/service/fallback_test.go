// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestFallbackOfToolFiles checks fallbacks against the other files of a folder.
func TestFallbackOfToolFiles(t *testing.T) {
	for other, want := range map[string]string{
		"tool_name = \"spare\"\ninput_schema = {type = \"object\"}":                        "",
		"tool_name = \"spare\"\ninput_schema = {type = \"object\", required = [\"city\"]}": `fallback spare requires the argument "city", which this tool does not false`,
		"tool_name = \"another\"": "fallback no file here declares spare, and this program has no such tool; until it exists the failure of this one stays true",
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"a": "tool_name = \"get\"\nfallback = \"spare\"", "b": other} {
			if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte("[tool]\nurl = \"http://127.0.0.1:1/\"\n"+text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := ReadAgentFiles(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range f.Problems {
			got += fmt.Sprint(p.Field, " ", p.Text, " ", p.Warning)
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", other, got, want)
		}
	}
}
