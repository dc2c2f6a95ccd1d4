// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// choicesHeader starts the text form of choices. Its line continues with the options
// of the run. Then come the streams, each with a line that names the stream and its
// cause, followed by one choice per line. A sequence of n zeros is written as 0*n.
//
//	troupe choices 4 seed 7 faults none fault NetworkDelay:0.5
//	stream plan.0
//	3
//	0*17
//	stream cell.256 for arrival.3
//	1
const choicesHeader = "troupe choices 4"

// ChoicesMax is the maximum number of choices that DecodeChoices accepts.
const ChoicesMax = 1 << 24

// EncodeChoices encodes the options of a run and the choices that it made.
func EncodeChoices(o Options, choices Choices) []byte {
	b := fmt.Appendf(nil, "%s seed %d", choicesHeader, o.Seed)
	if o.Faultless {
		b = append(b, " faults none"...)
	}
	for _, odds := range o.Odds {
		b = append(b, " fault "+odds.String()...)
	}
	if o.Strategy != "" {
		b = append(b, " strategy "+o.Strategy...)
	}
	if o.Registry != "" {
		b = append(b, " registry "+o.Registry...)
	}
	if o.Plain {
		b = append(b, " world plain"...)
	}
	if o.Long {
		b = append(b, " world long"...)
	}
	if o.Team != nil {
		b = append(b, " world team"...)
	}
	b = append(b, '\n')
	for _, stream := range choices {
		b = fmt.Appendf(b, "stream %s\n", stream.ID)
		b = appendChoices(b, stream.Log)
	}
	return b
}

func appendChoices(b []byte, log []uint32) []byte {
	for i := 0; i < len(log); {
		zeros := 0
		for i+zeros < len(log) && log[i+zeros] == 0 {
			zeros++
		}
		if zeros > 1 {
			b = fmt.Appendf(b, "0*%d\n", zeros)
			i += zeros
			continue
		}
		b = append(strconv.AppendUint(b, uint64(log[i]), 10), '\n')
		i++
	}
	return b
}

// DecodeChoices decodes the output of EncodeChoices. A run with these options and
// choices makes the same choices again.
func DecodeChoices(text []byte) (Options, Choices, error) {
	head, rest, _ := strings.Cut(string(text), "\n")
	o, err := decodeHeader(head)
	if err != nil {
		return Options{}, nil, fmt.Errorf("choices: line 1: %w", err)
	}
	var all Choices
	seen := map[StreamID]bool{}
	lineNo, count := 1, uint64(0)
	for line := range strings.Lines(rest) {
		lineNo++
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "stream "); ok {
			id, err := parseStreamID(name)
			if err == nil && seen[id] {
				err = fmt.Errorf("duplicate stream %s", id)
			}
			if err != nil {
				return Options{}, nil, fmt.Errorf("choices: line %d: %w", lineNo, err)
			}
			seen[id] = true
			all = append(all, Stream{ID: id})
			continue
		}
		v, times, err := parseChoice(line)
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("choice before the first stream")
		}
		if count += times; err == nil && count > ChoicesMax {
			err = fmt.Errorf("more than %d choices", ChoicesMax)
		}
		if err != nil {
			return Options{}, nil, fmt.Errorf("choices: line %d: %w", lineNo, err)
		}
		last := &all[len(all)-1]
		for range times {
			last.Log = append(last.Log, v)
		}
	}
	return o, all, nil
}

func parseChoice(line string) (v uint32, times uint64, err error) {
	value, many, ok := strings.Cut(line, "*")
	times = 1
	if ok {
		times, err = strconv.ParseUint(many, 10, 32)
	}
	n, err2 := strconv.ParseUint(value, 10, 32)
	if err != nil || err2 != nil {
		return 0, 0, fmt.Errorf("%.40q: want a number, or 0*times", line)
	}
	return uint32(n), times, nil
}

func decodeHeader(head string) (o Options, err error) {
	fields, ok := strings.CutPrefix(head, choicesHeader+" ")
	words := strings.Fields(fields)
	if !ok || len(words)%2 != 0 || len(words) == 0 {
		return o, fmt.Errorf("%.60q: want %q followed by seed N", head, choicesHeader)
	}
	for i := 0; i < len(words) && err == nil; i += 2 {
		switch name, value := words[i], words[i+1]; {
		case name == "seed":
			o.Seed, err = strconv.ParseUint(value, 10, 64)
		case name == "faults" && value == "none":
			o.Faultless = true
		case name == "fault":
			var odds Odds
			odds, err = ParseOdds(value)
			o.Odds = append(o.Odds, odds)
		case name == "strategy":
			_, err = ParseStrategy(value)
			o.Strategy = value
		case name == "registry" && (value == "on" || value == "off"):
			o.Registry = value
		case name == "world" && value == "plain":
			o.Plain = true
		case name == "world" && value == "long":
			o.Long = true
		case name == "world" && value == "team":
			err = fmt.Errorf("the failure directory does not contain the team of this run; run troupe sim --project DIR --seed %d", o.Seed)
		default:
			err = fmt.Errorf("unknown setting %.40q", name+" "+value)
		}
	}
	return o, err
}

// Files in the directory of a failure.
const (
	choicesFile   = "choices.txt"   // all choices of the failed run
	shrunkFile    = "shrunk.txt"    // the fewest choices found that violate the same spec
	eventsFile    = "events.log"    // canonical log of the failed run
	shrunkLogFile = "shrunk.log"    // canonical log of the shrunk run
	columnsFile   = "columns.txt"   // shrunk run as text columns
	pageFile      = "page.html"     // shrunk run as an HTML diagram
	historyFile   = "history.html"  // the history that is not linearizable, if that is the violation
	violationFile = "violation.txt" // violations of both runs
	planFile      = "plan.txt"      // plan of the failed run
	resampledFile = "resampled.txt" // choice of the shrunk run that made the failure inevitable
)

// FailureDir returns the directory of a failure below parent. Its name has the seed
// and a hash of the program, the options and the plan, so another build or other
// flags do not overwrite it.
func FailureDir(parent string, o Options, r Result) (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	return failureDir(path, parent, o, r)
}

func failureDir(program, parent string, o Options, r Result) (string, error) {
	f, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	hash.Write(EncodeChoices(o, nil))
	hash.Write([]byte(r.Plan))
	return filepath.Join(parent, fmt.Sprintf("seed-%d-%x", r.Seed, hash.Sum(nil)[:4])), nil
}

// SaveFailure writes the directory of a failure: its choices, its log, and the
// smallest run found that violates the same spec. It returns the result of the
// smallest run. A violation of Deterministic is not shrunk, and r is returned: the two
// runs differ, but neither of the runs fails by itself.
func SaveFailure(dir string, o Options, r Result) (Result, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Result{}, err
	}
	var events bytes.Buffer
	original := o
	original.Entropy, original.Events = NewReplayedEntropy(r.Choices), &events
	RunSeed(original)
	if err := replaceFiles(dir, []failureFile{ // save the originals first: everything below is slow and may fail
		{choicesFile, EncodeChoices(o, r.Choices)},
		{eventsFile, events.Bytes()},
		{planFile, []byte(r.Plan)},
		{violationFile, fmt.Appendf(nil, "%s\n%v\n", r.Violation.Spec, r.Violation)},
	}); err != nil || r.Violation.Spec == Deterministic {
		return r, err
	}

	shrunk := Shrink(o, r)
	var resampled []byte
	if !o.NoResampling {
		shrunk.Inevitability = FindInevitability(o, shrunk)
		resampled = fmt.Appendf(nil, "%s\n\n%s", shrunk.Inevitability, shrunk.Inevitability.Table())
	}
	var columns, page, history, shrunkLog bytes.Buffer
	rerun := o
	rerun.Events = &shrunkLog
	rerun.Entropy, rerun.Columns, rerun.Page = NewReplayedEntropy(shrunk.Choices), NewColumns(&columns, ColumnsWidth), NewPage()
	columns.WriteString(headLine(shrunk.Inevitability.String()))
	shown := RunSeed(rerun)
	shown.Inevitability = shrunk.Inevitability
	if err := rerun.Page.WriteTo(&page, shown); err != nil {
		return Result{}, err
	}
	if shown.Violation != nil && shown.Violation.History != nil {
		if err := shown.Violation.History.WritePage(&history); err != nil {
			return Result{}, err
		}
	}
	return shrunk, writeFiles(dir, []failureFile{
		{shrunkFile, EncodeChoices(o, shrunk.Choices)},
		{shrunkLogFile, shrunkLog.Bytes()},
		{columnsFile, columns.Bytes()},
		{pageFile, page.Bytes()},
		{violationFile, fmt.Appendf(nil, "%s\n%v\n\nshrunk to %d steps:\n%v\n", r.Violation.Spec, r.Violation, shrunk.Stats.Steps, shrunk.Violation)},
		{historyFile, history.Bytes()},
		{resampledFile, resampled},
	})
}

// headLine returns the line above the columns, or "".
func headLine(sentence string) string {
	if sentence == "" {
		return ""
	}
	return sentence + "\n\n"
}

type failureFile struct {
	name string
	data []byte
}

// replaceFiles deletes the files of an earlier failure and writes the given ones.
func replaceFiles(dir string, files []failureFile) error {
	for _, name := range [...]string{choicesFile, shrunkFile, eventsFile, shrunkLogFile, columnsFile, pageFile, historyFile, violationFile, planFile, resampledFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return writeFiles(dir, files)
}

// writeFiles writes the files that are not empty.
func writeFiles(dir string, files []failureFile) error {
	for _, f := range files {
		if len(f.data) == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, f.name), f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Replay repeats the shrunk run, or the whole run, of a failure directory and prints
// it in columns. It returns the result and the first difference to the recorded log,
// with the step and both versions. The difference is "" if the logs are equal.
func Replay(dir string, whole bool, out io.Writer, backends Backends) (r Result, difference string, err error) {
	name, logName := shrunkFile, shrunkLogFile
	if whole {
		name, logName = choicesFile, eventsFile
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) && !whole {
		if violation, err := os.ReadFile(filepath.Join(dir, violationFile)); err == nil && bytes.HasPrefix(violation, []byte(Deterministic)) {
			return Result{}, "", fmt.Errorf("%s: nothing to replay: two runs of this seed differed; see %s, and repeat both runs with the original command", dir, violationFile)
		}
	}
	if err != nil {
		return Result{}, "", err
	}
	o, choices, err := DecodeChoices(text)
	if err != nil {
		return Result{}, "", fmt.Errorf("%s: %w", name, err)
	}
	recorded, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		return Result{}, "", err
	}
	c := &logComparison{want: recorded}
	o.Events = c
	o.Entropy, o.Columns, o.Backends = NewReplayedEntropy(choices), NewColumns(out, ColumnsWidth), backends
	if resampled, err := os.ReadFile(filepath.Join(dir, resampledFile)); err == nil && !whole {
		sentence, _, _ := strings.Cut(string(resampled), "\n")
		io.WriteString(out, headLine(sentence)) //nolint:errcheck // as for the columns
	}
	r = RunSeed(o)
	return r, c.finish(), nil
}
