// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
)

// profile calls the function do. It writes a CPU profile of the call to base.pprof,
// and its top 20 functions to base.txt.
func profile(base string, do func() error) error {
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return err
	}
	f, err := os.Create(base + ".pprof")
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err = do()
	pprof.StopCPUProfile()
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	top, err := exec.Command("go", "tool", "pprof", "-top", "-nodecount=20", f.Name()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go tool pprof: %w: %.200s", err, top)
	}
	return os.WriteFile(base+".txt", top, 0o644)
}

// fileName converts a row name to a file name.
func fileName(name string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return '-'
	}, strings.ReplaceAll(strings.ToLower(name), ",", "")), "-")
}
