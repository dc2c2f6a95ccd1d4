// SPDX-License-Identifier: Apache-2.0

// Package upstream speaks with what stands behind us: models and external agents.
// It turns a request into bytes, streamed bytes into deltas and tool calls, and says when to try again. It never dials.
//
// What comes from there is hostile until read. Whatever bytes arrive, in
// whatever pieces, end as a value or as a refusal that names what was wrong and
// where, and nothing is unbounded.
package upstream
