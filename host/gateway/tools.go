// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/agents"
	"github.com/troupe-run/troupe/ingress"
	"github.com/troupe-run/troupe/internal/command"
	"github.com/troupe-run/troupe/internal/invariant"
)

// toolRoutes are the routes about declared tools.
type toolRoutes struct{ *Server }

// listTools answers with a page of the declared tools, without the fields that only the
// server needs to perform them.
func (s toolRoutes) listTools(ctx *fasthttp.RequestCtx) {
	found, err := lookup(s.Server, callerOf(ctx), command.ToolsQuery{})
	if err != nil {
		s.respondError(ctx, err)
		return
	}
	page, next, p := namesPage(ctx, ingress.CursorKey(s.config.Secret), "tools", found.All, func(t *command.Tool) string { return t.Name })
	if p != nil {
		p.write(ctx)
		return
	}
	// tool is a row of the list. A policy that is empty is the default of the deployment.
	type tool struct {
		Name        string         `json:"tool_name"`
		Kind        string         `json:"kind"`
		Via         string         `json:"via,omitzero"`
		Description string         `json:"description,omitzero"`
		Policy      string         `json:"policy"`
		Timeout     int64          `json:"timeout_ms"`
		Metadata    jsontext.Value `json:"metadata"`
		Owner       string         `json:"owner"`
		Definition  string         `json:"definition"`
	}
	out := struct {
		Tools []tool `json:"tools"`
		Next  string `json:"next_cursor,omitzero"`
	}{Tools: []tool{}, Next: next}
	for i := range page {
		t := tool{Owner: page[i].Owner, Definition: page[i].Hash.String()}
		if err := json.Unmarshal(page[i].Definition, &t); err != nil {
			s.respondError(ctx, err)
			return
		}
		if t.Metadata == nil {
			t.Metadata = jsontext.Value("{}")
		}
		out.Tools = append(out.Tools, t)
	}
	respondJSON(ctx, http.StatusOK, out)
}

// findTool returns the declared tool that a request names.
func (s toolRoutes) findTool(ctx *fasthttp.RequestCtx, name string) (command.Tool, *problem) {
	found, err := lookup(s.Server, callerOf(ctx), command.ToolsQuery{})
	if err != nil {
		return command.Tool{}, s.errorProblem(ctx, err)
	}
	i, ok := slices.BinarySearchFunc(found.All, name, func(t command.Tool, name string) int { return strings.Compare(t.Name, name) })
	if !ok {
		return command.Tool{}, refusalProblem(actor.ToolNotFound(name))
	}
	return found.All[i], nil
}

// toolField is the field of a refusal that is about a tool.
const toolField = "tool_name"

// getTool answers with the definition of a tool.
func (s toolRoutes) getTool(ctx *fasthttp.RequestCtx) {
	t, p := s.findTool(ctx, pathParam(ctx, "id"))
	if p != nil {
		p.write(ctx)
		return
	}
	respondJSON(ctx, http.StatusOK, struct {
		Declared   jsontext.Value `json:",embed"`
		Owner      string         `json:"owner"`
		Definition string         `json:"definition"`
	}{t.Definition, t.Owner, t.Hash.String()})
}

func (s toolRoutes) createTool(ctx *fasthttp.RequestCtx) { s.putTool(ctx, ingress.CheckObject) }

func (s toolRoutes) replaceTool(ctx *fasthttp.RequestCtx) {
	s.putTool(ctx, func(body []byte) *actor.Refusal { return ingress.CheckToolName(pathParam(ctx, "id"), body) })
}

// putTool sends the definition of a tool to the registry, which validates it. An unchanged
// definition has no effect.
func (s toolRoutes) putTool(ctx *fasthttp.RequestCtx, check func([]byte) *actor.Refusal) {
	definition, p := decodeBody(ctx, func(b []byte) ([]byte, *actor.Refusal) { return b, check(b) })
	if p == nil {
		p = s.checkSecrets(definition)
	}
	if p == nil {
		p = s.checkDeclarable(ctx, nameOf(definition))
	}
	if p != nil {
		p.write(ctx)
		return
	}
	putInRegistry(s.Server, ctx, agents.OpPutTool, definition)
}

// nameOf returns the name of the tool in a definition; "" if it has none.
func nameOf(definition []byte) string {
	var in struct {
		Name  string `json:"tool_name"`
		Other string `json:"name"`
	}
	if json.Unmarshal(definition, &in) != nil { // the registry names its mistakes
		return ""
	}
	return cmp.Or(in.Name, in.Other)
}

// checkDeclarable refuses the name of a tool of the program or of an MCP server, which users neither
// replace nor delete.
func (s toolRoutes) checkDeclarable(ctx *fasthttp.RequestCtx, name string) *problem {
	found, p := s.findTool(ctx, name)
	if p != nil {
		return nil // the registry answers
	}
	var in struct {
		Via string `json:"via"`
	}
	if err := json.Unmarshal(found.Definition, &in); err != nil {
		return nil
	}
	var r *actor.Refusal
	switch in.Via {
	case viaGo:
		r = actor.Refuse(actor.Rejected, "%s is part of this program, which alone changes it; choose another name", name)
	case viaMCP:
		r = actor.Refuse(actor.Rejected, "%s is a tool of an MCP server, whose file declares it; choose another name", name)
	default:
		return nil
	}
	r.Field = toolField
	return refusalProblem(r)
}

// Values of via of tools that users do not declare.
const (
	viaGo  = "go"  // of the program
	viaMCP = "mcp" // of an MCP server
)

// checkSecrets refuses a definition that names a secret which may not be sent to its URL. An
// invalid definition is left to the registry.
func (s toolRoutes) checkSecrets(definition []byte) *problem {
	if s.config.External == nil {
		return nil
	}
	return permitProblem(s.config.External.PermitDefinition(definition), "headers")
}

// deleteTool deletes a tool. Calls that were made of it end as they would have, but those
// that wait for a person are not performed.
func (s toolRoutes) deleteTool(ctx *fasthttp.RequestCtx) {
	t, p := s.findTool(ctx, pathParam(ctx, "id"))
	if p == nil {
		p = requireEmptyBody(ctx)
	}
	if p == nil {
		p = s.checkDeclarable(ctx, t.Name)
	}
	if p != nil {
		p.write(ctx)
		return
	}
	body := invariant.Must(json.Marshal(map[string]string{toolField: t.Name}))
	if answer, stop := s.callRegistry(ctx, agents.OpDeleteTool, body); !stop {
		respond(ctx, http.StatusOK, answer)
	}
}
