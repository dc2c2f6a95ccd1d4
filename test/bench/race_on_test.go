// SPDX-License-Identifier: Apache-2.0

//go:build race

package main

// raceDetector reports whether the race detector is on. Its own allocations make
// exact counts impossible.
const raceDetector = true
