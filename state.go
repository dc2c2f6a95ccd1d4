// SPDX-License-Identifier: Apache-2.0

package troupe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/troupe-run/troupe/actor"
)

// stateBytesMax is the maximum size of a state as JSON, in bytes.
const stateBytesMax = 1 << 20

// State returns the value that the agent keeps in this session, as SetState has stored it; the zero
// value if there is none. It is decoded with encoding/json. A state with another version than
// Agent.StateVersion goes through Agent.Migrate. The state is deleted with its session.
func State[T any](t *Turn) (T, error) {
	var value T
	version, state, err := readState(t)
	if err == nil && state != nil && version != t.agent.StateVersion {
		if state, err = t.agent.Migrate(version, bytes.Clone(state)); err != nil {
			err = fmt.Errorf("migrate from version %d: %w", version, err)
		}
	}
	if err == nil && state != nil {
		err = json.Unmarshal(state, &value)
	}
	if err != nil {
		return value, stateError(t, err)
	}
	return value, nil
}

// SetState replaces the value that the agent keeps in this session. It is encoded with
// encoding/json, at most 1 MiB. The value is persisted together with the answer of the turn: a
// turn that fails changes nothing. Turns that start later see it.
func SetState[T any](t *Turn, value T) error {
	state, err := json.Marshal(value)
	switch {
	case err == nil && len(state) > stateBytesMax:
		err = Refuse(CodeBudgetExceeded, "%d bytes, at most %d allowed", len(state), stateBytesMax)
	case err == nil:
		_, _, err = readState(t) // a state of another version MUST NOT be lost
	}
	if err != nil {
		return stateError(t, err)
	}
	writeState(t, t.agent.StateVersion, state)
	return nil
}

func stateError(t *Turn, err error) error {
	return fmt.Errorf("state of %s in session %s: %w", t.agent.Name, t.Session(), err)
}

// The state is the version, a line feed and the JSON text, in state items of
// actor.StateItemValueBytesMax bytes.

// stateItemsMax is the maximum number of items of a state.
const stateItemsMax = stateBytesMax/actor.StateItemValueBytesMax + 1

// stateItemPrefix is the prefix of the names of its items.
const stateItemPrefix = "state/"

func stateItem(i int) string { return fmt.Sprintf("%s%02d", stateItemPrefix, i) }

// stateValues returns the values of the items of a state.
func stateValues(version int, state []byte) (values [][]byte) {
	all := append(strconv.AppendInt(nil, int64(version), 10), '\n')
	all = append(all, state...)
	for len(all) > 0 {
		n := min(len(all), actor.StateItemValueBytesMax)
		values = append(values, all[:n:n])
		all = all[n:]
	}
	return values
}

// readState returns the stored state and its version; nil if there is none. It refuses a version that
// the agent cannot read.
func readState(t *Turn) (version int, state []byte, err error) {
	var all []byte
	for i := range stateItemsMax {
		all = append(all, t.turn.State(stateItem(i))...)
	}
	if all == nil {
		return 0, nil, nil
	}
	head, state, ok := bytes.Cut(all, []byte("\n"))
	if version, err = strconv.Atoi(string(head)); err != nil || !ok {
		return 0, nil, Refuse(CodeRejected, "it was not written by SetState")
	}
	if version != t.agent.StateVersion && t.agent.Migrate == nil {
		return 0, nil, Refuse(CodeRejected, "it has version %d, and this program has version %d: set Agent.Migrate, or delete the session", version, t.agent.StateVersion)
	}
	return version, state, nil
}

// writeState changes the items that differ.
func writeState(t *Turn, version int, state []byte) {
	values := stateValues(version, state)
	for i := range stateItemsMax {
		var value []byte
		if i < len(values) {
			value = values[i]
		}
		if !bytes.Equal(t.turn.State(stateItem(i)), value) {
			t.turn.SetState(stateItem(i), value)
		}
	}
}
