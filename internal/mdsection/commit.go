// SPDX-License-Identifier: Apache-2.0

package mdsection

import (
	"os/exec"
	"strings"
)

// Commit returns the abbreviated hash of HEAD, with the suffix "+dirty" if
// tracked files have uncommitted changes, or "unknown" outside a repository.
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
