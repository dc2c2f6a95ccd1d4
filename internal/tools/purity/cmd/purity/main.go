// SPDX-License-Identifier: Apache-2.0

// Command purity runs the analyzer as a tool of go vet -vettool.
package main

import (
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/troupe-run/troupe/internal/tools/purity"
)

func main() { unitchecker.Main(purity.Analyzer) }
