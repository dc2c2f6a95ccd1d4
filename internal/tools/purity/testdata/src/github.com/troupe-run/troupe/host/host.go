// SPDX-License-Identifier: Apache-2.0

// Package host is in layer 3, which may perform I/O.
package host

import (
	"fmt"
	"time"
)

func live(m map[string]int, done chan time.Time) {
	for k := range m {
		go fmt.Printf("%p\n", &k)
	}
	select {
	case done <- time.Now():
	default:
	}
}
