// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/troupe-run/troupe/ingress"
)

// testClock is a clock that the test sets.
type testClock struct{ at time.Time }

func (c *testClock) now() time.Time { return c.at }

func newWrongKeys(c *testClock) *wrongKeys {
	return &wrongKeys{now: c.now, debts: map[netip.Prefix]time.Time{}}
}

// An address may present 10 wrong keys at once and 10 a second. Others are not
// affected.
func TestWrongKeysAreLimitedPerAddress(t *testing.T) {
	clock := &testClock{time.Unix(1000, 0)}
	w := newWrongKeys(clock)
	first, second := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/64")
	accepted := func(p netip.Prefix, n int) (count int) {
		for range n {
			if !w.add(p) {
				count++
			}
		}
		return count
	}
	for _, step := range []struct {
		after       time.Duration
		address     netip.Prefix
		tries, want int
	}{
		{0, first, 25, 10}, {0, second, 25, 10}, {99 * time.Millisecond, first, 5, 0}, {time.Millisecond, first, 5, 1},
		{500 * time.Millisecond, first, 20, 5}, {time.Hour, first, 20, 10}, {0, second, 9, 9}, {0, second, 9, 1},
	} {
		clock.at = clock.at.Add(step.after)
		if got := accepted(step.address, step.tries); got != step.want {
			t.Errorf("%+v: %d accepted", step, got)
		}
	}
}

// The table of addresses is bounded, also against a client that has many of them.
func TestTableOfWrongKeysIsBounded(t *testing.T) {
	clock := &testClock{time.Unix(1000, 0)}
	w := newWrongKeys(clock)
	address := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	for i := range 3 * wrongKeyAddressesMax {
		if exceeded := w.add(address(i)); exceeded != (i >= wrongKeyAddressesMax) || len(w.debts) > wrongKeyAddressesMax {
			t.Fatalf("address %d: exceeded %v, %d addresses in the table", i, exceeded, len(w.debts))
		}
	}
	if w.add(address(0)) {
		t.Error("an address in the table has lost its allowance")
	}
	clock.at = clock.at.Add(time.Second)
	if w.add(address(-1)) || len(w.debts) != 1 {
		t.Errorf("a second later: %d addresses in the table", len(w.debts))
	}
}

// Wrong keys get 429 after the tenth within a second, whether or not the request
// has a body. Neither a valid key of the same address nor a client of another
// service, nor one without a key, meets the limit.
func TestWrongKeysAreThrottled(t *testing.T) {
	for name, wrap := range map[string]bool{"on loopback": false, "with keys required": true} {
		t.Run(name, func(t *testing.T) {
			keys := new(Keys)
			d := startGatewayWith(t, Config{Keys: keys, KeysRequired: wrap})
			clock := &testClock{time.Unix(1000, 0)}
			d.server.wrongKeys.now = clock.now
			key, text := newTestKey(t, 1, 0, ingress.ScopeRead)
			keys.Set([]ingress.Key{key})
			harmless := map[string]int{"Bearer sk-stock": 200, "": 200, "Bearer " + text: 200}
			if wrap {
				harmless["Bearer sk-stock"], harmless[""] = 401, 401
			}
			check := func() {
				t.Helper()
				for credentials, want := range harmless {
					for range 15 {
						if status, _, body := d.do("GET", "/v1/agents", "", "Authorization", credentials); status != want {
							t.Fatalf("%.12s: %d %s", credentials, status, body)
						}
					}
				}
			}
			check()
			for round := range 2 {
				for i := range 14 {
					method, path, body := "GET", "/v1/agents", ""
					if i%2 == 1 {
						method, path, body = "POST", "/v1/agents/helper/messages", `{"content":"x"}`
					}
					want := 401
					if i >= wrongKeysPerSecond {
						want = 429
					}
					wrong := []string{"Authorization", "Bearer " + text[:len(text)-1] + "x"}
					if i%3 == 2 {
						method, path, body, wrong = "POST", "/v1/agents/helper:invoke", `{"message":"x"}`, []string{"x-run-token", "troupe-run.a.b"}
						if i%2 == 1 {
							path = "/v1/agents/helper/messages"
						}
					}
					status, headers, answer := d.do(method, path, body, wrong...)
					if status != want || (headers.Get("Retry-After") == "1") != (want == 429) || want == 429 && !strings.Contains(answer, "wrong API keys") {
						t.Errorf("round %d, wrong key %d: %d %v %s", round, i, status, headers, answer)
					}
				}
				check()
				if status, _, body := d.owner().do("GET", "/v1/agents", "", "Authorization", "Bearer troupe_x"); status != 401 {
					t.Errorf("wrong key of the owner: %d %s", status, body)
				}
				clock.at = clock.at.Add(time.Second)
			}
		})
	}
}

// The wrong keys of one address do not take the allowance of another.
func TestWrongKeysOfOneAddressSpareOthers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has every address of 127.0.0.0/8")
	}
	d := startGateway(t)
	clock := &testClock{time.Unix(1000, 0)}
	d.server.wrongKeys.now = clock.now
	statusFrom := func(address string) int {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).Dial("tcp", d.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /v1/agents HTTP/1.1\r\nHost: "+d.address+"\r\nAuthorization: Bearer troupe_x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	for i := range 12 {
		if status, want := statusFrom("127.0.0.2"), map[bool]int{true: 401, false: 429}[i < 10]; status != want {
			t.Errorf("wrong key %d: %d, want %d", i, status, want)
		}
	}
	if status := statusFrom("127.0.0.3"); status != 401 {
		t.Errorf("another address: %d, want 401", status)
	}
}
