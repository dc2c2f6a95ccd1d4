// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

const (
	archiveName     = "output.txt.gz" // in the folder of the modules
	archiveBytesMax = 512 << 10       // maximum size of the compressed archive
	sectionBytesMax = 32 << 10        // maximum output of one config; the middle of a longer one is left out
)

// An Archive holds the output of TLC for configs, by name, each with the commit at which TLC ran.
// Its text has a section for each config, which begins with a line such as
//
//	==== Calls_chain at d3c75a1
type Archive map[string]Section

// A Section is the output of TLC for one config.
type Section struct {
	Commit string // followed by "with changes" if a module or a config was not committed
	Output string
}

var sectionLine = regexp.MustCompile(`(?m)^==== (\S+) at (.+)\n`)

// ReadArchive reads a compressed archive. A file that does not exist is an empty archive.
func ReadArchive(path string) (Archive, error) {
	compressed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Archive{}, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	text, err := io.ReadAll(io.LimitReader(r, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	a := Archive{}
	heads := sectionLine.FindAllSubmatchIndex(text, -1)
	for i, at := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		a[string(text[at[2]:at[3]])] = Section{Commit: string(text[at[4]:at[5]]), Output: string(text[at[1]:end])}
	}
	return a, nil
}

// Keep adds the output of a run, which replaces the output of an earlier run.
func (a Archive) Keep(r Result, commit string) error {
	b, err := os.ReadFile(r.Output)
	if err != nil {
		return err
	}
	text := scratchPath.ReplaceAllString(string(b), "")
	if len(text) > sectionBytesMax {
		const half = sectionBytesMax / 2
		text = fmt.Sprintf("%s\n… %d bytes left out …\n%s", text[:half], len(text)-2*half, text[len(text)-half:])
	}
	a[r.Config.Name] = Section{Commit: commit, Output: strings.TrimSuffix(text, "\n") + "\n"}
	return nil
}

// scratchPath is the folder in which TLC has run.
var scratchPath = regexp.MustCompile(`/\S*/tlc\d+/`)

// Write writes the archive without the sections of configs that no longer exist.
func (a Archive) Write(path string, all []Config) error {
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if slices.ContainsFunc(all, func(c Config) bool { return c.Name == name }) {
			fmt.Fprintf(w, "==== %s at %s\n%s", name, a[name].Commit, a[name].Output)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if n := compressed.Len(); n > archiveBytesMax {
		return fmt.Errorf("%s would have %d bytes, the maximum is %d: lower sectionBytesMax", path, n, archiveBytesMax)
	}
	return os.WriteFile(path, compressed.Bytes(), 0o644)
}

// commitOf returns the current commit of the folder of the modules.
func commitOf(ctx context.Context, dir string) (string, error) {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse: %w", err)
	}
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", dir+"/*.tla", dir+"/*.cfg", dir+"/"+derivedName).Output()
	if err != nil {
		return "", fmt.Errorf("git status: %w", err)
	}
	commit := strings.TrimSpace(string(head))
	if len(changes) > 0 {
		commit += " with changes"
	}
	return commit, nil
}
