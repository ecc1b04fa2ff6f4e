// Command cove-agent is the first process of a sandbox: it runs commands and works on
// files there. See package agent.
package main

import (
	"fmt"
	"os"

	"github.com/cove-sh/cove/internal/guest/agent"
)

// version is set when the binary is built.
var version = "dev"

func main() {
	if err := agent.Main(os.Args[1:], version, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cove-agent:", err)
		os.Exit(1)
	}
}
