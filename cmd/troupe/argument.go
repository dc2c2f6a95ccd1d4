// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/dispatcher"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/runs"
)

// readArgument returns the text of an argument: - reads standard input, @FILE a file,
// and @@ begins a text with one @. A text is at most as long as a message.
func readArgument(name, text string) (string, error) {
	limit := dispatcher.DefaultLimits().MessageBytesMax
	var b []byte
	var err error
	switch {
	case text == "-":
		if b, err = io.ReadAll(io.LimitReader(os.Stdin, int64(limit)+1)); err == nil && len(b) > limit {
			err = fmt.Errorf("standard input has more than %d bytes", limit)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	case strings.HasPrefix(text, "@@"):
		return text[1:], nil
	case strings.HasPrefix(text, "@"):
		if b, err = service.ReadFile(text[1:], limit); err != nil {
			return "", fmt.Errorf("%s: %w; to send a text that begins with @, write @@", name, err)
		}
	default:
		b = []byte(text)
	}
	if !utf8.Valid(b) {
		return "", fmt.Errorf("%s: want UTF-8, got other bytes", name)
	}
	return string(b), nil
}

// readFile returns the text of a file, or of standard input if its name is -. It is at most as long as a message.
func readFile(name, file string) (string, error) {
	if file == "-" {
		return readArgument(name, file)
	}
	b, err := service.ReadFile(file, dispatcher.DefaultLimits().MessageBytesMax)
	if err == nil && !utf8.Valid(b) {
		err = errors.New("want UTF-8, got other bytes")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(b), nil
}

// agentPath returns the path of an agent, or an error if the argument is no ID: a
// display name with other characters cannot be in a path.
func agentPath(flags ServerFlags, id string) (string, error) {
	if actor.CheckName(id) != nil {
		return "", fmt.Errorf("%q: want the agent's ID, of letters, digits, '.', '_' and '-' (see: %s)", id, flags.hint("agents list", nil))
	}
	return "/v1/agents/" + id, nil
}

// runPrefix is the beginning of a run ID. Eight digits are less than a minute apart.
var runPrefix = regexp.MustCompile(`^[0-9a-fA-F][0-9a-fA-F-]{3,34}$`)

const (
	prefixRunsMax   = 200 // newest runs in which a prefix is looked up
	candidatesShown = 5
)

// treesMax is the maximum number of trees in which a beginning is looked up that is that of no root.
const treesMax = 50

// prefixTimes returns the times at which runs with that beginning of an ID can have begun, in ms.
func prefixTimes(prefix string) (first, last uint64) {
	digits := strings.ReplaceAll(prefix, "-", "")
	digits = digits[:min(len(digits), 12)]
	first, _ = strconv.ParseUint(digits+strings.Repeat("0", 12-len(digits)), 16, 64)
	last, _ = strconv.ParseUint(digits+strings.Repeat("f", 12-len(digits)), 16, 64)
	return first, last
}

// calledRuns returns the runs with a beginning that other runs called, in the newest trees that were open at that time.
func calledRuns(from source, prefix string, roots []runView) (found []runView, err error) {
	first, last := prefixTimes(prefix)
	read := 0
	for i := range roots {
		began, _ := runs.ParseTime(roots[i].Created)
		ended, endErr := runs.ParseTime(roots[i].Ended)
		if read == treesMax || uint64(began)/1e6 > last || endErr == nil && uint64(ended)/1e6 < first {
			continue
		}
		read++
		page, err := runsPage(from, url.Values{"limit": {strconv.Itoa(prefixRunsMax)}, "root_run_id": {roots[i].Run}})
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			if r.Run != roots[i].Run && strings.HasPrefix(r.Run, prefix) {
				found = append(found, r)
			}
		}
	}
	return found, nil
}

func runsPage(from source, q url.Values) ([]runView, error) {
	body, err := from.runs(q)
	if err != nil {
		return nil, err
	}
	var in struct {
		Runs []runView `json:"runs"`
	}
	return in.Runs, json.Unmarshal(body, &in)
}

// resolveRun returns the run that an argument names, by its ID or by a beginning that
// only one of the newest runs has, or else only one of those that they called.
func resolveRun(from source, text, list string) (actor.CallID, error) {
	id, err := actor.ParseCallID(text)
	if err == nil {
		return id, nil
	}
	if !runPrefix.MatchString(text) {
		return id, fmt.Errorf("%w, or at least its first four characters (see: %s)", err, list)
	}
	prefix := strings.ToLower(text)
	roots, err := runsPage(from, url.Values{"limit": {strconv.Itoa(prefixRunsMax)}})
	if err != nil {
		return id, err
	}
	matches := slices.DeleteFunc(slices.Clone(roots), func(r runView) bool { return !strings.HasPrefix(r.Run, prefix) })
	if len(matches) == 0 {
		if matches, err = calledRuns(from, prefix, roots); err != nil {
			return id, err
		}
	}
	var found []string
	for _, r := range matches {
		found = append(found, "  "+r.Run+"  "+localTime(r.Created)+"  "+r.Actor)
		if len(found) == 1 {
			id, err = actor.ParseCallID(r.Run)
		}
	}
	switch {
	case len(found) == 0:
		return id, fmt.Errorf("none of the newest %d runs begins with %s, nor does a run that they called; write the whole ID (see: %s)", prefixRunsMax, text, list)
	case len(found) > 1:
		more := ""
		if n := len(found) - candidatesShown; n > 0 {
			found, more = found[:candidatesShown], fmt.Sprintf("\n  and %d more", n)
		}
		return id, errors.New(text + " is the beginning of several runs; write more of the ID:\n" + strings.Join(found, "\n") + more)
	}
	return id, err
}
