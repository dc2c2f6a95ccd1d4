// SPDX-License-Identifier: Apache-2.0

//go:build race

package sim

func init() { raceEnabled = true }
