// SPDX-License-Identifier: Apache-2.0

// Package js holds the modules of the JavaScript client, which the pages of the server use. Programs in JavaScript
// install the package troupe-client, which is this folder.
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package js

import "embed"

// Modules are the files src/*.js. They import each other as neighbours, so they are served from one folder.
//
//go:embed src/*.js
var Modules embed.FS
