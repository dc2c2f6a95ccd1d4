// SPDX-License-Identifier: Apache-2.0

// Command prose measures the language of comments, docs, messages and test names against a budget.
//
// docs/STYLE.md explains what is counted. The budget is a maximum per group and
// 1,000 words. It only goes down: a measurement well below it fails too, until
// the budget is lowered with -write.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
)

const usage = `usage: go run ./test/internal/prose [-worst N] [-write] [-titles N]

Counts the phrases that docs/STYLE.md avoids, per 1,000 words, and compares the
rates with test/internal/prose/budget.txt. Run it from the root of the repository.

  -worst N        print the N texts with the most hits (default 10)
  -write          lower the budget to what was measured
  -titles N       check the titles of the newest N commits instead

Examples:

  go run ./test/internal/prose -worst 40
  go run ./test/internal/prose -titles 200
`

const budgetFile = "test/internal/prose/budget.txt"

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("prose", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() { fmt.Fprint(errs, usage) }
	worst := flags.Int("worst", 10, "")
	write := flags.Bool("write", false, "")
	titles := flags.Int("titles", 0, "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var problems []string
	var err error
	if *titles > 0 {
		problems, err = checkTitles(*titles)
	} else {
		problems, err = checkProse(out, *worst, *write)
	}
	if err != nil {
		fmt.Fprintln(errs, "prose:", err)
		return 1
	}
	for _, p := range problems {
		fmt.Fprintln(errs, p)
	}
	if len(problems) > 0 {
		return 1
	}
	return 0
}

// checkProse measures all tracked files, prints a table and returns what exceeds
// the budget.
func checkProse(out io.Writer, worst int, write bool) ([]string, error) {
	files, err := trackedFiles()
	if err != nil {
		return nil, err
	}
	var texts []text
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		found, err := textsOf(name, content)
		if err != nil {
			return nil, err
		}
		texts = append(texts, found...)
	}
	total := measure(texts)
	printTable(out, texts, total)
	printWorst(out, texts, worst)
	core, all := docWords(texts)
	fmt.Fprintf(out, "docs: %d words in README, guides, api, errors, ARCHITECTURE, RATIONALE, NAMES, BUGS and AGENTS; %d with STYLE and sim/README\n", core, all)

	content, err := os.ReadFile(budgetFile)
	if err != nil {
		return nil, err
	}
	budget, err := parseBudget(string(content))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", budgetFile, err)
	}
	if write {
		return nil, os.WriteFile(budgetFile, []byte(budget.lowered(total).String()), 0o644)
	}
	return budget.compare(total), nil
}

// trackedFiles returns the Go and Markdown files that git tracks, or if there is
// no git repository, those below the current folder.
func trackedFiles() ([]string, error) {
	listed, err := exec.Command("git", "ls-files", "-z", "*.go", "*.md").Output()
	if err != nil {
		return walkedFiles()
	}
	var files []string
	for name := range strings.SplitSeq(strings.Trim(string(listed), "\x00"), "\x00") {
		if _, err := os.Stat(name); err == nil { // a deleted file is listed until the deletion is committed
			files = append(files, name)
		}
	}
	return files, nil
}

func walkedFiles() (files []string, err error) {
	err = filepath.WalkDir(".", func(name string, d os.DirEntry, err error) error {
		if ext := path.Ext(name); err == nil && !d.IsDir() && (ext == ".go" || ext == ".md") {
			files = append(files, filepath.ToSlash(name))
		}
		return err
	})
	return files, err
}

// counts are the words and the hits per group of some texts.
type counts struct {
	words int
	hits  map[string]int
}

// rate returns the hits of a group per 1,000 words.
func (c counts) rate(group string) float64 {
	return 1000 * float64(c.hits[group]) / float64(max(c.words, 1))
}

func measure(texts []text) counts {
	total := counts{hits: map[string]int{}}
	for _, t := range texts {
		total.words += len(strings.Fields(t.content))
		for _, g := range groups {
			total.hits[g.name] += g.count(t.content)
		}
	}
	return total
}

// packageWordsMin is the minimum number of words of a package or page in the table.
const packageWordsMin = 300

func printTable(out io.Writer, texts []text, total counts) {
	byPackage := map[string][]text{}
	for _, t := range texts {
		byPackage[t.section()] = append(byPackage[t.section()], t)
	}
	fmt.Fprintf(out, "%-28s", "hits per 1,000 words")
	for _, g := range groups {
		fmt.Fprintf(out, "%15s", g.name)
	}
	fmt.Fprintf(out, "%9s\n", "words")
	names := make([]string, 0, len(byPackage))
	for name := range byPackage {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if c := measure(byPackage[name]); c.words >= packageWordsMin {
			printRow(out, name, c)
		}
	}
	printRow(out, "all", total)
}

func printRow(out io.Writer, name string, c counts) {
	fmt.Fprintf(out, "%-28s", name)
	for _, g := range groups {
		fmt.Fprintf(out, "%15.2f", c.rate(g.name))
	}
	fmt.Fprintf(out, "%9d\n", c.words)
}

func printWorst(out io.Writer, texts []text, n int) {
	sorted := slices.Clone(texts)
	slices.SortStableFunc(sorted, func(a, b text) int { return b.hits() - a.hits() })
	for _, t := range sorted[:min(n, len(sorted))] {
		if t.hits() == 0 {
			return
		}
		fmt.Fprintf(out, "  %s:%d: %.160s\n", t.file, t.line, strings.Join(strings.Fields(t.content), " "))
	}
}

// docWords returns the number of words of the core pages, and of all pages that a
// user or maintainer is expected to read. Tables of figures and the pages of the
// specification are not included.
func docWords(texts []text) (core, all int) {
	for _, t := range texts {
		n := len(strings.Fields(t.content))
		switch page := path.Base(t.file); {
		case page == "STYLE.md" || t.file == "sim/README.md":
			all += n
		case path.Dir(t.file) == "docs" && page != "PERFORMANCE.md" || t.file == "README.md" || t.file == "AGENTS.md":
			core += n
			all += n
		}
	}
	return core, all
}

// checkTitles returns those of the newest n commits whose title breaks the form.
func checkTitles(n int) ([]string, error) {
	if err := exec.Command("git", "rev-parse", "--git-dir").Run(); err != nil {
		return nil, nil // a source archive has no commits
	}
	listed, err := exec.Command("git", "log", "--no-merges", "--format=%h %s", "-n", strconv.Itoa(n)).Output()
	if err != nil {
		return nil, fmt.Errorf("git log: %w", err)
	}
	var problems []string
	for line := range strings.Lines(string(listed)) {
		hash, title, _ := strings.Cut(strings.TrimSpace(line), " ")
		if why := titleProblem(title); why != "" {
			problems = append(problems, fmt.Sprintf("%s %q: %s", hash, title, why))
		}
	}
	return problems, nil
}
