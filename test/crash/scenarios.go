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

// scenario is a kind of errand.
type scenario struct {
	agent        string
	stream       bool
	calls        int  // that its run makes
	mayBeUnknown bool // what became of a message may be unknown after a kill, and it says so
	cancels      bool // its client gives it up
	// compose is the message around a word, and the answer; "" if that depends.
	compose func(word string) (content, want string)
}

// allowsFailure tells whether such a failure is a right answer to this message.
func (e *exchange) allowsFailure(code string) bool {
	return e.mayBeUnknown && code == "outcome_unknown" || e.cancels && code == "cancelled"
}

// scenariosOf is what a client does in turn.
func scenariosOf(id int) []scenario {
	switch id % 8 {
	case 0:
		return []scenario{tellerCall, askerCall, signalledCall}
	case 1:
		return []scenario{tellerCall.withStream(), askerCall.withStream(), signalledCall.withStream()}
	case 2:
		return []scenario{askerCall, porterCall, brokerCall.withStream(), brokerCall}
	case 3:
		return []scenario{porterCall.withStream(), clerkCall.withStream(), clerkCall}
	case 4:
		return []scenario{askerToPorter.withStream(), askerToClerk.withStream(), askerToPorter}
	case 5:
		return []scenario{askerToTwo.withStream(), askerToBroker.withStream(), askerCall.withStream()}
	case 6:
		return []scenario{cancelledCall.withStream(), porterCall.withStream()}
	default:
		return []scenario{signalledCall.withStream(), askerToTwo}
	}
}

// The jobs. What the clerk does may come to nothing, and so may all that waits for it.
var (
	tellerCall = scenario{agent: teller, compose: sayRepeated}
	askerCall  = scenario{agent: asker, calls: 1, compose: func(word string) (string, string) {
		return "Ask the teller agent to " + sayCommand(word), repeatWord(word)
	}}
	signalledCall = scenario{agent: coordinator, calls: 1, compose: func(word string) (string, string) {
		return word, "I asked the helper. It said: response from helper: " + word
	}}
	porterCall = scenario{agent: porter, compose: func(word string) (string, string) {
		return word + " and much more", externalAnswer(porter, word+" and much more")
	}}
	clerkCall = scenario{agent: clerk, mayBeUnknown: true, compose: func(word string) (string, string) {
		return word + " in three copies", externalAnswer(clerk, word+" in three copies")
	}}
	cancelledCall = scenario{agent: porter, cancels: true, compose: func(word string) (string, string) { return repeatWord(word), externalAnswer(porter, repeatWord(word)) }}
	brokerCall    = scenario{agent: broker, calls: 1, compose: func(word string) (string, string) { return repeatWord(word), externalAnswer(broker, repeatWord(word)) }}
	askerToBroker = scenario{agent: asker, calls: 2, compose: func(word string) (string, string) {
		return "ask broker: " + repeatWord(word), externalAnswer(broker, repeatWord(word))
	}}
	askerToPorter = scenario{agent: asker, calls: 1, compose: func(word string) (string, string) { return "ask porter: " + word, externalAnswer(porter, word) }}
	askerToClerk  = scenario{agent: asker, calls: 1, compose: func(word string) (string, string) { return "ask clerk: " + word, "" }}
	askerToTwo    = scenario{agent: asker, calls: 2, compose: func(word string) (string, string) {
		return "ask porter: " + word + "\nask teller: " + sayCommand(word), externalAnswer(porter, word) + "\n" + repeatWord(word)
	}}
)

func (j scenario) withStream() scenario {
	j.stream = true
	return j
}

func sayRepeated(word string) (content, want string) { return sayCommand(word), repeatWord(word) }

// repeatWord is a text that is told in pieces.
func repeatWord(word string) string { return strings.TrimSpace(strings.Repeat(word+" ", 12)) }

func sayCommand(word string) string { return "say " + repeatWord(word) }
