// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The agents. Two come with the server and are written in Go: the helper, and
// the coordinator, who asks it and waits for a signal. Two have the scripted
// model: the teller says what it is told to, the asker asks others. The others
// live outside: see type outside.
const (
	helper      = "helper"
	coordinator = "coordinator"
	teller      = "teller"
	asker       = "asker"
	porter      = "porter"
	clerk       = "clerk"
	broker      = "broker"
)

// writeTeam writes the files of those agents that do not come with the server.
func writeTeam(dir, url string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, retry := range map[string]string{teller: "", asker: "", porter: "safe", clerk: "never", broker: "safe"} {
		// One kill after the other may fall upon the same run: time is not to end it.
		text := fmt.Sprintf("name = %q\nlimits.call_timeout_ms = 300000\n", name)
		if retry != "" {
			text = fmt.Sprintf("name = %q\nkind = \"external\"\nendpoint = \"%s/%s\"\nretry = %q\nconcurrency = 64\nlimits.invoke_timeout_ms = 300000\n", name, url, name, retry)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// job is a kind of errand.
type job struct {
	agent  string
	stream bool
	calls  int  // that its run makes
	unsure bool // what became of a message may be unknown after a kill, and it says so
	cancel bool // its client gives it up
	// say is the message around a word, and the answer; "" if that depends.
	say func(word string) (content, want string)
}

// mayFail tells whether such a failure is a right answer to this message.
func (e *errand) mayFail(code string) bool {
	return e.unsure && code == "outcome_unknown" || e.cancel && code == "cancelled"
}

// jobsOf is what a client does in turn.
func jobsOf(id int) []job {
	switch id % 8 {
	case 0:
		return []job{told, asked, held}
	case 1:
		return []job{told.streamed(), asked.streamed(), held.streamed()}
	case 2:
		return []job{asked, carried, brokered.streamed(), brokered}
	case 3:
		return []job{carried.streamed(), noted.streamed(), noted}
	case 4:
		return []job{asksPorter.streamed(), asksClerk.streamed(), asksPorter}
	case 5:
		return []job{asksBoth.streamed(), asksBroker.streamed(), asked.streamed()}
	case 6:
		return []job{dropped.streamed(), carried.streamed()}
	default:
		return []job{held.streamed(), asksBoth}
	}
}

// The jobs. What the clerk does may come to nothing, and so may all that waits for it.
var (
	told  = job{agent: teller, say: long}
	asked = job{agent: asker, calls: 1, say: func(word string) (string, string) { return "Ask the teller agent to " + sayLong(word), longOf(word) }}
	held  = job{agent: coordinator, calls: 1, say: func(word string) (string, string) {
		return word, "I asked the helper. It said: response from helper: " + word
	}}
	carried = job{agent: porter, say: func(word string) (string, string) {
		return word + " and much more", says(porter, word+" and much more")
	}}
	noted = job{agent: clerk, unsure: true, say: func(word string) (string, string) {
		return word + " in three copies", says(clerk, word+" in three copies")
	}}
	dropped    = job{agent: porter, cancel: true, say: func(word string) (string, string) { return longOf(word), says(porter, longOf(word)) }}
	brokered   = job{agent: broker, calls: 1, say: func(word string) (string, string) { return longOf(word), says(broker, longOf(word)) }}
	asksBroker = job{agent: asker, calls: 2, say: func(word string) (string, string) {
		return "ask broker: " + longOf(word), says(broker, longOf(word))
	}}
	asksPorter = job{agent: asker, calls: 1, say: func(word string) (string, string) { return "ask porter: " + word, says(porter, word) }}
	asksClerk  = job{agent: asker, calls: 1, say: func(word string) (string, string) { return "ask clerk: " + word, "" }}
	asksBoth   = job{agent: asker, calls: 2, say: func(word string) (string, string) {
		return "ask porter: " + word + "\nask teller: " + sayLong(word), says(porter, word) + "\n" + longOf(word)
	}}
)

func (j job) streamed() job {
	j.stream = true
	return j
}

func long(word string) (content, want string) { return sayLong(word), longOf(word) }

// longOf is a text that is told in pieces.
func longOf(word string) string { return strings.TrimSpace(strings.Repeat(word+" ", 12)) }

func sayLong(word string) string { return "say " + longOf(word) }
