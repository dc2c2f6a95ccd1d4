// SPDX-License-Identifier: Apache-2.0

//go:build !mutants

package main

// mutantsCLI is empty: this program has all its guards.
type mutantsCLI struct{}
