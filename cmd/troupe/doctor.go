// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/host/disk"
	"github.com/troupe-run/troupe/host/postgres"
	"github.com/troupe-run/troupe/internal/node"
	"github.com/troupe-run/troupe/internal/service"
	"github.com/troupe-run/troupe/store"
)

// DoctorCmd verifies a whole store and prints the damage found.
type DoctorCmd struct {
	Data   string `arg:"" optional:"" type:"existingdir" default:"data" help:"Data folder to verify (${default}); no server may be using it."`
	Store  string `env:"TROUPE_STORE" placeholder:"URL" help:"Verify the store in this PostgreSQL database instead."`
	Tables bool   `help:"With --store: if the store is intact, write its tables for SQL anew from the log."`
	JSON   bool   `help:"Print the findings as JSON."`
}

// Help returns the text shown below the flags.
func (DoctorCmd) Help() string {
	return `Verifies the chain of batches, the digest of every value, all journals, and the indexes against the journals. Continues behind damage and counts the readable rest. Changes nothing. Exits with code 1 if it finds damage.
To verify the store of a running server, verify a backup of it: see troupe backup.
Entries lost from the last 100 ms before a crash cannot be distinguished from entries never synced.

Examples:
  troupe doctor
  troupe doctor /var/lib/troupe --json | jq .findings
  troupe doctor --store postgres://troupe@db.example/troupe`
}

// Run executes the command.
func (c *DoctorCmd) Run(s streams) error {
	c.Data = cmp.Or(c.Data, "data") // kong leaves out a default folder that does not exist
	x, err := c.examine(s)
	if err != nil {
		return err
	}
	if c.JSON {
		body, err := examinationJSON(x)
		if err != nil {
			return err
		}
		if err := printJSON(s.out, body); err != nil {
			return err
		}
	} else {
		printExamination(s.out, c.place(), x)
	}
	if x.Wrong > 0 {
		return exitCode(exitFailed)
	}
	if c.Tables {
		return c.rebuild(s)
	}
	return nil
}

// place returns the store as it is shown.
func (c *DoctorCmd) place() string {
	if c.Store != "" {
		return postgres.Shown(c.Store)
	}
	return c.Data
}

func (c *DoctorCmd) examine(s streams) (store.Examination, error) {
	if c.Store != "" {
		return postgres.Examine(c.Store, scanProgress(s.err))
	}
	if c.Tables {
		return store.Examination{}, errors.New("--tables: a folder has none; want --store with the URL of a database")
	}
	x, err := disk.Examine(c.Data, disk.Options{}, scanProgress(s.err))
	if err != nil {
		err = storeError(c.Data, err, "verify a backup of it: troupe backup NAME --data "+c.Data)
	}
	return x, err
}

// rebuild writes the tables of the store anew.
func (c *DoctorCmd) rebuild(s streams) error {
	r, err := postgres.Open(c.Store, "", postgres.Options{ReadOnly: true, Idle: true})
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // the tables are committed
	if err := r.Rebuild(); err != nil {
		return err
	}
	fmt.Fprintln(s.out, "the tables are written anew")
	return nil
}

// warnings returns a logger that prints warnings and errors to stderr.
func warnings(stderr io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// scanProgress returns a callback that prints the number of keys scanned; nil if
// stderr is no terminal.
func scanProgress(stderr io.Writer) func(keys uint64) {
	if !isTerminal(stderr) {
		return nil
	}
	return func(keys uint64) { fmt.Fprintf(controls(stderr), "\r%d keys ", keys) }
}

func printExamination(out io.Writer, dir string, x store.Examination) {
	fmt.Fprintf(out, "%s: %d batches, %d entries of %d actors, %d runs (%d open), %d events, %d blobs (%d unused), %.1f MiB\n",
		dir, x.Batches, x.Entries, x.Actors, x.Runs, x.Open, x.Events, x.Blobs, x.Unused, float64(x.Bytes)/(1<<20))
	if x.Unreadable > 0 {
		fmt.Fprintf(out, "the disk cannot read %d ranges of keys; the numbers above are those of the rest\n", x.Unreadable)
	}
	if x.Wrong == 0 {
		fmt.Fprintf(out, "the chain holds up to batch %d, and everything is as it was written\n", x.End.Batch)
		return
	}
	fmt.Fprintf(out, "%d errors found:\n", x.Wrong)
	lost := 0
	for _, f := range x.Findings {
		fmt.Fprintf(out, "  %s: %s\n", f.Where, f.What)
		if f.Lost != "" {
			fmt.Fprintf(out, "    lost: %s\n", f.Lost)
			lost++
		}
	}
	if more := x.Wrong - uint64(len(x.Findings)); more > 0 {
		fmt.Fprintf(out, "  and %d more\n", more)
	}
	fmt.Fprintln(out, advice(dir, lost))
}

// advice returns the recommended next step. It names no command that fails.
func advice(dir string, lost int) string {
	if lost == 0 {
		return "Nothing that was acknowledged is lost by this. Keep a copy of the folder before you do anything else; `troupe restore` brings a backup back."
	}
	d, err := disk.Open(dir, "", disk.Options{ReadOnly: true, Damaged: true})
	if err != nil {
		return "Keep a copy of the folder as it is. `troupe restore` brings the last backup back. Without one of its damaged files no run of the folder can be read."
	}
	_ = d.Close() // it was only read
	return "Keep a copy of the folder as it is. `troupe restore` brings the last backup back. The folder has what came after it: `" + hint("runs list", nil, []string{"--damaged", "--data", dir}) + "` lists the runs that can still be read."
}

func examinationJSON(x store.Examination) ([]byte, error) {
	type finding struct {
		Where string `json:"where"`
		What  string `json:"what"`
		Lost  string `json:"lost,omitzero"`
	}
	out := struct {
		OK         bool      `json:"ok"`
		Batch      uint64    `json:"batch"`
		Batches    uint64    `json:"batches"`
		Entries    uint64    `json:"entries"`
		Actors     uint64    `json:"actors"`
		Runs       uint64    `json:"runs"`
		Open       uint64    `json:"open_runs"`
		Events     uint64    `json:"events"`
		Blobs      uint64    `json:"blobs"`
		Unused     uint64    `json:"unused_blobs"`
		Bytes      uint64    `json:"bytes"`
		Unreadable uint64    `json:"unreadable_ranges"`
		Wrong      uint64    `json:"wrong"`
		Findings   []finding `json:"findings"`
	}{x.Wrong == 0, x.End.Batch, x.Batches, x.Entries, x.Actors, x.Runs, x.Open, x.Events, x.Blobs, x.Unused, x.Bytes, x.Unreadable, x.Wrong, []finding{}}
	for _, f := range x.Findings {
		out.Findings = append(out.Findings, finding(f))
	}
	return json.Marshal(out, jsontext.EscapeForHTML(false))
}

// BackupCmd copies a store to a new folder.
type BackupCmd struct {
	ServerFlags
	Name string `arg:"" help:"Name of the folder to create in the server's folder for backups. If no server uses --data, a path is possible too."`
	Data string `type:"existingdir" placeholder:"DIR" help:"Copy this data folder, whether or not a server uses it; needs no API key."`
}

// Help returns the text shown below the flags.
func (BackupCmd) Help() string {
	return `Copies the store of a running server. The copy contains everything acknowledged before, and the recorded prompts. It does not contain the secret of run tokens: a server on the restored folder creates a new one.

Examples:
  troupe backup 2026-11-21
  troupe backup 2026-11-21 --data data
  troupe doctor data-backups/2026-11-21`
}

// Run executes the command.
func (c *BackupCmd) Run(s streams) error {
	at, owner := c.ownerClient(c.Data)
	switch {
	case owner:
	case c.Data == "":
		at = c.client()
	default:
		dir := c.Name
		if filepath.Base(dir) == dir {
			dir = filepath.Join(service.DefaultBackups(c.Data), dir)
		}
		if _, err := disk.Restore(c.Data, dir, disk.Options{Logger: warnings(s.err)}, scanProgress(s.err)); err != nil {
			return storeError(c.Data, err, insteadOfData)
		}
		if err := node.CopyBeside(c.Data, dir); err != nil {
			return err
		}
		fmt.Fprintln(s.out, dir)
		return nil
	}
	_, body, err := at.post("/v1/backups", map[string]string{"name": c.Name})
	if err != nil {
		return err
	}
	var out struct {
		Dir string `json:"dir"`
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return err
	}
	fmt.Fprintln(s.out, out.Dir)
	return nil
}

// RestoreCmd creates a data folder from a backup.
type RestoreCmd struct {
	From string `arg:"" type:"existingdir" help:"Backup folder."`
	Data string `type:"path" required:"" placeholder:"DIR" help:"Data folder to create; must be absent or empty."`

	Forgets         string `placeholder:"FILE" help:"The file forgets.jsonl of the data folder that the backup is of: what agents have forgotten since, and the recorded prompts of sessions that were deleted since, stay away."`
	AcceptForgotten bool   `help:"Bring both back, because the file is lost."`
}

// Help returns the text shown below the flags.
func (RestoreCmd) Help() string {
	return `Verifies the whole backup first, and copies it only if it is intact. Runs that were open at the time of the backup resume as after a crash.

A backup with what agents remember may have what they were told to forget since, and one with recorded prompts those of sessions that were deleted since: then one of --forgets and --accept-forgotten is required. The sessions themselves are there again.

Examples:
  troupe restore /backups/2026-11-21 --data data
  troupe restore /backups/2026-11-21 --data data --forgets old/forgets.jsonl
  troupe serve --data data`
}

// Run executes the command.
func (c *RestoreCmd) Run(s streams) error {
	var forgets []byte
	var err error
	switch {
	case c.Forgets != "" && c.AcceptForgotten:
		return errors.New("want one of --forgets and --accept-forgotten")
	case c.Forgets != "":
		if forgets, err = node.ReadForgets(c.Forgets); err != nil {
			return fmt.Errorf("--forgets: %w", err)
		}
	case !c.AcceptForgotten:
		remembers, err := node.Remembers(c.From)
		if err != nil {
			return err
		}
		if remembers {
			return errors.New("the backup holds what agents remember or recorded prompts, also what was forgotten or deleted since: give the file forgets.jsonl of the former data folder with --forgets, or --accept-forgotten if it is lost")
		}
	}
	x, err := disk.Restore(c.From, c.Data, disk.Options{Logger: warnings(s.err)}, scanProgress(s.err))
	switch {
	case errors.Is(err, disk.ErrNoStore):
		return fmt.Errorf("%w; want a folder that `troupe backup` has made", err)
	case err != nil && x.Wrong > 0:
		printExamination(s.err, c.From, x)
		return err
	case err != nil:
		return err
	}
	if err := node.PutForgets(c.From, c.Data, forgets); err != nil {
		return err
	}
	printExamination(s.out, c.From, x)
	fmt.Fprintf(s.out, "restored into %s\n", c.Data)
	return nil
}
