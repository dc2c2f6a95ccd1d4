// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/command"
)

// The channels between two members. Each has a connection of its own, so that no large answer delays a message
// between cells.
const (
	commandsChannel = "commands" // of the member that has opened the connection
	messagesChannel = "messages" // likewise, for cells of the other one
)

// memberNameBytesMax is the maximum length of the name of a member.
const memberNameBytesMax = 128

const helloPrefix = "troupe member "

// helloVersion has the versions of what members send to each other. Both sides must have the same.
var helloVersion = fmt.Sprintf("%d.%d", command.CodecVersion, actor.CodecVersion)

// hello is the greeting of a member. It names both sides, because another process than the dialed one may have
// its address by now.
type hello struct{ channel, from, to string }

// String returns the line.
func (h hello) String() string {
	return fmt.Sprintf("%s%s %s from %s to %s", helloPrefix, helloVersion, h.channel, h.from, h.to)
}

// answer returns the greeting of the other side.
func (h hello) answer() hello { return hello{h.channel, h.to, h.from} }

// isHello reports whether a greeting is that of a member.
func isHello(line string) bool { return strings.HasPrefix(line, helloPrefix) }

// parseHello returns the greeting in a line.
func parseHello(line string) (h hello, err error) {
	f := strings.Fields(line)
	if len(f) == 8 {
		h = hello{f[3], f[5], f[7]}
	}
	switch {
	case len(f) > 2 && f[2] != helloVersion:
		return hello{}, fmt.Errorf("got the greeting %.80q of version %.20s, this member has version %s: run all members from one version", line, f[2], helloVersion)
	case h.String() != line, h.channel != commandsChannel && h.channel != messagesChannel, !validName(h.from), !validName(h.to):
		return hello{}, fmt.Errorf("got the greeting %.80q, want one such as %q", line, hello{commandsChannel, "a", "b"})
	}
	return h, nil
}

// validName reports whether a name fits into a greeting.
func validName(name string) bool {
	words := strings.Fields(name)
	return len(words) == 1 && words[0] == name && len(name) <= memberNameBytesMax
}
