// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
)

// resource is an agent or an API key whose creation or deletion was acknowledged.
// The field request is the request that checks it.
type resource struct {
	description string
	request
	status int // expected HTTP status of the request, from now on
}

// check makes the request and reports an unexpected answer. An error means that
// there was no complete one.
func (f *resource) check(l *ledger, inst *instance) error {
	var a answer
	status, err := inst.ask(f.request, &a)
	if err == nil && status != f.status {
		l.report(lost, "%s: %s %s: got %d %s %s, want %d", f.description, f.method, f.path, status, a.Code, a.Detail, f.status)
	}
	return err
}

// changeResource creates an agent or a key, and deletes every second resource
// again. A change interrupted by a kill has no known outcome and is not recorded.
func (c *client) changeResource(inst *instance) {
	n := c.counter.Add(1)
	makeIt, path := c.newAgent, "/v1/agents/"
	if c.id == 1 {
		makeIt, path = c.newKey, "/v1/keys/"
	}
	f, id, ok := makeIt(inst, n)
	if ok && n%2 == 0 {
		var a answer
		status, err := inst.ask(request{http.MethodDelete, path + id, "", nil}, &a)
		ok = err == nil
		f.description, f.status = f.description+", then deleted", http.StatusNotFound
		if c.id == 1 {
			f.status = http.StatusUnauthorized
		}
		if ok && status != http.StatusOK {
			c.ledger.report(wrong, "%s: %d %s %s", f.description, status, a.Code, a.Detail)
		}
	}
	if ok {
		c.ledger.addResource(f)
	}
}

// creation is the response to the creation of an agent or a key.
type creation struct {
	answer
	Agent string `json:"agent_id"`
	ID    string `json:"key_id"`
	Key   string `json:"key"`
}

func (c *client) newAgent(inst *instance, n int64) (f resource, id string, ok bool) {
	var m creation
	status, err := inst.ask(request{http.MethodPost, "/v1/agents", fmt.Sprintf(`{"name":"extra-%d"}`, n), nil}, &m)
	made := status == http.StatusCreated || status == http.StatusOK && c.harness.cluster != nil // a repeat of a request whose owner went while it waited
	if err == nil && !made {
		c.ledger.report(wrong, "create agent extra-%d: %d %s %s", n, status, m.Code, m.Detail)
	}
	return resource{"agent " + m.Agent + " created", request{http.MethodGet, "/v1/agents/" + m.Agent, "", nil}, http.StatusOK}, m.Agent, err == nil && made
}

func (c *client) newKey(inst *instance, n int64) (f resource, id string, ok bool) {
	var m creation
	status, err := inst.ask(request{http.MethodPost, "/v1/keys", fmt.Sprintf(`{"name":"key-%d","scopes":["read"]}`, n), nil}, &m)
	if err == nil && status != http.StatusCreated {
		c.ledger.report(wrong, "create key-%d: %d %s %s", n, status, m.Code, m.Detail)
	}
	return resource{"key " + m.ID + " created", request{http.MethodGet, "/v1/agents", "", []string{"Authorization", "Bearer " + m.Key}}, http.StatusOK}, m.ID, err == nil && status == http.StatusCreated
}
