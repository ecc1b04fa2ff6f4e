package server

import (
	"context"
	"log/slog"

	"github.com/cove-sh/cove/internal/agentbin"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/cells"
	"github.com/cove-sh/cove/internal/image"
	"github.com/cove-sh/cove/internal/service"
)

// Local is the assembly of a daemon that runs sandboxes on this machine.
func Local() Assembly {
	return Assembly{Engine: localEngine, Templates: localTemplates}
}

func localEngine(_ context.Context, dir string, log *slog.Logger) (engine.Engine, error) {
	agent, err := agentbin.Binary()
	if err != nil {
		return nil, err
	}
	digest, err := agentbin.Digest()
	if err != nil {
		return nil, err
	}
	return cells.New(cells.Config{Dir: dir, Agent: agent, AgentDigest: digest, Log: log})
}

func localTemplates(_ context.Context, dir string, log *slog.Logger) (service.TemplateProvider, error) {
	return image.New(image.Config{Dir: dir, Log: log})
}
