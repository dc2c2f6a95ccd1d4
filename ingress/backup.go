// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// pathBytesMax is the maximum length of a path. No file system accepts a longer
// path.
const pathBytesMax = 4096

// Backup decodes a backup request and returns the target folder: an absolute path
// on the server's machine.
func Backup(body []byte) (dir string, _ *actor.Refusal) {
	var in struct {
		Dir string `json:"dir"`
	}
	if r := Decode(body, &in); r != nil {
		return "", r
	}
	if len(in.Dir) > pathBytesMax || !strings.HasPrefix(in.Dir, "/") || strings.ContainsRune(in.Dir, 0) {
		return "", invalid("dir", "want the absolute path of a new folder on the server's machine")
	}
	return in.Dir, nil
}
