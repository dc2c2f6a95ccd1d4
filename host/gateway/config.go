// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/troupe-run/troupe/ingress"
)

// Config configures a Server. The zero value serves loopback clients without API
// keys.
type Config struct {
	// KeysRequired requires an API key of clients on loopback too.
	KeysRequired bool
	// API keys. They may change at any time; nil means that no key will ever
	// exist.
	Keys *Keys
	// secret that signs run tokens, of ingress.SecretBytes; without it tokens are
	// refused
	Secret []byte
	// additional host names of this server; the names of loopback are always
	// accepted. Off loopback an empty list accepts any name, since every client
	// needs a key there.
	Hosts []string
	// scope that a decision about a tool call needs in addition to ScopeCall; "" means
	// none
	ApprovalScope ingress.Scope
	// health of external agents; nil if external agents are not supported
	External External
	// copies the store into a new folder with the given name and returns its path;
	// nil if the store cannot be copied. The error wraps fs.ErrExist if the name is
	// in use, fs.ErrPermission if the server may not write there, syscall.ENOSPC if
	// the disk is full, or a refusal.
	Backup func(name string) (dir string, err error)
	// additional web origins whose pages may call the API and read its answers, such as
	// https://console.example
	Origins []string

	// clients of the channel get the runs of detached calls too
	DetachedOnChannel bool
	// settings of the chat page; nil: none
	Chat *ChatPage

	// certificate of the listeners of Serve; nil: they serve without TLS
	Certificate *Certificate

	// maximum time from the first byte of a request to the end of its head;
	// default 5 s
	HeadTimeout time.Duration
	// maximum time to receive a body; default 30 s
	BodyTimeout time.Duration
	// maximum time for the client to take an answer; default 30 s
	WriteTimeout time.Duration
	// maximum time for the reader of a stream to take 64 KiB, or all that is
	// pending; default 8 s
	StreamTimeout time.Duration
	// maximum time between two requests on a connection; default 2 min
	IdleTimeout time.Duration
	// maximum number of open connections; default ConnectionsMax
	Connections int
	// maximum number of open event streams; default StreamsMax
	Streams int
	// maximum number of connections from one IPv4 address or one IPv6 /64;
	// default 256. The default does not apply to loopback, because all local
	// clients share one address. A value that is set applies to loopback too.
	PerAddress int
}

// CheckNames returns an error for the first host name or origin that no request of a
// client or a browser could match.
func CheckNames(hosts, origins []string) error {
	for _, host := range hosts {
		if _, _, ok := splitHost(host); !ok {
			return fmt.Errorf("--hosts: got %.80q, want a name such as console.example, with or without a port", host)
		}
	}
	for _, origin := range origins {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.ToLower(u.Scheme+"://"+u.Host) != origin {
			return fmt.Errorf("--origin: got %.80q, want scheme, host and port as browsers send them, such as https://console.example, without a path", origin)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	setDefault := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	setDefault(&c.HeadTimeout, 5*time.Second)
	setDefault(&c.BodyTimeout, 30*time.Second)
	setDefault(&c.WriteTimeout, 30*time.Second)
	setDefault(&c.IdleTimeout, 2*time.Minute)
	setDefault(&c.StreamTimeout, ingress.WriteTimeout)
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

// deadlineSlack returns the maximum time by which a connection deadline may
// expire earlier than requested.
func (c Config) deadlineSlack() time.Duration {
	return min(c.HeadTimeout, c.BodyTimeout, c.WriteTimeout, c.IdleTimeout) / 16
}

// CheckListenAddress returns an error if the address must not be served: off
// loopback every client needs an API key, so at least one must exist.
func CheckListenAddress(listen string, keys int) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("--listen %s: want host:port, such as 127.0.0.1:8283", listen)
	}
	if ip := net.ParseIP(host); keys > 0 || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--listen %s: off loopback every client needs an API key, and none exists: create one with `troupe keys create --data DIR`, or listen on 127.0.0.1:8283", listen)
}
