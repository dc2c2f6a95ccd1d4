// SPDX-License-Identifier: Apache-2.0

// Command commits checks the titles and bodies of commits that are not yet on a main branch.
//
//	commits [-report] BASE...
//
// Checked are the commits of HEAD that are on no BASE. A BASE that does not exist or contains
// HEAD is left out, and without any BASE nothing is checked: history is not changed for its form.
// With -report problems are printed only.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"unicode/utf8"
)

func main() {
	report := flag.Bool("report", false, "print problems and exit with 0")
	flag.Parse()
	code, err := run(".", flag.Args(), os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "commits:", err)
		code = 1
	}
	if *report {
		code = 0
	}
	os.Exit(code)
}

// run prints the problems of the commits of a repository. It returns 1 if there is any.
func run(dir string, bases []string, out io.Writer) (code int, err error) {
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		text, err := cmd.Output()
		return strings.TrimSpace(string(text)), err
	}
	if _, err := git("rev-parse", "HEAD"); err != nil {
		fmt.Fprintln(out, "commits: not checked: the folder is no git repository")
		return 0, nil // a source archive
	}
	var old []string
	for _, base := range bases {
		if _, err := git("rev-parse", "--quiet", "--verify", base+"^{commit}"); err != nil {
			continue
		}
		if _, err := git("merge-base", "--is-ancestor", "HEAD", base); err != nil {
			old = append(old, "^"+base)
		}
	}
	if len(old) == 0 {
		fmt.Fprintln(out, "commits: none is checked: all are on", strings.Join(bases, ", "))
		return 0, nil
	}
	listed, err := git(append([]string{"log", "--no-merges", "--format=%h%x00%s%x00%b%x01", "HEAD"}, old...)...)
	if err != nil {
		return 1, fmt.Errorf("git log: %w", err)
	}
	checked, problems := 0, 0
	for commit := range strings.SplitSeq(listed, "\x01") {
		parts := strings.Split(strings.TrimSpace(commit), "\x00")
		if len(parts) != 3 {
			continue
		}
		checked++
		if err := problem(parts[1], parts[2]); err != nil {
			fmt.Fprintf(out, "commits: %s %q: %v\n", parts[0], parts[1], err)
			problems++
		}
	}
	fmt.Fprintf(out, "commits: %d of %d have a problem\n", problems, checked)
	return min(problems, 1), nil
}

const titleMax = 72 // characters

var (
	titleForm = regexp.MustCompile(`^[a-z0-9./_-]+(, [a-z0-9./_-]+)*: \S`)
	// notImperative matches the first word of a summary that is not imperative.
	notImperative = regexp.MustCompile(`: (a|an|the|what|who|whoever|which|where|nobody|somebody|it|there|\w+ed|\w+ing)\b`)
)

// problem returns the defect of a commit message, or nil.
func problem(title, body string) error {
	switch n := utf8.RuneCountInString(title); {
	case strings.TrimSpace(body) == "":
		return errors.New("want a body with the problem and the reason for the solution")
	case strings.HasPrefix(title, "Revert "):
		return nil
	case n > titleMax:
		return fmt.Errorf("want at most %d characters, got %d", titleMax, n)
	case !titleForm.MatchString(title):
		return errors.New(`want "package: imperative summary"`)
	case notImperative.MatchString(title):
		return errors.New(`want an imperative after the colon, such as "fix" or "add"`)
	}
	return nil
}
