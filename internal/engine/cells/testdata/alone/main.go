// Alone is the only program of a sandbox: it says what it was asked to.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	switch os.Args[1] {
	case "echo":
		fmt.Println(strings.Join(os.Args[2:], "|"), os.Getuid(), os.Getenv("X"))
		fmt.Fprintln(os.Stderr, "and an error")
		os.Exit(7)
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "wait": // for a signal, and says which
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		fmt.Println("got", <-c)
	case "orphan": // leaves a child behind that ends later
		if err := exec.Command("/alone", "brief").Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "brief":
	case "zombies": // how many there are, besides which processes
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		zombies := 0
		for _, s := range stats {
			if data, err := os.ReadFile(s); err == nil && strings.Contains(string(data), ") Z ") {
				zombies++
			}
		}
		fmt.Println(zombies)
	}
}
