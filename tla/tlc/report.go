// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Report is the result of a run of TLC, parsed from its output.
type Report struct {
	Version   string
	Complete  bool   // the search ended and found no error
	Violated  string // name of the violated property, or "deadlock"; empty if none was violated
	Err       string // first line of any other error, which prevented a result
	Generated int    // states found, repeats included
	Distinct  int
	Queued    int // states found but not searched
	Depth     int
	Length    int // of the counterexample, in states; 0 if there is none
}

var (
	versionLine     = regexp.MustCompile(`(?m)^TLC2 Version (\S+)`)
	safetyLine      = regexp.MustCompile(`(?m)^Error: (?:Invariant|Action property) (\S+) is violated`)
	livenessLine    = regexp.MustCompile(`(?m)^Error: Temporal properties were violated\.`)
	deadlockLine    = regexp.MustCompile(`(?m)^Error: Deadlock reached\.`)
	errorLine       = regexp.MustCompile(`(?m)^(?:Error: .*|.*Exception.*|\*\*\*Parse Error\*\*\*)$`)
	countLine       = regexp.MustCompile(`(?m)^(\d+) states generated, (\d+) distinct states found, (\d+) states left on queue\.`)
	stateNumberLine = regexp.MustCompile(`(?m)^State (\d+): <`)
	depthLine       = regexp.MustCompile(`(?m)^The depth of the complete state graph search is (\d+)\.`)
)

const completeLine = "\nModel checking completed. No error has been found.\n"

// ParseReport parses the output of TLC. TLC does not name a violated liveness property. A config
// that checks a liveness property MUST therefore check no other property.
func ParseReport(c Config, output string) Report {
	r := Report{
		Version:   submatch(versionLine, output),
		Complete:  strings.Contains(output, completeLine),
		Generated: number(countLine, 1, output),
		Distinct:  number(countLine, 2, output),
		Queued:    number(countLine, 3, output),
		Depth:     number(depthLine, 1, output),
		Length:    number(stateNumberLine, 1, output),
	}
	switch {
	case safetyLine.MatchString(output):
		r.Violated = submatch(safetyLine, output)
	case deadlockLine.MatchString(output):
		r.Violated = "deadlock"
	case livenessLine.MatchString(output):
		if len(c.Properties) != 1 {
			r.Err = fmt.Sprintf("a liveness property is violated and %d are checked: check one per config", len(c.Properties))
			return r
		}
		r.Violated = c.Properties[0]
	default:
		if m := errorLine.FindString(output); m != "" {
			r.Err = m
		}
	}
	return r
}

func submatch(re *regexp.Regexp, text string) string {
	if m := re.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// number returns the figure in the last line that re matches. Earlier lines are figures that TLC
// prints while it runs.
func number(re *regexp.Regexp, group int, text string) int {
	m := re.FindAllStringSubmatch(text, -1)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[len(m)-1][group]) // digits, by the expression
	return n
}
