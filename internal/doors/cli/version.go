package cli

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/doors/rest"
)

// versionTime bounds the wait for the server's version.
const versionTime = 2 * time.Second

// versionInfo is what cove version prints.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// GVisor is the version of gVisor in this program, and whether it has the
	// patches for forks.
	GVisor string `json:"gvisor"`
	// Server is the version of the running daemon, or of the server of --url.
	Server string `json:"server,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	return a.make(command{
		Use: "version", Short: "Print the version",
		Long:    "Print the version of this program, and of the server if one is running. No daemon is started.",
		Example: "  cove version --json",
		Do:      action{here: true, json: true, run: runVersion},
	})
}

func runVersion(ctx context.Context, c *call) error {
	v := versionInfo{Version: c.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, GVisor: gvisorText()}
	if server, err := c.connectRunning(); err == nil {
		defer closeQuietly(server)
		ctx, cancel := context.WithTimeout(ctx, versionTime)
		defer cancel()
		v.Server, _ = server.Version(ctx)
	}
	return shown(c, printVersion, &v, nil)
}

func printVersion(c *call, v *versionInfo) error {
	text := "cove " + v.Version + " (" + v.Go + ", " + v.Platform + ")\ngVisor " + v.GVisor + "\n"
	if v.Server != "" {
		text += "server " + clean(v.Server) + "\n"
	}
	return c.print(text)
}

// gvisorText describes the gVisor in this program.
func gvisorText() string {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "gvisor.dev/gvisor" {
				version = m.Version
			}
		}
	}
	if runsc.Patched() {
		return version + ", patched for forks"
	}
	return version + ", stock"
}

func (a *app) openapiCommand() *cobra.Command {
	cmd := a.make(command{
		Use: "openapi", Short: "Print the OpenAPI description of the REST interface",
		Do: action{here: true, run: func(_ context.Context, c *call) error {
			doc, err := rest.OpenAPI()
			if err != nil {
				return err
			}
			return c.print(string(doc))
		}},
	})
	cmd.Hidden = true
	return cmd
}

// buildVersion returns the version that the Go command recorded when it built the
// program.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "0.0.0-dev"
	}
	return info.Main.Version
}
