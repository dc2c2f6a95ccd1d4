// SPDX-License-Identifier: Apache-2.0

// Command notes is an MCP server over its standard streams. It keeps notes, one per line, in the file that its
// argument names.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type note struct {
	Text string `json:"text" jsonschema:"the note, one line"`
}

type notes struct {
	Notes []string `json:"notes"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: notes FILE")
		os.Exit(2)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "add", Description: "Adds a note."},
		func(_ context.Context, _ *mcp.CallToolRequest, in note) (*mcp.CallToolResult, notes, error) {
			if err := add(os.Args[1], in.Text); err != nil {
				return nil, notes{}, err
			}
			all, err := read(os.Args[1])
			return nil, all, err
		})
	mcp.AddTool(server, &mcp.Tool{Name: "list", Description: "Lists all notes.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, notes, error) {
			all, err := read(os.Args[1])
			return nil, all, err
		})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func add(path, text string) error {
	if text == "" || strings.ContainsAny(text, "\r\n") {
		return errors.New("want a note of one line")
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, text)
	return errors.Join(err, f.Close())
}

func read(path string) (notes, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	all := notes{[]string{}}
	for line := range strings.Lines(string(b)) {
		all.Notes = append(all.Notes, strings.TrimSuffix(line, "\n"))
	}
	return all, err
}
