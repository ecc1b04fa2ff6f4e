// Command box is the only file in some images of the tests: a static program that
// prints which user it runs as and where.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "cat":
		for _, name := range os.Args[1:] {
			data, err := os.ReadFile(name)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Stdout.Write(data)
		}
	default:
		dir, _ := os.Getwd()
		fmt.Printf("%d:%d %s %s %s\n", os.Getuid(), os.Getgid(), dir, os.Getenv("GREETING"), os.Getenv("HOME"))
	}
}
