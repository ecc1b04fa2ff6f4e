package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-sh/cove/internal/daemon/store/postgres"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/sandbox"
)

// fence is after which time without its database an active daemon stops, so that one on
// standby may take over: longer than calls wait for a database that restarts, and much
// shorter than the shortest lease of a node.
const fence = 6 * time.Second

// takeTurns runs the daemon each time that no other has the database, and waits meanwhile.
func (s *Server) takeTurns(ctx context.Context) error {
	if err := s.sharesState(); err != nil {
		return err
	}
	claim := postgres.NewClaim(s.name(), fence)
	for {
		err := s.takeTurn(ctx, claim)
		switch {
		case !errors.Is(err, errStoreLost):
			return err
		case ctx.Err() != nil:
			return nil // it was told to stop anyway
		}
		s.log.Error("this server is not active any more; sandboxes on nodes keep running", "error", err)
	}
}

func (s *Server) takeTurn(ctx context.Context, claim postgres.Claim) error {
	lobby, err := s.openLobby(ctx)
	if err != nil {
		return err
	}
	defer lobby.close()
	s.log.Info("on standby", "name", claim.Name)
	store, err := postgres.Stand(ctx, s.cfg.Store.SecretValue, claim, lobby.wait)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("open the store: %w", err)
	}
	lobby.begin()
	s.log.Info("this server is active now", "name", claim.Name, "epoch", store.Epoch())
	return s.run(ctx, holdingOf(store), lobby.close)
}

// sharesState refuses a daemon that has anything that others with its database do not have.
func (s *Server) sharesState() error {
	for problem, bad := range map[string]bool{
		"needs a database that all servers share; give the address of one in PostgreSQL with --store":                                                 s.cfg.Store.Reveal() == "",
		"needs nodes to run the sandboxes, since those of this machine would not be taken over; set --nodes HOST:PORT and --nodes-only":               s.cfg.Nodes.Listen == "" || !s.cfg.Nodes.Only,
		"cannot be used with tls.acme, since certificates would be those of one server; use tls.cert and tls.key, or end TLS in front of the servers": len(s.cfg.TLS.ACME.Hosts) > 0,
	} {
		if bad {
			return sandbox.Errorf(sandbox.CodeInvalid, "--standby %s", problem)
		}
	}
	if err := noRecords(s.cfg.StateDir); err != nil {
		return err
	}
	if os.Getenv(vault.EnvKey) != "" {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(s.cfg.StateDir, vault.KeyFile)); err != nil {
		return sandbox.Errorf(sandbox.CodeInvalid, "--standby needs the key of secrets, the same for all servers of the database: give all of them one of \"openssl rand -base64 32\" in %s", vault.EnvKey)
	}
	return nil
}

// name tells people which server is active.
func (s *Server) name() string {
	host, err := os.Hostname()
	if err != nil {
		host = "a server"
	}
	if _, port, err := net.SplitHostPort(s.cfg.Listen); err == nil && port != "0" {
		return net.JoinHostPort(host, port)
	}
	return host
}
