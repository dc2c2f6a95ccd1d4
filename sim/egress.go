// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/upstream"
)

// hostAddresses are the addresses of the hosts that nodes connect to. Some are
// public. The others are internal, and may be reached only if the operator's allow
// list contains them. A connection to any other address is a violation.
var hostAddresses = map[string][]string{
	modelNames[0]:                         {"10.1.2.3"},
	modelNames[1]:                         {"127.0.0.1", "::1"},
	externalNames[0] + hostSuffix:         {"93.184.216.34", "2606:2800:220:1::1"},
	externalNames[1] + hostSuffix:         {"::ffff:192.168.7.7"},
	registeredAgents[2].name + hostSuffix: {"172.16.3.3", "fd00:7::1"},
}

const hostSuffix = ".example"

// teamHostAddresses are the addresses of every host that a user-supplied team calls.
var teamHostAddresses = []string{"93.184.216.34"}

// egressAllowList is what the operator allows in addition to public addresses.
var egressAllowList = append(upstream.AllowLoopback(), modelNames[0], "192.168.7.0/24", "172.16.3.3", "fd00:7::/48")

// egressPolicy is built once and shared: it is read-only.
var egressPolicy = sync.OnceValue(func() upstream.Egress { return invariant.Must(upstream.NewEgress(egressAllowList)) })

// invalidAllowListEntries are mistyped entries of the allow list. The server MUST
// refuse to start with any of them.
var invalidAllowListEntries = [...]string{"10.1.2.3/8", "::ffff:10.0.0.0/104", "[10.1.2.3]", "fe80::1%eth0", "::ffff:10.1.2.3", "", "a..b", "a.example.", "ex ample", "1.2.3", "0x7f.0x1", "-a", strings.Repeat("a", 64), "*.example"}

// hostileAnswers are DNS answers that would lead a node to addresses that its
// operator does not allow: to itself, to its neighbors, or to the metadata service
// that hands out credentials. The first privateAnswers of them are legitimate for a
// host that the allow list names.
var hostileAnswers = [...][]string{{"93.184.216.34", "192.168.1.1"}, {"fd00:8::1"}, {"169.254.169.254"}, {"::ffff:169.254.169.254"}, {"fe80::1"}, {"64:ff9b::a01:203"}, {"0.0.0.0"},
	{"2002:a01:203::1"}, {"4000::1"}, {"fec0::1%eth0"}, {"224.0.0.1", "8.8.8.8"}, {"198.18.0.1"}, {}}

const privateAnswers = 2

// dial resolves the host of a request and checks the addresses against the egress
// policy. It returns the refusal of the policy as an error.
func (n *node) dial(r upstream.Request) error {
	w := n.w
	n.logRequest(r)
	u, err := url.Parse(r.URL)
	if err != nil {
		return err
	}
	host, addr, err := upstream.ParseHost(u.Hostname())
	expected := hostAddresses[host]
	switch {
	case w.team != nil && addr.IsValid():
		return nil // literal addresses in a team's configuration are allowed by its operator
	case err != nil || addr.IsValid():
		return fmt.Errorf("unknown host %s, %v", u.Hostname(), err)
	case w.team != nil:
		expected = teamHostAddresses
	}
	answers, hostile := expected, false
	if w.faultFires(NameAstray) {
		all := hostileAnswers[:]
		if slices.Contains(egressAllowList, host) {
			all = all[privateAnswers:]
		}
		if forbidden := all[w.entropy.Int(len(all))]; w.acts(NameAstray) {
			answers, hostile = forbidden, true
			w.Stats.Audit.NobodyAstray++
		}
	}
	addrs := make([]netip.Addr, len(answers))
	for i, a := range answers {
		addrs[i] = netip.MustParseAddr(a)
	}
	if err := egressPolicy().Check(host, addrs); err != nil {
		if !hostile {
			w.fail(NobodyAstray, fmt.Sprintf("egress to %s at its own addresses is refused: %v", host, err))
		}
		return err
	}
	if slices.ContainsFunc(answers, func(a string) bool { return !slices.Contains(expected, a) }) || len(answers) == 0 {
		w.fail(NobodyAstray, fmt.Sprintf("%s connects to %s for host %s, want addresses in %s", n.id, answers, host, expected))
	}
	return nil
}

// logRequest logs an outgoing request. A secret in the logged text is a violation.
func (n *node) logRequest(r upstream.Request) {
	if n.w.log == nil {
		return
	}
	text := fmt.Sprintf("%s sends %s %s %#v", n.id, r, r.Headers, r.Headers)
	for _, h := range r.Headers {
		if h.Secret && strings.Contains(text, h.Value) {
			n.w.fail(NobodyAstray, "secret in the log: "+text)
		}
	}
	n.w.log.note(n.w.now, "%s", text)
}

// checkAllowListValidation checks that an allow list with an invalid entry is
// rejected.
func (n *node) checkAllowListValidation() {
	w := n.w
	if w.team != nil {
		return
	}
	defer w.setStream(w.setStream(topicUpstream + StreamID(n.index)))
	entry := invalidAllowListEntries[w.entropy.Int(len(invalidAllowListEntries))]
	if _, err := upstream.NewEgress(append(slices.Clone(egressAllowList), entry)); err == nil {
		w.fail(NobodyAstray, fmt.Sprintf("%s starts with the invalid allow list entry %q", n.id, entry))
	}
}
