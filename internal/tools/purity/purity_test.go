// SPDX-License-Identifier: Apache-2.0

package purity_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/troupe-run/troupe/internal/tools/purity"
)

// The expected reports are comments in testdata. Package store violates each rule
// and contains permitted code close to each violation. Package host contains
// violations too, which are permitted there.
func TestPurity(t *testing.T) {
	const troupe = "github.com/troupe-run/troupe/"
	analysistest.Run(t, analysistest.TestData(), purity.Analyzer, troupe+"store", troupe+"host")
}
