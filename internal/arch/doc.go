// SPDX-License-Identifier: Apache-2.0

// Package arch tests the architecture of the repository. The table of packages and the list of rules are in
// arch_test.go; each finding names the remedy. TestArchitecture applies every rule to
// the repository, TestRulesFindBreaches applies each rule to a small breach.
//
// Rules that need types, such as ranging over a map, are checked by the purity
// analyzer in internal/tools, which `make lint` runs.
package arch
