// SPDX-License-Identifier: Apache-2.0

package ingress

import "github.com/troupe-run/troupe/actor"

// Backup decodes a backup request and returns the name of the new folder, below the
// server's folder for backups.
func Backup(body []byte) (name string, _ *actor.Refusal) {
	var in struct {
		Name string `json:"name"`
	}
	if r := Decode(body, &in); r != nil {
		return "", r
	}
	if err := actor.CheckName(in.Name); err != nil {
		return "", invalid("name", "%v; the server makes the folder below the one set by `troupe serve --backups`", err)
	}
	return in.Name, nil
}
