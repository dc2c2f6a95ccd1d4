// SPDX-License-Identifier: Apache-2.0

package logs

import "errors"

// Positions keep how far the readers of one log have come, by the name of a reader. What Write has stored is durable.
type Positions interface {
	// Read returns the position of a reader; false if there is none.
	Read(name string) (value []byte, ok bool, err error)
	// Write replaces the position of a reader. After a crash it is the former one or this one. The error is ErrNotOwner
	// once another process has taken the log.
	Write(name string, value []byte) error
	// Remove removes the position of a reader, if there is one.
	Remove(name string) error
	// Names returns the readers that have a position, in order.
	Names() ([]string, error)
	// Place names the place of a position in a message, as in "delete PLACE".
	Place(name string) string
}

// ErrNotOwner is the error of Positions of a log that belongs to another process now.
var ErrNotOwner = errors.New("another process has taken the log")
