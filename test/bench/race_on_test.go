// SPDX-License-Identifier: Apache-2.0

//go:build race

package main

// raceDetector allocates on its own.
const raceDetector = true
