// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net"
	"time"
)

// Config says whom a gateway serves, and for how long it waits for them. The
// zero value is that of loopback, without keys.
type Config struct {
	// Keys are the API keys, which may change at any time; nil is none, for good.
	Keys *Keys
	// Secret is that of run tokens, of ingress.SecretBytes; without one there are none.
	Secret []byte
	// Hosts are names by which this server may be called besides those of
	// loopback. Off loopback none means any: there a key is needed anyway.
	Hosts []string
	// External looks after external agents; nil: there are none.
	External External
	// Backup copies the store into a folder; nil: it cannot.
	Backup func(dir string) error
	// Origins are those whose web pages may call, like https://console.example,
	// besides our own.
	Origins []string

	// HeadTimeout is for the head of a request, from its first byte (5 s).
	HeadTimeout time.Duration
	// BodyTimeout is for its body (30 s).
	BodyTimeout time.Duration
	// WriteTimeout is for the client to take an answer (30 s).
	WriteTimeout time.Duration
	// StreamTimeout is for the reader of a stream to take what is sent to it: 64 KiB,
	// or what there is (8 s).
	StreamTimeout time.Duration
	// IdleTimeout is how long a connection may lie between two requests (2 min).
	IdleTimeout time.Duration
	// Connections is how many are open at once (8192).
	Connections int
	// Streams of events are open at once (4096).
	Streams int
	// PerAddress is how many of them come from one address, which is a whole
	// /64 of IPv6 (256). Loopback is one address for everybody and has no such
	// bound, unless one is given here.
	PerAddress int
}

func (c Config) withDefaults() Config {
	or := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	or(&c.HeadTimeout, 5*time.Second)
	or(&c.BodyTimeout, 30*time.Second)
	or(&c.WriteTimeout, 30*time.Second)
	or(&c.IdleTimeout, 2*time.Minute)
	if c.Connections == 0 {
		c.Connections = ConnectionsMax
	}
	if c.Streams == 0 {
		c.Streams = StreamsMax
	}
	if c.Keys == nil {
		c.Keys = new(Keys)
	}
	return c
}

// deadlineSlack is how much earlier than it is meant to a deadline may be over.
func (c Config) deadlineSlack() time.Duration {
	return min(c.HeadTimeout, c.BodyTimeout, c.WriteTimeout, c.IdleTimeout) / 16
}

// CheckListenAddress says why an address is not served, if it is not: off loopback
// whoever comes must have a key, so that there must be one.
func CheckListenAddress(listen string, keys int) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("--listen %s: want host:port, like 127.0.0.1:8283", listen)
	}
	if ip := net.ParseIP(host); keys > 0 || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--listen %s: off loopback every client needs an API key, and there is none yet: make one with `troupe keys create --data DIR`, or listen on 127.0.0.1:8283", listen)
}
