// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"strings"

	"github.com/troupe-run/troupe/actor"
)

// spelledBytesMax is the maximum length of a tool name that models accept.
const spelledBytesMax = 64

// ownTools are the tools of this program with which agents reach each other.
var ownTools = []string{CallAgent, AgentCall, AgentPoll, DebateCall, ListAgents, ReadBlob, Remind, RequestCapability}

// ModelName returns the spelling of a declared tool's name for models, most of which accept
// no dots: a__b for a.b. ToolName reverses it.
func ModelName(name string) string { return strings.ReplaceAll(name, ".", "__") }

// ToolName returns the name of the declared tool that has the given spelling.
func ToolName(spelled string) string { return strings.ReplaceAll(spelled, "__", ".") }

// checkDeclaredName returns an error unless a declared tool may have the name. Two such names
// have two spellings for models.
func checkDeclaredName(name string) error {
	if err := actor.CheckUnreserved(name); err != nil {
		return err
	}
	for i := range len(name) {
		if b := name[i]; !isNameByte(b) {
			return fmt.Errorf("%.80q: want only letters, digits, '.', '_' and '-', like browser.open", name)
		}
	}
	switch {
	case name == "":
		return fmt.Errorf("is missing; want the name of the tool, like browser.open")
	case strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, ".."):
		return fmt.Errorf("%.80q: want parts with at least one character before, after and between dots", name)
	case strings.Contains(name, "__") || strings.Contains(name, "_.") || strings.Contains(name, "._"):
		return fmt.Errorf("%.80q: want neither \"__\" nor '_' next to '.', because models see \"__\" for '.'", name)
	case len(ModelName(name)) > spelledBytesMax:
		return fmt.Errorf("%.80q: want at most %d characters, of which each '.' counts as two", name, spelledBytesMax)
	}
	for _, own := range ownTools {
		switch {
		case name == own:
			return fmt.Errorf("%s is a tool of this program; choose another name", name)
		case strings.EqualFold(name, own):
			return fmt.Errorf("%s differs from %s, a tool of this program, only in case; choose another name", name, own)
		}
	}
	return nil
}

// isNameByte reports whether names of tools may contain the byte.
func isNameByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '.' || b == '_' || b == '-'
}
