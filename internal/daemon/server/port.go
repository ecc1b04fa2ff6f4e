package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/durable"
)

// portFile, in the state directory, has the port on which a daemon that takes
// any has listened last. The next daemon takes the same one if it can, so that
// addresses of previews stay.
const portFile = "listen-port"

// firstFree is the lowest port that is taken again: those below are not given to
// who takes any.
const firstFree = 1024

// listenTCP listens where the configuration says.
func (s *Server) listenTCP(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	host, port, err := net.SplitHostPort(s.cfg.Listen)
	if err != nil || port != "0" {
		return lc.Listen(ctx, "tcp", s.cfg.Listen)
	}
	if last := lastPort(&s.cfg); last != "" {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, last))
		if err == nil {
			return l, nil
		}
		s.log.Warn("the port of the last daemon is taken; addresses of previews that were given out lead elsewhere", "port", last, "error", err)
	}
	l, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return nil, err
	}
	if err := keepPort(&s.cfg, l.Addr()); err != nil {
		s.log.Warn("keep the port for the next daemon", "error", err)
	}
	return l, nil
}

// lastPort returns the port of the daemon before, or "".
func lastPort(cfg *config.Config) string {
	data, err := os.ReadFile(filepath.Join(cfg.StateDir, portFile))
	if err != nil {
		return ""
	}
	port, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 16)
	if err != nil || port < firstFree {
		return ""
	}
	return strconv.FormatUint(port, 10)
}

func keepPort(cfg *config.Config, addr net.Addr) error {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return nil
	}
	return durable.WriteFile(filepath.Join(cfg.StateDir, portFile), fmt.Appendln(nil, tcp.Port))
}
