// SPDX-License-Identifier: Apache-2.0

// Command embed talks to its agents. With the argument kill, it is killed in a turn, which then continues.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/troupe-run/troupe"
)

var mode, dir = append(os.Args, "")[1], append(os.Args, "", "")[2] // kill; of the process that is killed: child, folder
var agents = []troupe.Agent{
	{Name: "helper", Func: func(t *troupe.Turn) (string, error) {
		_, err := t.Do("work", func(context.Context) ([]byte, error) {
			if mode == "child" {
				must(os.FindProcess(os.Getpid())).Kill() // kill -9
			}
			return nil, nil
		}, troupe.Idempotent())
		return "echo " + t.Message(), err
	}},
	{Name: "coordinator", Transcript: "all", Func: func(t *troupe.Turn) (string, error) {
		answer, err := t.Call("helper", t.Message())
		return fmt.Sprintf("after %d messages: %s", len(t.Transcript()), answer), err
	}},
}

func main() {
	if mode != "child" {
		dir = must(os.MkdirTemp("", "embed-"))
		defer os.RemoveAll(dir)
	}
	if mode == "kill" {
		fmt.Println("child:", exec.Command(os.Args[0], "child", dir).Run())
	}
	server := must(troupe.Open(troupe.Config{Data: dir, Agents: agents}))
	defer server.Close()
	for _, word := range []string{"one", "two"} { // the key of the first joins the run that the child began
		fmt.Println(must(server.Call(context.Background(), "coordinator", word, troupe.Session("s"), troupe.IdempotencyKey(word))).Text)
	}
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	go server.Serve(l)
	response := must(http.Post("http://"+l.Addr().String()+"/v1/agents/coordinator/messages", "application/json", strings.NewReader(`{"content":"three","session_id":"s"}`)))
	fmt.Println(string(must(io.ReadAll(response.Body))))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
