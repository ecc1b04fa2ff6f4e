// Command gen writes what is generated for the REST interface:
//
//	gen [FILE]              the OpenAPI description, to FILE or standard output
//	gen -fields FILE DIR    the comments on the structs of the package in DIR
package main

import (
	"fmt"
	"os"

	"github.com/cove-sh/cove/internal/api"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 3 && args[0] == "-fields" {
		return writeFieldTexts(args[1], args[2])
	}
	doc, err := api.OpenAPI()
	if err != nil {
		return fmt.Errorf("describe the interface: %w", err)
	}
	if len(args) == 0 {
		_, err = os.Stdout.Write(doc)
		return err
	}
	return os.WriteFile(args[0], doc, 0o644)
}
