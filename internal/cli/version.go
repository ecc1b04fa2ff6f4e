package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/internal/api"
)

// versionInfo is what cove version prints.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version",
		Example: "  cove version --json",
		Args:    argsBetween(0, 0),
		RunE:    func(*cobra.Command, []string) error { return a.runVersion(opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runVersion(opts jsonOption) error {
	v := versionInfo{Version: a.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if opts.JSON {
		return a.printJSON(v)
	}
	return a.print("cove " + v.Version + " (" + v.Go + ", " + v.Platform + ")\n")
}

func (a *app) openapiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "openapi", Short: "Print the OpenAPI description of the REST interface", Hidden: true,
		Args: argsBetween(0, 0),
		RunE: func(*cobra.Command, []string) error {
			doc, err := api.OpenAPI()
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
