package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) statsCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use:     "stats SANDBOX",
		Short:   "Show what a running sandbox uses",
		Example: "  cove stats work",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runStats(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runStats(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	s, err := c.Stats(ctx, args[0])
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(s)
	}
	return a.fields(
		"processor", fmt.Sprintf("%.2f s", s.CPUSeconds),
		"memory", bytesText(s.MemoryBytes)+" of "+bytesText(s.MemoryMaxBytes),
		"private", bytesText(s.PrivateBytes),
		"disk", bytesText(s.DiskBytes)+" of "+bytesText(s.DiskMaxBytes),
		"processes", fmt.Sprint(s.Processes),
		"network in", bytesText(s.NetworkInBytes),
		"network out", bytesText(s.NetworkOutBytes),
	)
}
