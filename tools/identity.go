// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Values of the field identity of tools and MCP servers: the form in which a server gets the user of a call.
// Without one it gets none, so that a third party does not learn the names of users.
const (
	IdentityHeaders = "headers" // in headers X-Troupe-…, for MCP in _meta
	IdentityJWT     = "jwt"     // likewise, and signed; see ingress.Signer
)

// Identities are the values of the field identity.
var Identities = []string{IdentityHeaders, IdentityJWT}

// identityNames are the names of {{name}} in URL, headers and body of a tool with an identity.
var identityNames = []string{"user", "session", "agent", "run"}

// identityHeaderPrefix begins the names of headers that the server alone sets.
const identityHeaderPrefix = "x-troupe-"

var identityPlaceholder = regexp.MustCompile(`\{\{([^{}]*)\}\}`)

// checkIdentity returns an error for the first {{name}} in a text that has no value. Other texts in double
// braces are allowed where they may be those of another language.
func (d *Declared) checkIdentity(text string, strict bool) error {
	for _, m := range identityPlaceholder.FindAllStringSubmatch(text, -1) {
		switch known := slices.Contains(identityNames, m[1]); {
		case !known && strict:
			return fmt.Errorf("{{%.80s}} is unknown; want {{user}}, {{session}}, {{agent}} or {{run}}", m[1])
		case known && d.Identity == "":
			return fmt.Errorf("{{%s}} needs identity = %q: without it the server is not told who asks", m[1], IdentityHeaders)
		}
	}
	return nil
}

// withoutIdentity returns a URL in which each {{name}} of an identity is a {name} that is known.
func withoutIdentity(url string) string {
	return identityPlaceholder.ReplaceAllStringFunc(url, func(text string) string {
		if name := strings.Trim(text, "{}"); slices.Contains(identityNames, name) {
			return "{" + identityHeaderPrefix + name + "}"
		}
		return text
	})
}
