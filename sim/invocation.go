// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/upstream"
)

// invocation holds the texts in the body of an invocation as an external agent reads it
// that knows the printed example only. The key of a text is the one that the example has
// in its place, such as agentA for the ID of the agent.
type invocation map[string]string

// The texts of the example.
const (
	exampleAgent   = "agentA"
	exampleSession = "s1"
	exampleRun     = "run1"
	exampleRole    = "user"
	exampleContent = "hi"
	exampleUser    = "u1"
)

// projectMember is the member that the server adds to those of the example: the project
// of the call, if it has one.
const projectMember = "/context/project_id"

// readInvocation reads a body. It returns an error unless the body has exactly the
// members of the example, with their types, and possibly a project.
func readInvocation(body []byte) (invocation, error) {
	var example, got any
	err := json.Unmarshal([]byte(upstream.InvokeExample()), &example)
	invariant.Check(err == nil, "sim: example of an invocation: %v", err)
	if err := json.Unmarshal(body, &got); err != nil {
		return nil, err
	}
	in := invocation{}
	return in, in.read("", example, got)
}

// read reads a value in the place of a value of the example. The items of a list have the
// form of the first item of the example, and their texts are not kept.
func (in invocation) read(path string, example, got any) error {
	switch example := example.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: got %v, want an object", path, got)
		}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			want, known := example[name]
			switch at := path + "/" + name; {
			case known:
			case at == projectMember:
				want = projectMember
			default:
				return fmt.Errorf("%s: the example has no such member", at)
			}
			if err := in.read(path+"/"+name, want, object[name]); err != nil {
				return err
			}
		}
		for _, name := range slices.Sorted(maps.Keys(example)) {
			if _, ok := object[name]; !ok {
				return fmt.Errorf("%s/%s: is missing", path, name)
			}
		}
	case []any:
		list, ok := got.([]any)
		if !ok {
			return fmt.Errorf("%s: got %v, want a list", path, got)
		}
		for i, item := range list {
			if err := (invocation{}).read(fmt.Sprintf("%s/%d", path, i), example[0], item); err != nil {
				return err
			}
		}
	case string:
		text, ok := got.(string)
		if !ok {
			return fmt.Errorf("%s: got %v, want a text", path, got)
		}
		in[example] = text
	}
	return nil
}
