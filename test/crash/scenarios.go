// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The agents. Two are Go agents of the server: the helper, and the coordinator,
// which asks the helper and waits for a signal. Three use the scripted model: the
// teller repeats its input, the asker calls other agents, and the payer uses tools. The rest are external
// agents of this process; see externalAgents.
const (
	helper      = "helper"
	coordinator = "coordinator"
	teller      = "teller"
	asker       = "asker"
	porter      = "porter"
	clerk       = "clerk"
	broker      = "broker"
	payer       = "payer"
	buyer       = "buyer"
	shopper     = "shopper"
)

// writeTeam writes the files of the agents that are not built into the server.
func writeTeam(dir, url string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, retry := range map[string]string{teller: "", asker: "", porter: "safe", clerk: "never", broker: "safe", payer: "", buyer: "safe", shopper: "matched"} {
		// Repeated kills may hit the same run. Long timeouts keep it from expiring.
		text := fmt.Sprintf("name = %q\nlimits.call_timeout_ms = 300000\n", name)
		if name == payer {
			text += fmt.Sprintf("tools = [%q, %q]\n", payOnce, paySafe)
		}
		if retry != "" {
			text = fmt.Sprintf("name = %q\nkind = \"external\"\nendpoint = \"%s/%s\"\nretry = %q\nconcurrency = 64\nlimits.invoke_timeout_ms = 300000\n", name, url, name, retry)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".toml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// scenario is a kind of exchange.
type scenario struct {
	agent        string
	stream       bool
	calls        int    // number of nested calls of its run
	mayBeUnknown bool   // after a kill the outcome may be reported as unknown
	cancels      bool   // the client cancels the run
	tool         string // tool that its run uses once
	// compose returns the message for a word, and the expected answer. The answer
	// is "" if it varies.
	compose func(word string) (content, want string)
}

// allowsFailure reports whether a failure with this code is a correct answer to the
// message.
func (e *exchange) allowsFailure(code string) bool {
	return e.mayBeUnknown && code == "outcome_unknown" || e.cancels && code == "cancelled"
}

// scenariosOf returns the scenarios of a client. It performs them in turn. In a cluster, the shopper would lose its connection
// to an ingress while its run goes on elsewhere, and could not repeat a request without a key: the buyer takes its place.
func scenariosOf(id int, cluster bool) []scenario {
	shopperCall := shopperCall
	if cluster {
		shopperCall = buyerCall
	}
	switch id % 10 {
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
	case 7:
		return []scenario{signalledCall.withStream(), askerToTwo}
	case 8:
		return []scenario{payerCall(payOnce), payerCall(paySafe).withStream(), buyerCall(payOnce).withStream(), shopperCall(paySafe)}
	default:
		return []scenario{askerToPayer(payOnce).withStream(), askerToPayer(paySafe), buyerCall(paySafe).withStream(), shopperCall(payOnce).withStream()}
	}
}

// The scenarios. The outcome of a call to the clerk may be unknown, and with it the
// outcome of its caller.
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

// useCommand returns the instruction for the scripted model to use a tool.
func useCommand(tool, word string) string { return fmt.Sprintf(`use %s {"word":%q}`, tool, word) }

func payerCall(tool string) scenario {
	return scenario{agent: payer, tool: tool, compose: func(word string) (string, string) { return useCommand(tool, word), "" }}
}

func askerToPayer(tool string) scenario {
	return scenario{agent: asker, calls: 1, tool: tool, compose: func(word string) (string, string) { return "ask payer: " + useCommand(tool, word), "" }}
}

func buyerCall(tool string) scenario {
	return scenario{agent: buyer, tool: tool, compose: func(word string) (string, string) { return tool + " " + word, "" }}
}

func shopperCall(tool string) scenario {
	return scenario{agent: shopper, tool: tool, compose: func(word string) (string, string) { return tool + " " + word, "" }}
}

func (j scenario) withStream() scenario {
	j.stream = true
	return j
}

func sayRepeated(word string) (content, want string) { return sayCommand(word), repeatWord(word) }

// repeatWord returns a text that is streamed in several deltas.
func repeatWord(word string) string { return strings.TrimSpace(strings.Repeat(word+" ", 12)) }

func sayCommand(word string) string { return "say " + repeatWord(word) }
