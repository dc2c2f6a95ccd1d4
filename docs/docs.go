// SPDX-License-Identifier: Apache-2.0

// Package docs holds the pages of the documentation, which are those of the version of the
// program that they are a part of.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package docs

import "embed"

// Pages are the files *.md of this folder.
//
//go:embed *.md
var Pages embed.FS
