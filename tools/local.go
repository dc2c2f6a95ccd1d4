// SPDX-License-Identifier: Apache-2.0

package tools

import "slices"

// ViaGo means that a function of this program performs a server tool. Users cannot declare
// such a tool.
const ViaGo = "go"

// ViaMCP means that a server of the Model Context Protocol performs a server tool. Users declare
// the server, and it lists its tools.
const ViaMCP = "mcp"

// Local returns a tool that a function of this program performs. The policy decides about its
// calls as about those of a declared tool. Fields of requests MUST be zero. The error is of type
// FieldErrors.
func Local(d Declared, handler Handler) (Tool, error) { return handled(d, ViaGo, handler) }

// OfServer is Local for a tool of an MCP server, which the handler calls. Patterns of its schema that
// cannot be checked here are left to the server.
func OfServer(d Declared, handler Handler) (Tool, error) { return handled(d, ViaMCP, handler) }

func handled(d Declared, via string, handler Handler) (Tool, error) {
	d.Kind, d.Via, d.lenient = KindServer, via, via == ViaMCP
	problems := d.checkLocal()
	if len(problems) > 0 {
		return Tool{}, problems
	}
	d.setDefaults()
	return Tool{Name: d.Name, Description: d.Description, Schema: string(d.InputSchema), Timeout: d.Timeout(), Idempotent: d.Idempotent,
		Handler: handler, Declared: &d, schema: d.schema}, nil
}

// checkLocal returns the errors of a local tool and sets its compiled schema. The rules of requests do
// not apply.
func (d *Declared) checkLocal() (problems FieldErrors) {
	own := *d
	own.Kind, own.Via = KindClient, "" // a client tool has no fields of requests either
	own.schema, problems = own.check()
	if len(problems) == 0 && len(own.Encode()) > DeclaredBytesMax {
		problems = FieldErrors{{Text: "the definition is too large"}}
	}
	d.schema = own.schema
	return slices.Clip(problems)
}

// IsLocal reports whether the tool has a handler, which this program runs.
func (d *Declared) IsLocal() bool { return d.Via == ViaGo || d.Via == ViaMCP }
