//go:build cgo

package main

import (
	"fmt"
	"os"
)

// A program that needs a C library cannot execute itself again in gVisor's empty
// root: no sandbox would start, and no error would say why.
func init() {
	fmt.Fprintln(os.Stderr, "cove: this program was built with cgo, with which no sandbox starts; build it with make build, or with CGO_ENABLED=0 in the environment")
	os.Exit(1)
}
