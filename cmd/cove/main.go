// Command cove runs untrusted code for AI agents in gVisor sandboxes. One
// binary is all of it: the command line, the daemon, the supervisor of each
// sandbox and gVisor itself. See cove --help.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/doors/cli"
	"github.com/cove-sh/cove/internal/guest/agent"
)

// version is set when a release is linked.
var version string

func main() {
	if runsc.IsRole(os.Args) {
		runsc.Main()
	}
	if agent.IsRole(os.Args) {
		fmt.Fprintln(os.Stderr, "cove:", agent.Main(os.Args[1:], version, os.Stderr))
		os.Exit(1)
	}
	os.Exit(run())
}

func run() int {
	ctx, stop := cli.SignalContext(context.Background())
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "cell" {
		return cell.Main(ctx)
	}
	return cli.Run(ctx, cli.Program{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Version: version,
	})
}
