// SPDX-License-Identifier: Apache-2.0

package purity_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/troupe-run/troupe/internal/tools/purity"
)

// The expected reports stand as comments in testdata: store breaches each rule
// once and comes close to it elsewhere, host does the same things freely.
func TestPurity(t *testing.T) {
	const troupe = "github.com/troupe-run/troupe/"
	analysistest.Run(t, analysistest.TestData(), purity.Analyzer, troupe+"store", troupe+"host")
}
