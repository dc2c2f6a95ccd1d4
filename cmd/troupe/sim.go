// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/troupe-run/troupe/sim"
)

// SimCmd runs imagined worlds.
type SimCmd struct {
	Seed   *uint64 `env:"SEED" help:"The world's seed; a random one is drawn and printed if absent."`
	Events bool    `help:"Print the canonical log instead of columns."`
	Hash   bool    `help:"Read a canonical log from standard input and print its hash."`
}

// Run implements the command.
func (c *SimCmd) Run() error {
	if c.Hash {
		hash, err := sim.HashLog(os.Stdin)
		if err != nil {
			return err
		}
		fmt.Println(hash)
		return nil
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	defer out.Flush()
	seed := randomSeed()
	if c.Seed != nil {
		seed = *c.Seed
	} else {
		fmt.Fprintf(out, "seed %d\n", seed)
	}
	o := sim.Options{Seed: seed}
	if c.Events {
		o.Events = out
	}
	return one(out, os.Stderr, o)
}

func one(out io.Writer, _ io.Writer, o sim.Options) error {
	w := sim.New(o)
	broken := w.Run()
	hash := w.Hash()
	end := io.Writer(out)
	if o.Events != nil {
		end = os.Stderr
	}
	if broken != nil {
		fmt.Fprintf(end, "seed %d FAILED %v\n", o.Seed, broken)
		return exit(1)
	}
	fmt.Fprintf(end, "seed %d ok steps=%d calls=%d faults=%d hash=%s\n", o.Seed, w.Stats.Steps, w.Stats.Calls, w.Stats.Faults, hash)
	return nil
}

func randomSeed() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]) >> 11 // as many digits as anybody types
}
