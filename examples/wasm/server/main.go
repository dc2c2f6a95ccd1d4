// SPDX-License-Identifier: Apache-2.0

// Command server is an MCP server that the node runs as a module of WebAssembly: messages on standard input and
// output, one a line. It counts words. What it counts stays in its memory, as long as the module runs.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// message is a request, a notification or a response of JSON-RPC.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   any             `json:"error,omitempty"`
}

// object is a JSON object.
type object = map[string]any

var countTool = object{"name": "count", "description": "Counts the words of a text, and those of all texts so far.",
	"inputSchema": object{"type": "object", "properties": object{"text": object{"type": "string"}}, "required": []string{"text"}}}

func main() {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	in.Buffer(nil, 1<<20)
	total := 0
	for in.Scan() {
		var m message
		if err := json.Unmarshal(in.Bytes(), &m); err != nil || m.ID == nil { // a notification has no answer
			continue
		}
		answer := message{Version: "2.0", ID: m.ID}
		switch m.Method {
		case "initialize":
			var p struct {
				Version string `json:"protocolVersion"`
			}
			_ = json.Unmarshal(m.Params, &p)
			answer.Result = object{"protocolVersion": p.Version, "capabilities": object{"tools": object{}}, "serverInfo": object{"name": "words", "version": "1"}}
		case "ping":
			answer.Result = object{}
		case "tools/list":
			answer.Result = object{"tools": []any{countTool}}
		case "tools/call":
			var p struct {
				Arguments struct {
					Text string `json:"text"`
				} `json:"arguments"`
			}
			_ = json.Unmarshal(m.Params, &p)
			n := len(strings.Fields(p.Arguments.Text))
			total += n
			answer.Result = object{"content": []any{object{"type": "text", "text": fmt.Sprintf("%d words, %d in all", n, total)}}}
		default:
			answer.Error = object{"code": -32601, "message": "unknown method " + m.Method}
		}
		if err := out.Encode(answer); err != nil {
			os.Exit(1)
		}
	}
}
