// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/troupe-run/troupe/host/gateway"
	"github.com/troupe-run/troupe/internal/invariant"
	"github.com/troupe-run/troupe/internal/link"
	"github.com/troupe-run/troupe/internal/service"
)

// The roles of a process.
const (
	roleAll          = "all"
	roleIngress      = "ingress"
	roleOrchestrator = "orchestrator"
)

// roleFlags are the flags of roles that run as processes of their own.
type roleFlags struct {
	Role               string   `env:"TROUPE_ROLE" enum:"all,ingress,orchestrator" default:"all" help:"all: one process. ingress: serve clients, with the store and the agents of --orchestrator. orchestrator: serve processes with the role ingress (${default})."`
	Orchestrator       []string `env:"TROUPE_ORCHESTRATOR" placeholder:"ADDR" help:"Of an ingress: the orchestrator, as the path of its Unix socket, or host:port. Give each one of a cluster, with commas."`
	Cluster            string   `env:"TROUPE_CLUSTER" placeholder:"NAME" help:"Of an orchestrator with --store: share the store and the work with others of this cluster. They take over from each other when one ends."`
	Advertise          string   `env:"TROUPE_ADVERTISE" placeholder:"ADDR" help:"Of an orchestrator of a cluster: where the others connect to it, if --listen-orchestrator names no address of this machine, such as 0.0.0.0:8284."`
	ListenOrchestrator string   `env:"TROUPE_LISTEN_ORCHESTRATOR" placeholder:"ADDR" help:"Where an ingress can connect: path of a Unix socket, or host:port. Default with the role orchestrator: LINK in the data folder."`
	LinkCert           string   `env:"TROUPE_LINK_CERT" type:"path" placeholder:"FILE" help:"Certificate of this process for host:port of the two flags above, in PEM. Read for each connection, as are the next two."`
	LinkKey            string   `env:"TROUPE_LINK_KEY" type:"path" placeholder:"FILE" help:"Key of --link-cert in PEM."`
	LinkCA             string   `env:"TROUPE_LINK_CA" name:"link-ca" type:"path" placeholder:"FILE" help:"Authority of the certificates of both sides in PEM. A process with one of them may do everything."`
}

// checkRole returns an error if the flags do not fit the role.
func (c *ServeCmd) checkRole() error {
	ingress := c.Role == roleIngress
	switch {
	case ingress && len(c.Orchestrator) == 0:
		return fmt.Errorf("--role ingress: want --orchestrator with the address of an orchestrator, such as data/%s", link.SocketName)
	case !ingress && len(c.Orchestrator) > 0:
		return errors.New("--orchestrator: belongs to --role ingress; an orchestrator has --listen-orchestrator")
	case ingress && c.ListenOrchestrator != "":
		return errors.New("--listen-orchestrator: belongs to --role orchestrator; an ingress has --orchestrator")
	case c.Advertise != "" && c.Cluster == "":
		return errors.New("--advertise: is for orchestrators with --cluster")
	case c.Cluster != "" && (c.Role != roleOrchestrator || c.Store == ""):
		return errors.New("--cluster: needs --role orchestrator and --store postgres://…; clients connect to processes with --role ingress")
	case c.Role == roleOrchestrator && (c.givenListen || c.Listen != defaultListen && c.Listen != os.Getenv("TROUPE_LISTEN")): // which an image may set for each role
		return errors.New("--listen: belongs to an ingress, which serves the clients; did you mean --listen-orchestrator?")
	}
	for _, f := range []struct {
		name string
		set  bool
		role string // without use for the flag
	}{
		{"--agents", c.Agents != "", roleIngress}, {"--ready", c.Ready, roleIngress}, {"--keep", c.Keep != "", roleIngress},
		{"--trace", c.Trace != "", roleIngress}, {"--backups", c.Backups != "", roleIngress},
		{"--tls-cert", c.TLSCert != "", roleOrchestrator}, {"--origin", len(c.Origin) > 0, roleOrchestrator}, {"--hosts", len(c.Hosts) > 0, roleOrchestrator},
	} {
		switch {
		case !f.set || c.Role != f.role:
		case ingress:
			return fmt.Errorf("%s: belongs to the orchestrator, which has the store and the agents: give it there", f.name)
		default:
			return fmt.Errorf("%s: belongs to an ingress, which serves the clients: give it there", f.name)
		}
	}
	return nil
}

// allowsLoopback reports whether tools and models on loopback are allowed without --allow. They are
// if clients on loopback need no key. If clients need keys, a proxy may forward strangers, whose
// keys would reach each service of this machine. An orchestrator does not allow them, because its
// ingress may listen anywhere.
func allowsLoopback(role, listen string) bool {
	return role == roleAll && gateway.CheckListenAddress(listen, 0) == nil
}

// linkAddress returns the address at which an ingress can connect, and false if there is none.
func (c *ServeCmd) linkAddress() (a link.Address, ok bool, err error) {
	text := c.ListenOrchestrator
	switch {
	case c.Role == roleOrchestrator && text == "":
		text = filepath.Join(c.Data, link.SocketName)
	case text == "":
		return a, false, nil
	}
	a, err = link.ParseAddress("--listen-orchestrator", text, c.linkFiles())
	return a, true, err
}

// advertised returns the address at which other members of the cluster connect to this process.
func (c *ServeCmd) advertised() (string, error) {
	a, _, err := c.linkAddress()
	switch {
	case err != nil:
		return "", err
	case a.Path == "":
		return advertisedOf(a.Host, c.Advertise)
	case c.Advertise != "":
		return "", fmt.Errorf("--advertise %s: belongs to --listen-orchestrator with host:port, and this orchestrator has the socket %s", c.Advertise, a.Path)
	}
	return a.Path, nil
}

// advertisedOf returns the address of an orchestrator that listens at an address of this machine.
func advertisedOf(listen, advertise string) (string, error) {
	if advertise != "" {
		host, port, err := net.SplitHostPort(advertise)
		if err != nil || host == "" || port == "" || port == "0" {
			return "", fmt.Errorf("--advertise %s: want host:port", advertise)
		}
		return advertise, nil
	}
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err != nil || host == "" || port == "0" || ip != nil && ip.IsUnspecified() {
		return "", fmt.Errorf("--listen-orchestrator %s: the other orchestrators of the cluster cannot connect there: give --advertise with a name or an address of this machine, such as %s", listen, net.JoinHostPort("orchestrator-1.internal", cmp.Or(port, "8284")))
	}
	return listen, nil
}

// orchestrators returns the addresses to which an ingress connects.
func (c *ServeCmd) orchestrators() (all []link.Address, err error) {
	for _, text := range c.Orchestrator {
		a, err := link.ParseAddress("--orchestrator", text, c.linkFiles())
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

func (c *ServeCmd) linkFiles() link.Files {
	return link.Files{Certificate: c.LinkCert, Key: c.LinkKey, Authority: c.LinkCA}
}

// serveLink serves the node to ingress processes and returns the value of their --orchestrator.
func (c *ServeCmd) serveLink(n *nodeServer) (string, error) {
	a, ok, err := c.linkAddress()
	if !ok || err != nil {
		return "", err
	}
	addr, err := n.ServeLink(a, func(err error) { n.served <- err })
	if err != nil {
		return "", fmt.Errorf("--listen-orchestrator %s: %w", a, err)
	}
	if a.Path != "" {
		return a.Path, nil
	}
	return addr.String(), nil
}

// listen opens the listener for clients, with its certificate, or nil for an orchestrator.
func (c *ServeCmd) listen(log *slog.Logger) (net.Listener, *gateway.Certificate, error) {
	if err := gateway.CheckNames(c.Hosts, c.Origin); err != nil || c.Role == roleOrchestrator {
		return nil, nil, err
	}
	var certificate *gateway.Certificate
	var err error
	if c.TLSCert != "" {
		if certificate, err = gateway.LoadCertificate(c.TLSCert, c.TLSKey, log); err != nil {
			return nil, nil, err
		}
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("%w; choose another --listen, or --listen 127.0.0.1:0 for a free port", err)
	}
	return l, certificate, nil
}

// warnAboutClients logs a warning for each setting that a proxy or a network can make unsafe.
func (c *ServeCmd) warnAboutClients(certificate *gateway.Certificate, keys *gateway.Keys, log *slog.Logger) {
	loopback := gateway.CheckListenAddress(c.Listen, 0) == nil
	if c.Keyless == "on" && loopback {
		log.Warn("clients on loopback need no API key; a proxy on this machine that adds no header lets everyone in: behind a proxy, serve with --keyless=off")
		if slices.ContainsFunc(keys.All(), forUser) {
			log.Warn("users have keys, but a client on this machine without a key may act as any of them: to end that, serve with --keyless=off")
		}
	}
	if certificate == nil && !loopback {
		log.Warn("API keys and messages cross the network unencrypted: serve with --tls-cert and --tls-key, or listen on 127.0.0.1 behind a TLS proxy")
	}
}

// openIngress waits for the orchestrator. Until then, clients get the answer that it is not connected:
// the API keys are not known yet.
func openIngress(ctx context.Context, orchestrators []link.Address, l net.Listener, config gateway.Config, log *slog.Logger) (*service.Ingress, error) {
	tcp, ok := l.(*net.TCPListener)
	invariant.Check(ok, "a listener of %T", l)
	waiting, err := gateway.ServeWaiting(tcp, config, log)
	if err != nil {
		return nil, err
	}
	n, err := service.OpenIngress(ctx, orchestrators, config, log)
	if closeErr := waiting.Stop(); closeErr != nil && err == nil {
		err = errors.Join(closeErr, n.Stop(ctx))
	}
	return n, err
}

// runIngress serves clients with the orchestrator of another process until ctx ends.
func (c *ServeCmd) runIngress(ctx context.Context, s streams, log *slog.Logger) (err error) {
	config, err := readConfig(string(c.Config))
	if err != nil {
		return err
	}
	orchestrators, err := c.orchestrators()
	if err != nil {
		return err
	}
	l, certificate, err := c.listen(log)
	if err != nil {
		return err
	}
	n, err := openIngress(ctx, orchestrators, l, gateway.Config{Hosts: c.Hosts, Origins: c.Origin, KeysRequired: c.Keyless == "off", Chat: config.Chat, DetachedOnChannel: config.AgentCall.Channel, Certificate: certificate}, log)
	if err != nil {
		_ = l.Close()
		if ctx.Err() != nil { // stopped while it waited
			return nil
		}
		return err
	}
	if err := gateway.CheckListenAddress(c.Listen, n.Keys.Count()); err != nil {
		return errors.Join(fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "--data DIR", "--data with the folder of the orchestrator")), l.Close(), n.Stop(ctx))
	}
	c.warnAboutClients(certificate, n.Keys, log)
	served := make(chan error, 1)
	go func() { served <- n.Gateway.Serve(l) }()
	_, err = fmt.Fprintln(s.out, n.URL(l.Addr()))
	log.Info("serving", "role", c.Role, "url", n.URL(l.Addr()), "orchestrator", strings.Join(c.Orchestrator, ", "))
	if err == nil {
		select {
		case <-ctx.Done():
			log.Info("stopping", "grace", c.Grace.String())
		case <-n.Done():
			err = n.Err()
		case err = <-served:
		}
	}
	grace, cancel := context.WithTimeout(context.Background(), c.Grace)
	defer cancel()
	return errors.Join(err, n.Stop(grace))
}
