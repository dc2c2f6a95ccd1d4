// SPDX-License-Identifier: Apache-2.0

// Package mdsection replaces generated sections of Markdown files and leaves the prose around them unchanged.
//
// A section is delimited by two HTML comments, each on a line of its own:
//
//	<!-- bench:begin -->
//	<!-- bench:end -->
package mdsection

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Replace puts text between the two marks of the section called name. It returns
// an error unless the file has each mark exactly once. The file is replaced
// atomically.
func Replace(file, name, text string) error {
	head, _, tail, err := cut(file, name)
	if err != nil {
		return err
	}
	begin, end := marks(name)
	if text = strings.Trim(text, "\n"); strings.Contains(text, begin) || strings.Contains(text, end) {
		return fmt.Errorf("%s: the text for section %q contains its marks", file, name)
	}
	return write(file, head+begin+"\n"+text+"\n\n"+end+tail)
}

// Text returns the current text of a section. A long-running program calls it
// first, to fail early if the section is missing.
func Text(file, name string) (string, error) {
	_, text, _, err := cut(file, name)
	return strings.Trim(text, "\n"), err
}

func marks(name string) (begin, end string) {
	return "<!-- " + name + ":begin -->\n", "<!-- " + name + ":end -->"
}

// cut reads a file and splits it at the marks of a section.
func cut(file, name string) (head, text, tail string, err error) {
	page, err := os.ReadFile(file)
	if err != nil {
		return "", "", "", err
	}
	begin, end := marks(name)
	head, rest, opens := strings.Cut(string(page), begin)
	text, tail, closes := strings.Cut(rest, end)
	if !opens || !closes || strings.Contains(tail, begin) || strings.Contains(tail, end) || strings.Contains(head, end) {
		return "", "", "", fmt.Errorf("%s: want one section %q, between the lines %s and %s", file, name, strings.TrimSpace(begin), end)
	}
	return head, text, tail, nil
}

// write replaces a file atomically and keeps its permissions.
func write(file, text string) (err error) {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
