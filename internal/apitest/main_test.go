// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"os"
	"testing"
)

// TestMain runs the tests in the root of the checkout, whose pages and packages they read.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
