// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestPipelineOfToolFiles checks the steps of a pipeline against the other files of a folder.
func TestPipelineOfToolFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a": "tool_name = \"trip\"\nvia = \"pipeline\"\nsteps = [{tool = \"find\"}, {tool = \"gone\"}, {tool = \"other\"}]",
		"b": "tool_name = \"find\"\nurl = \"http://127.0.0.1:1/\"\ninput_schema = {type = \"object\", required = [\"city\"]}",
		"c": "tool_name = \"other\"\nvia = \"pipeline\"\nsteps = [{tool = \"find\", args = {city = \"Graz\"}}]",
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte("[tool]\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := ReadAgentFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, p := range f.Problems {
		got += fmt.Sprintln(p.Field, p.Text, p.Warning)
	}
	if want := "steps step 1: find requires the argument \"city\": add it to args or from false\n" +
		"steps no file here declares gone, and this program has no such tool; calls fail until it exists true\n" +
		"steps step 3: other is a pipeline itself; call its tools false\n"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

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
