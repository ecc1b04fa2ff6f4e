package cli

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/internal/doors/rest"
)

// versionTime bounds how long the server may take to tell its version.
const versionTime = 2 * time.Second

// versionInfo is what cove version prints.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Server is the version of the daemon that runs, or of the server of --url.
	Server string `json:"server,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version, and the server's",
		Long:    "Print the version of this program, and that of the server if one answers. No daemon is started.",
		Example: "  cove version --json",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runVersion(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runVersion(ctx context.Context, opts jsonOption) error {
	v := versionInfo{Version: a.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if c, err := a.connectRunning(); err == nil {
		defer closeQuietly(c)
		ctx, cancel := context.WithTimeout(ctx, versionTime)
		defer cancel()
		v.Server, _ = c.Version(ctx)
	}
	if opts.JSON {
		return a.printJSON(v)
	}
	text := "cove " + v.Version + " (" + v.Go + ", " + v.Platform + ")\n"
	if v.Server != "" {
		text += "server " + clean(v.Server) + "\n"
	}
	return a.print(text)
}

func (a *app) openapiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "openapi", Short: "Print the OpenAPI description of the REST interface", Hidden: true,
		Args: argsBetween(0, 0),
		RunE: func(*cobra.Command, []string) error {
			doc, err := rest.OpenAPI()
			if err != nil {
				return err
			}
			return a.print(string(doc))
		},
	}
}

// buildVersion is the version that the Go command noted when it built the
// program.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "0.0.0-dev"
	}
	return info.Main.Version
}
