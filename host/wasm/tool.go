// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/troupe-run/troupe/actor"
	"github.com/troupe-run/troupe/tools"
)

// Install keeps a module, whose SHA-256 MUST be sum, so that tools with this sum can be performed.
func (w *Workers) Install(sum string, module []byte) error { return w.modules.put(sum, module) }

// Permit returns an error if this server cannot perform a tool.
func (w *Workers) Permit(d *tools.Declared) error {
	if !w.modules.has(d.SHA256) {
		return fmt.Errorf("sha256: this server has no module %.64s; declare the tool in a file of --agents, whose field file names the module", d.SHA256)
	}
	return nil
}

// Perform performs a call of a tool on behalf of a user. A repetition of the call has the same id, and so the
// same randomness.
func (w *Workers) Perform(ctx context.Context, d *tools.Declared, user, id string, input []byte) actor.Answer {
	hash := sha256.New()
	for _, part := range []string{d.SHA256, id, string(input)} {
		fmt.Fprintf(hash, "%d %s", len(part), part)
	}
	result, err := w.call(ctx, user, d.SHA256, d.Grant, [seedBytes]byte(hash.Sum(nil)), input)
	switch {
	case errors.Is(err, errClosed):
		return tools.Refused(actor.Refuse(actor.Unavailable, "tool %s: %v", d.Name, err))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return tools.Refused(&actor.Refusal{Reason: actor.Deadline, Operation: "invoke " + d.Name, Detail: d.Name + ": the module did not end in time and was ended"})
	case errors.As(err, new(*failure)):
		return tools.Refused(actor.Refuse(actor.Unavailable, "tool %s: the module %v", d.Name, err))
	case err != nil:
		return tools.Refused(actor.Refuse(actor.Unavailable, "tool %s: %v", d.Name, err))
	}
	return answerOf(d.Name, result)
}

// answerOf returns the result of a module: a JSON value, or else text.
func answerOf(name string, output []byte) actor.Answer {
	output = bytes.TrimSpace(output)
	switch value := jsontext.Value(output); {
	case len(output) == 0:
		return tools.Refused(actor.Refuse(actor.Unavailable, "tool %s: the module printed nothing on standard output; want a JSON value", name))
	case value.IsValid():
		return tools.JSON(output)
	}
	return tools.Text(strings.ToValidUTF8(string(output), "\uFFFD"))
}
