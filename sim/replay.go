// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Choices as text: a line that says of which world they are, then the streams,
// each with a line that names it and on whose account it is asked, and one choice
// a line; n zeros in a row are written 0*n.
//
//	troupe choices 4 seed 7 faults none fault NetworkDelay:0.5
//	stream plan.0
//	3
//	0*17
//	stream cell.256 for arrival.3
//	1
const choicesHeader = "troupe choices 4"

// ChoicesMax bounds the choices that are read.
const ChoicesMax = 1 << 24

// EncodeChoices writes the choices of the world that the options begin.
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

// DecodeChoices reads what EncodeChoices wrote: the options of a world that will
// choose the same again.
func DecodeChoices(text []byte) (Options, Choices, error) {
	head, rest, _ := strings.Cut(string(text), "\n")
	o, err := decodeHeader(head)
	if err != nil {
		return Options{}, nil, fmt.Errorf("choices: line 1: %w", err)
	}
	var all Choices
	seen := map[StreamID]bool{}
	no, count := 1, uint64(0)
	for line := range strings.Lines(rest) {
		no++
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "stream "); ok {
			id, err := parseStreamID(name)
			if err == nil && seen[id] {
				err = fmt.Errorf("stream %s comes twice", id)
			}
			if err != nil {
				return Options{}, nil, fmt.Errorf("choices: line %d: %w", no, err)
			}
			seen[id] = true
			all = append(all, Stream{ID: id})
			continue
		}
		v, times, err := parseChoice(line)
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("a choice of no stream")
		}
		if count += times; err == nil && count > ChoicesMax {
			err = fmt.Errorf("more than %d choices", ChoicesMax)
		}
		if err != nil {
			return Options{}, nil, fmt.Errorf("choices: line %d: %w", no, err)
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
		return o, fmt.Errorf("%.60q: want %q, then seed N", head, choicesHeader)
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
		case name == "world" && value == "plain":
			o.Plain = true
		case name == "world" && value == "long":
			o.Long = true
		case name == "world" && value == "team":
			err = fmt.Errorf("a team played in this world, and is not in this folder; run troupe sim --project DIR --seed %d", o.Seed)
		default:
			err = fmt.Errorf("%.40q means nothing", name+" "+value)
		}
	}
	return o, err
}

// The files in the folder of a failure.
const (
	choicesFile   = "choices.txt"   // all choices
	shrunkFile    = "shrunk.txt"    // as few as still break the same spec
	eventsFile    = "events.log"    // the canonical log of the first
	shrunkLogFile = "shrunk.log"    // and of the second
	columnsFile   = "columns.txt"   // the second, for a person
	pageFile      = "page.html"     // likewise, as a picture
	historyFile   = "history.html"  // the history that no single machine has, if that is what broke
	violationFile = "violation.txt" // what was broken
	planFile      = "plan.txt"      // what the world was made of
)

// SaveFailure writes the folder of a failure: its choices, its log, and the smallest
// history that was found to break the same spec. It returns that one's result.
// Of two runs that differ there is nothing to make smaller: no one run fails.
func SaveFailure(dir string, o Options, r Result) (Result, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Result{}, err
	}
	var events bytes.Buffer
	whole := o
	whole.Entropy, whole.Events = NewReplayedEntropy(r.Choices), &events
	RunSeed(whole)
	if err := replaceFiles(dir, []failureFile{ // before all that takes time, or could fail
		{choicesFile, EncodeChoices(o, r.Choices)},
		{eventsFile, events.Bytes()},
		{planFile, []byte(r.Plan)},
		{violationFile, fmt.Appendf(nil, "%s\n%v\n", r.Violation.Spec, r.Violation)},
	}); err != nil || r.Violation.Spec == Deterministic {
		return r, err
	}

	small := Shrink(o, r)
	var columns, page, history, shrunk bytes.Buffer
	shown := o
	shown.Events = &shrunk
	shown.Entropy, shown.Columns, shown.Page = NewReplayedEntropy(small.Choices), NewColumns(&columns, ColumnsWidth), NewPage()
	last := RunSeed(shown)
	if err := shown.Page.WriteTo(&page, last); err != nil {
		return Result{}, err
	}
	if last.Violation != nil && last.Violation.History != nil {
		if err := last.Violation.History.WritePage(&history); err != nil {
			return Result{}, err
		}
	}
	return small, writeFiles(dir, []failureFile{
		{shrunkFile, EncodeChoices(o, small.Choices)},
		{shrunkLogFile, shrunk.Bytes()},
		{columnsFile, columns.Bytes()},
		{pageFile, page.Bytes()},
		{violationFile, fmt.Appendf(nil, "%s\n%v\n\nshrunk to %d steps:\n%v\n", r.Violation.Spec, r.Violation, small.Stats.Steps, small.Violation)},
		{historyFile, history.Bytes()},
	})
}

type failureFile struct {
	name string
	data []byte
}

// replaceFiles writes the first files of a failure, in the place of all of an earlier one.
func replaceFiles(dir string, files []failureFile) error {
	for _, name := range [...]string{choicesFile, shrunkFile, eventsFile, shrunkLogFile, columnsFile, pageFile, historyFile, violationFile, planFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return writeFiles(dir, files)
}

// writeFiles writes those that have something in them.
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

// Replay runs a failure from its folder again, the shrunk one or the whole, and
// shows it in columns. Where it goes otherwise than it did, it says from which
// step on, with both sides; "" is nowhere.
func Replay(dir string, whole bool, out io.Writer, parts Backends) (r Result, parted string, err error) {
	name, logName := shrunkFile, shrunkLogFile
	if whole {
		name, logName = choicesFile, eventsFile
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) && !whole {
		if said, err := os.ReadFile(filepath.Join(dir, violationFile)); err == nil && bytes.HasPrefix(said, []byte(Deterministic)) {
			return Result{}, "", fmt.Errorf("%s: no one run failed, two runs of this seed differed; %s says where, and the command it came from runs both again", dir, violationFile)
		}
	}
	if err != nil {
		return Result{}, "", err
	}
	o, choices, err := DecodeChoices(text)
	if err != nil {
		return Result{}, "", fmt.Errorf("%s: %w", name, err)
	}
	was, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		return Result{}, "", err
	}
	c := &logComparison{want: was}
	o.Events = c
	o.Entropy, o.Columns, o.Backends = NewReplayedEntropy(choices), NewColumns(out, ColumnsWidth), parts
	r = RunSeed(o)
	return r, c.finish(), nil
}
