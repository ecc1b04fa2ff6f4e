// Command gen writes the OpenAPI description of the REST interface, to the named
// file or to standard output:
//
//	gen [FILE]
package main

import (
	"fmt"
	"os"

	"github.com/cove-sh/cove/internal/doors/rest"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	doc, err := rest.OpenAPI()
	if err != nil {
		return fmt.Errorf("describe the interface: %w", err)
	}
	if len(args) == 0 {
		_, err = os.Stdout.Write(doc)
		return err
	}
	return os.WriteFile(args[0], doc, 0o644)
}
