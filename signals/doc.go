// SPDX-License-Identifier: Apache-2.0

// Package signals has the commands that reach an open run as signals: those of clients and
// devices, and those of the external agent that works on the run. Each has a type, which is the
// content of the signal. The sender encodes it, and the cell of the run decodes it.
//
// A signal with any other name answers the wait of an agent for a signal of that name.
//
// # Files
//
//	signals.go   encoding, decoding and names
//	contents.go  the contents
//
// It is a part of the server without a promise of compatibility: programs use package troupe.
package signals
