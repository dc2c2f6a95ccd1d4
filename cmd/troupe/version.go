// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"runtime/debug"
	"strings"
)

// nextRelease is the version of a build that is not of a release.
const nextRelease = "v0.1.0-dev"

// commit is the commit of the build. make sets it with -ldflags, because the go
// command does not record it everywhere.
var commit string

// version returns the version of the program and the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return versionOf(info, commit)
}

func versionOf(info *debug.BuildInfo, commit string) string {
	v := info.Main.Version
	if v == "" || v == "(devel)" || strings.HasPrefix(v, "v0.0.0-") {
		v = nextRelease
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = cmp.Or(commit, s.Value)
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if commit == "" {
		return v
	}
	return v + " (" + commit[:min(len(commit), 12)] + modified + ")"
}
