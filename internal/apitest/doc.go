// SPDX-License-Identifier: Apache-2.0

// Package apitest tests what package troupe promises beside its behaviour: the types that its API shows, and the
// programs of the pages.
package apitest
