// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"time"
)

// lanes returns all lanes. The seed of worlds and drawn mutants is the day, so that
// each night draws others.
func lanes(day time.Time) []lane {
	number := strconv.Itoa(day.Year()*10000 + int(day.Month())*100 + day.Day())
	seed := "SEED=" + number
	return []lane{
		{"worlds", []string{"make", "sim", "LONG=1", "TWICE=1", "BUDGET=35m", seed}, "seeds ok"},
		{"pebble", []string{"make", "sim", "RUNS=500", "STORE=pebble"}, "seeds ok"},
		{"mutants", []string{"make", "mutants", "SHRINK=1"}, ""},
		{"drawn mutants", []string{"make", "mutants", "DRAWN=40", seed, "ARGS=-budget=35m"}, ""},
		{"inert faults", []string{"make", "inert"}, ""},
		{"machines", []string{"make", "machines"}, "ok"},
		{"fuzz", []string{"make", "fuzz", "FUZZTIME=60s"}, ""},
		{"corruption", []string{"make", "rot"}, ""},
		{"crash", []string{"make", "crash", "N=200"}, ""},
		{"race", []string{"make", "race", "ALL=1"}, "ok"},
		{"recovery", []string{"make", "recovery", "N=5"}, "ok"},
		{"coverage", []string{"make", "sim-cover"}, "floors 0 to 2"},
		{"models", []string{"make", "tla"}, ""},
		{"large models", []string{"make", "tla-big"}, ""},
		{"drawn mutations", []string{"make", "tla", "ARGS=mutations -n 42 -seed " + number}, ""},
		{"traces", []string{"make", "trace", "ARGS=-forgeries 60 -seed " + number}, ""},
	}
}
