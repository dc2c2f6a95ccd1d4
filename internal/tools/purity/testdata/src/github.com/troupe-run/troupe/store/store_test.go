// SPDX-License-Identifier: Apache-2.0

package store

import "time"

var now = time.Now()

func each(m table) {
	for range m {
		go each(m)
	}
}
