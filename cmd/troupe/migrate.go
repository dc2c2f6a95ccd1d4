// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/troupe-run/troupe/host/disk"
)

// MigrateCmd copies a store into a new one.
type MigrateCmd struct {
	Old string `arg:"" type:"existingdir" help:"Data folder to copy; no server may be using it."`
	New string `arg:"" type:"path" help:"Data folder to create; must not exist."`
}

// Help returns the text shown below the flags.
func (MigrateCmd) Help() string {
	return `Copies all entries into a new store. The old store is verified first, and never changed; a damaged one is refused. The new store continues the numbers of the old one, and open runs resume in it as after a restart. Its size on disk is about that of the old one.

Examples:
  troupe migrate data data-new
  troupe serve --data data-new`
}

// Run executes the command.
func (c *MigrateCmd) Run(s streams) error {
	x, err := disk.Migrate(c.Old, c.New, disk.Options{Logger: warnings(s.err)}, scanProgress(s.err))
	switch {
	case err != nil && x.Wrong > 0:
		printExamination(s.err, c.Old, x)
		return err
	case err != nil:
		return storeError(c.Old, err, "stop it first")
	}
	printExamination(s.out, c.New, x)
	fmt.Fprintf(s.out, "migrated into %s\n", c.New)
	return nil
}
