// SPDX-License-Identifier: Apache-2.0

package mdsection

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReplace(t *testing.T) {
	const page = "prose\n<!-- a:begin -->\nold\n<!-- a:end -->\nmore\n<!-- b:begin -->\n<!-- b:end -->\n"
	for _, c := range []struct{ title, page, name, text, want, err string }{
		{title: "prose and the other section stay", page: page, name: "a", text: "\nnew\n",
			want: "prose\n<!-- a:begin -->\n\nnew\n\n<!-- a:end -->\nmore\n<!-- b:begin -->\n<!-- b:end -->\n"},
		{title: "an empty section is filled", page: page, name: "b", text: "new",
			want: "prose\n<!-- a:begin -->\nold\n<!-- a:end -->\nmore\n<!-- b:begin -->\n\nnew\n\n<!-- b:end -->\n"},
		{title: "no section", page: page, name: "c", err: "want one section"},
		{title: "no end", page: "<!-- a:begin -->\n", name: "a", err: "want one section"},
		{title: "two of a name", page: page + page, name: "a", err: "want one section"},
		{title: "the end comes first", page: "<!-- a:end -->\n" + page, name: "a", err: "want one section"},
		{title: "it begins twice", page: page + "<!-- a:begin -->\n", name: "a", err: "want one section"},
		{title: "it ends twice", page: page + "<!-- a:end -->\n", name: "a", err: "want one section"},
		{title: "a mark in the text", page: page, name: "a", text: "x\n<!-- a:begin -->\ny", err: "contains its marks"},
		{title: "the other mark in the text", page: page, name: "a", text: "x\n<!-- a:end -->\ny", err: "contains its marks"},
	} {
		t.Run(c.title, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "page.md")
			if err := os.WriteFile(file, []byte(c.page), 0o640); err != nil {
				t.Fatal(err)
			}
			want := c.want
			err := Replace(file, c.name, c.text)
			if c.err != "" {
				want = c.page
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want one containing %q", err, c.err)
				}
			} else if err != nil {
				t.Error(err)
			}
			if text, err := Text(file, c.name); c.err == "" && (err != nil || text != strings.Trim(c.text, "\n")) {
				t.Errorf("the text is %q, %v", text, err)
			}
			if got, _ := os.ReadFile(file); string(got) != want {
				t.Errorf("the page is\n%s\nwant\n%s", got, want)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
			if left, _ := os.ReadDir(dir); len(left) != 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	if err := Replace(filepath.Join(t.TempDir(), "none.md"), "a", ""); !os.IsNotExist(err) {
		t.Errorf("no page: %v", err)
	}
}
