// SPDX-License-Identifier: Apache-2.0

//go:build !mutants

package main

import "github.com/alecthomas/kong"

// mutantsOption adds nothing: in this build every guard is active.
func mutantsOption() kong.Option { return kong.OptionFunc(func(*kong.Kong) error { return nil }) }
