// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
)

// fact is something besides runs that was acknowledged: that an agent is there,
// or gone, that a key is good, or not any more.
type fact struct {
	what string
	request
	status int // that the request has, ever after
}

func (f *fact) check(l *ledger, life *life) {
	var a answer
	status, err := life.ask(f.request, &a)
	if err == nil && status != f.status {
		l.found(lost, "%s: %s %s: %d %s %s", f.what, f.method, f.path, status, a.Code, a.Detail)
	}
}

// change makes an agent or a key, and takes every second one back. What a kill
// leaves open is no fact.
func (c *client) change(l *life) {
	n := c.count.Add(1)
	makeIt, path := c.newAgent, "/v1/agents/"
	if c.id == 1 {
		makeIt, path = c.newKey, "/v1/keys/"
	}
	f, id, ok := makeIt(l, n)
	if ok && n%2 == 0 {
		var a answer
		status, err := l.ask(request{http.MethodDelete, path + id, "", nil}, &a)
		ok = err == nil
		f.what, f.status = f.what+", and taken back", http.StatusNotFound
		if c.id == 1 {
			f.status = http.StatusUnauthorized
		}
		if ok && status != http.StatusOK {
			c.ledger.found(wrong, "%s: %d %s %s", f.what, status, a.Code, a.Detail)
		}
	}
	if ok {
		c.ledger.keepFact(f)
	}
}

// made is the answer to who makes something.
type made struct {
	answer
	Agent string `json:"agent_id"`
	ID    string `json:"key_id"`
	Key   string `json:"key"`
}

func (c *client) newAgent(l *life, n int64) (f fact, id string, ok bool) {
	var m made
	status, err := l.ask(request{http.MethodPost, "/v1/agents", fmt.Sprintf(`{"name":"extra-%d"}`, n), nil}, &m)
	if err == nil && status != http.StatusCreated {
		c.ledger.found(wrong, "agent extra-%d cannot be made: %d %s %s", n, status, m.Code, m.Detail)
	}
	return fact{"agent " + m.Agent + " was made", request{http.MethodGet, "/v1/agents/" + m.Agent, "", nil}, http.StatusOK}, m.Agent, err == nil && status == http.StatusCreated
}

func (c *client) newKey(l *life, n int64) (f fact, id string, ok bool) {
	var m made
	status, err := l.ask(request{http.MethodPost, "/v1/keys", fmt.Sprintf(`{"name":"key-%d","scopes":["read"]}`, n), nil}, &m)
	if err == nil && status != http.StatusCreated {
		c.ledger.found(wrong, "key-%d cannot be made: %d %s %s", n, status, m.Code, m.Detail)
	}
	return fact{"key " + m.ID + " was made", request{http.MethodGet, "/v1/agents", "", []string{"Authorization", "Bearer " + m.Key}}, http.StatusOK}, m.ID, err == nil && status == http.StatusCreated
}
