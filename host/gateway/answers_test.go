// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/internal/shares"
)

// A client that reads no answer has a share of the memory for answers, and others get theirs. A
// request that may have had an effect is not refused: its repeat gets the answer.
func TestUnreadAnswersTakeShares(t *testing.T) {
	answers := shares.New[string](shares.Bounds{Max: 8 << 20, Each: 3 << 19})
	d := startGatewayPrepared(t, t.TempDir(), Config{}, nil, func(s *Server) { s.connections.answers.Shares = answers }, longAnswerAgent())
	const scopes = `"scopes":["call","read"]`
	mallory, bob := d.newUser(`"user":"mallory",`+scopes), d.newUser(`"user":"bob",`+scopes)
	path := map[user]string{}
	for _, u := range []user{mallory, bob} {
		var c contextResponse
		if status := u.doJSON(&c, "POST", "/v1/context", `{"session_id":"s","data":{"text":"`+strings.Repeat("x", 1_000_000)+`"}}`, "Authorization", "Bearer "+u.key); status != 201 {
			t.Fatal(status, c)
		}
		path[u] = "/v1/context/" + c.Key
	}
	request := func(method, path, headers, body string) string {
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", method, path, d.address, mallory.key, headers, len(body), body)
	}
	silent := d.dialSmallBuffer()
	fmt.Fprint(silent, strings.Repeat(request("GET", path[mallory], "", ""), 12)) // buffers of the kernel hold some
	for tries, status, answer := 0, 0, ""; status != 429; tries++ {
		if status, answer = mallory.do("GET", path[mallory], ""); tries == 500 || status != 200 && (status != 429 || !strings.Contains(answer, "answers that you have not read")) {
			t.Fatalf("request %d: %d %.300s", tries, status, answer)
		}
	}
	if status, answer := bob.do("GET", path[bob], ""); status != 200 {
		t.Errorf("another user: %d %.200s", status, answer)
	}
	if status, answer := mallory.do("GET", "/v1/agents", ""); status != 200 {
		t.Errorf("a short answer: %d %.200s", status, answer)
	}
	message := request("POST", "/v1/agents/long/messages", "Idempotency-Key: one\r\n", `{"content":"x"}`)
	lost := d.dialSmallBuffer()
	fmt.Fprint(lost, message)
	if response, err := http.ReadResponse(bufio.NewReader(lost), nil); err == nil {
		t.Errorf("a message was answered with %d", response.StatusCode)
	}
	_ = silent.Close()
	released := func() {
		for answers.Taken() != 0 {
			if status, answer := mallory.do("GET", "/v1/agents", ""); status != 200 { // until the server knows of the close
				t.Fatal(status, answer)
			}
		}
	}
	released()
	again := d.dialSmallBuffer()
	fmt.Fprint(again, message)
	if response, err := http.ReadResponse(bufio.NewReader(again), nil); err != nil || response.StatusCode != 200 || response.ContentLength < 1_000_000 {
		t.Errorf("the repeat: %v %+v", err, response)
	}
	if status, answer := mallory.do("GET", "/v1/runs?agent_id=long", ""); strings.Count(answer, `"run_id"`) != 1 {
		t.Errorf("the message ran again: %d %.300s", status, answer)
	}
	_ = again.Close()
	released()
}

// Requests for contexts wait for each other, because each has several copies of a value in memory.
func TestReadsOfContextsTakeTurns(t *testing.T) {
	d := startGateway(t)
	u := d.newUser(`"user":"mallory","scopes":["call","read"]`)
	var c contextResponse
	if status := u.doJSON(&c, "POST", "/v1/context", `{"session_id":"s","data":{"n":1}}`, "Authorization", "Bearer "+u.key); status != 201 {
		t.Fatal(status, c)
	}
	by := &caller{Principal: actor.Principal{User: "mallory"}}
	var turns []func()
	for range turnsEach {
		turns = append(turns, d.server.turns.take(by))
	}
	answered := make(chan int, 1)
	go func() {
		status, _ := u.do("GET", "/v1/context/"+c.Key, "")
		answered <- status
	}()
	for readers := 0; readers <= turnsEach; runtime.Gosched() {
		select {
		case status := <-answered:
			t.Fatalf("it did not wait: %d", status)
		default:
		}
		d.server.turns.mu.Lock()
		readers = d.server.turns.by["mallory"].readers
		d.server.turns.mu.Unlock()
	}
	for _, done := range turns {
		done()
	}
	if status := <-answered; status != 200 {
		t.Error(status)
	}
}
