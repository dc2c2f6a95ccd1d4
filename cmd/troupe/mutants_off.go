// SPDX-License-Identifier: Apache-2.0

//go:build !mutants

package main

import "github.com/alecthomas/kong"

// mutantsOption adds nothing: this program has all its guards.
func mutantsOption() kong.Option { return kong.OptionFunc(func(*kong.Kong) error { return nil }) }
