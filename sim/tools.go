// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"sync"

	"github.com/troupe-run/troupe/internal/must"
	"github.com/troupe-run/troupe/tools"
)

const anyObject = `{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}`

// worldTools are made once: a registry that is built is only read.
var worldTools = sync.OnceValue(newTools)

// The tools of a world.
const (
	clockTool = "clock"
	postTool  = "post"
)

// newTools are the tools of a world: one that may be used again, one that may not.
func newTools() *tools.Registry {
	r := tools.NewRegistry()
	must.Do(0, r.RegisterBuiltin(tools.Tool{Name: clockTool, Description: "Says what it always says.", Schema: anyObject, Idempotent: true,
		Handler: func(context.Context, []byte) tools.Result { return tools.Text("it is late") }}))
	must.Do(0, r.RegisterBuiltin(tools.Tool{Name: postTool, Description: "Posts a letter.", Schema: anyObject,
		Handler: func(context.Context, []byte) tools.Result { return tools.Text("posted") }}))
	return r
}
