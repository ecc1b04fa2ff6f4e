package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/cells"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/internal/guest/agentbin"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/internal/template/oci"
)

// Local is the assembly of a daemon that runs sandboxes on this machine.
func Local() Assembly {
	return Assembly{Engine: localEngine, Templates: localTemplates}
}

func localEngine(_ context.Context, dir string, cfg *config.Config, log *slog.Logger) (engine.Engine, error) {
	agent, digest, err := localAgent(log)
	if err != nil {
		return nil, err
	}
	network, err := localNetwork(cfg)
	if err != nil {
		return nil, err
	}
	first, count := cfg.UserIDRange()
	return cells.New(cells.Config{
		Dir: dir, Agent: agent, AgentDigest: digest, Network: network, Log: log,
		FirstUserID: first, UserIDs: count,
	})
}

// localAgent returns the agent and its digest: the one that this program embeds,
// or this program.
func localAgent(log *slog.Logger) (agent []byte, digest string, err error) {
	agent, err = agentbin.Binary()
	if errors.Is(err, agentbin.ErrMissing) {
		log.Info("this program was built without the agent and is the agent of its sandboxes itself; they start slower than with one that make build has built")
		return agentbin.Self()
	}
	if err != nil {
		return nil, "", err
	}
	digest, err = agentbin.Digest()
	return agent, digest, err
}

// localNetwork says how the sandboxes of this machine reach out: as this process
// would, over the proxy of its environment.
func localNetwork(cfg *config.Config) (cells.Network, error) {
	n := cells.Network{Proxy: egress.Proxy{
		HTTPProxy: fromEnv("HTTP_PROXY"), HTTPSProxy: fromEnv("HTTPS_PROXY"), AllProxy: fromEnv("ALL_PROXY"), NoProxy: fromEnv("NO_PROXY"),
	}}
	for _, r := range cfg.Network.Resolvers {
		addr, err := netip.ParseAddrPort(r)
		if err != nil {
			return n, fmt.Errorf("network.resolvers: %w", err)
		}
		n.Resolvers = append(n.Resolvers, addr)
	}
	if cfg.Network.ExtraCA == "" {
		return n, nil
	}
	var err error
	if n.ExtraCA, err = os.ReadFile(cfg.Network.ExtraCA); err != nil {
		return n, fmt.Errorf("network.extra_ca: %w", err)
	}
	return n, nil
}

// fromEnv returns an environment variable, which many write in lower case.
func fromEnv(name string) string { return cmp.Or(os.Getenv(name), os.Getenv(strings.ToLower(name))) }

func localTemplates(_ context.Context, dir string, cfg *config.Config, log *slog.Logger) (service.TemplateProvider, error) {
	r := oci.Config{Mirrors: cfg.Registries.Mirrors, Insecure: cfg.Registries.Insecure, Private: cfg.Registries.Private}
	if cfg.Network.ExtraCA != "" {
		var err error
		if r.ExtraCA, err = os.ReadFile(cfg.Network.ExtraCA); err != nil {
			return nil, fmt.Errorf("network.extra_ca: %w", err)
		}
	}
	return image.New(image.Config{Dir: dir, Log: log, Registries: r, AllowPaths: cfg.Templates.AllowPaths, StateDir: cfg.StateDir})
}
