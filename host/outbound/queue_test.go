// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The page has the numbers of the queue.
func TestLimitsPageHasQueue(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("at most %d times as many of all users and %d times\nof one", queueFactor, userQueueFactor); !strings.Contains(string(page), text) {
		t.Errorf("docs/limits.md lacks: %s", text)
	}
}
