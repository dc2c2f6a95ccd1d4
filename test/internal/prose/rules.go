// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A group is a set of phrases that docs/STYLE.md avoids.
type group struct {
	name    string
	pattern *regexp.Regexp
}

func (g group) count(s string) int { return len(g.pattern.FindAllStringIndex(s, -1)) }

var groups = []group{
	{"free-relative", phrase(`(what|who|whoever|whatever)\s+(is|are|was|were|comes?|came|stands?|stood|has|have|had|does|did|may|can|makes?|made|asks?|asked|follows?|followed)`,
		`(of|for|by|with|than|at|in|on)\s+(what|whom|whose|whoever)`, `how\s+(many|much|long|often|far|soon)\s+(it|they|there|that|this|a|an|the|one|of)`)},
	{"tell-say-hear", phrase(`tells?|told|telling|says?|said|saying|hears?|heard`)},
	{"person", phrase(`nobody|somebody|anybody|everybody|whoever|whom|someone\s+else`)},
	{"stand-come-by", phrase(`stands?|stood|comes?\s+(by|about|back)|goes\s+on|go\s+on|take[ns]?\s+up|took\s+up|give[ns]?\s+up|any\s+more|just\s+now|once\s+more|meanwhile|behind\s+it|besides?|is\s+there|are\s+there`)},
}

func phrase(alternatives ...string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(alternatives, "|") + `)\b`)
}

// A budget is the maximum rate of each group per 1,000 words.
type budget map[string]float64

// slack is the distance below the budget at which the budget must be lowered.
const slack = 0.15

func parseBudget(content string) (budget, error) {
	b := budget{}
	for line := range strings.Lines(content) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		limit, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fmt.Errorf("line %q: want GROUP NUMBER", strings.TrimSpace(line))
		}
		b[name] = limit
	}
	for _, g := range groups {
		if _, ok := b[g.name]; !ok {
			return nil, fmt.Errorf("no line for the group %s", g.name)
		}
	}
	return b, nil
}

// compare returns the groups whose rate exceeds the budget. It also returns the groups
// whose rate is so far below the budget that the budget must be lowered.
func (b budget) compare(total counts) (problems []string) {
	for _, g := range groups {
		switch rate := total.rate(g.name); {
		case rate > b[g.name]:
			problems = append(problems, fmt.Sprintf("%s: %.2f per 1,000 words, budget %.2f: rewrite the sentences listed above", g.name, rate, b[g.name]))
		case rate < b[g.name]-slack:
			problems = append(problems, fmt.Sprintf("%s: %.2f per 1,000 words, budget %.2f: lower the budget with -write", g.name, rate, b[g.name]))
		}
	}
	return problems
}

// lowered returns the budget with the measured rates, rounded up, where they are lower.
func (b budget) lowered(total counts) budget {
	low := budget{}
	for _, g := range groups {
		low[g.name] = min(b[g.name], float64(int(total.rate(g.name)*20)+1)/20)
	}
	return low
}

func (b budget) String() string {
	var s strings.Builder
	s.WriteString("# Maximum hits per 1,000 words. Only ever lowered: go run ./test/internal/prose -write\n")
	for _, g := range groups {
		fmt.Fprintf(&s, "%s %.2f\n", g.name, b[g.name])
	}
	return s.String()
}

const titleMax = 72

var (
	titleForm = regexp.MustCompile(`^[a-z0-9./_-]+(, [a-z0-9./_-]+)*: \S`)
	// notImperative matches the first word of a summary that is not imperative.
	notImperative = regexp.MustCompile(`: (a|an|the|what|who|whoever|which|where|nobody|somebody|it|there|\w+ed|\w+ing)\b`)
)

// titleProblem returns the defect of a commit title, or "".
func titleProblem(title string) string {
	switch {
	case strings.HasPrefix(title, "Revert "):
		return ""
	case utf8.RuneCountInString(title) > titleMax:
		return fmt.Sprintf("want at most %d characters, got %d", titleMax, utf8.RuneCountInString(title))
	case !titleForm.MatchString(title):
		return `want "package: imperative summary"`
	case notImperative.MatchString(title):
		return `want an imperative after the colon, such as "fix" or "add"`
	}
	return ""
}
