// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/token"
	"os"
	"path"
	"regexp"
	"strings"
)

// renames maps old names and paths to new ones. A key is a name such as "sim.rareIn"
// or "runtime.Cell.ring", a member of any type such as "*.ring", or a path such as
// "host/" or "host/old.go".
type renames map[string]string

var (
	entry  = regexp.MustCompile(`^\s*(\S+)\s+(?:(?:->|→)\s+)?(\S+)\s*$`)
	suffix = regexp.MustCompile(`(/|\.go)$`)
)

// readRenames reads a map. No file is an empty map.
func readRenames(name string) (renames, error) {
	r := renames{}
	if name == "" {
		return r, nil
	}
	text, err := os.ReadFile(name)
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		m := entry.FindStringSubmatch(line)
		if strings.TrimSpace(line) != "" && (m == nil || !r.add(m[1], m[2])) {
			return nil, fmt.Errorf("%s:%d: %q is no entry, or another line contradicts it", name, i+1, line)
		}
	}
	return r, err
}

// add records one entry and reports whether it is valid.
func (r renames) add(from, to string) bool {
	isPath := suffix.MatchString(from)
	isName := strings.Contains(path.Base(from), ".") && token.IsIdentifier(to)
	if suffix.FindString(from) != suffix.FindString(to) || !isPath && !isName {
		return false
	}
	if !isPath && from[0] == '.' {
		from = ".." + strings.TrimLeft(from, ".")
	}
	if old, ok := r[from]; ok && old != to {
		return false
	}
	r[from] = to
	if parts := strings.Split(path.Base(from), "."); !isPath && len(parts) == 3 && parts[0] != "" {
		r["*."+parts[2]] = to
	}
	return true
}

// name returns the new name of full in the package in dir. If full is the name of a
// member after that of its type, only the new name of the member is returned. The
// map may use the old or the new folder of the package.
func (r renames) name(dir, full string) string {
	for _, key := range []string{dir + "." + full, r.path(dir) + "." + full, full} {
		if to, ok := r[key]; ok {
			return to
		}
	}
	return full[strings.LastIndexByte(full, '.')+1:]
}

// path returns the new path of a file or a folder. Without an entry of its own, the
// entry of the nearest enclosing folder applies.
func (r renames) path(p string) string {
	if to, ok := r[p]; ok && path.Ext(p) == ".go" {
		return to
	}
	for d := p; d != "." && d != "/"; d = path.Dir(d) {
		if to, ok := r[d+"/"]; ok {
			return path.Join(to, strings.TrimPrefix(p, d))
		}
	}
	return p
}
