// SPDX-License-Identifier: Apache-2.0

package section

import (
	"os/exec"
	"strings"
)

// Commit is what of the tree a section tells of, with a word if that was changed
// since.
func Commit() string {
	head, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	text := strings.TrimSpace(string(head))
	if changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); err != nil || len(changed) > 0 {
		text += "+dirty"
	}
	return text
}
