//go:build linux

package main

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func init() { attacks["swap"] = swap }

// swap puts a link to a target in the place of a directory whenever there is one,
// and takes it away again. Its arguments are the directory's path, the target,
// and for how long.
func swap(args []string) {
	path, target := args[0], args[1]
	d, err := time.ParseDuration(args[2])
	if err != nil {
		result("swap", err)
		return
	}
	link, swapped := path+".link", 0
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
			result("swap", err)
			return
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			continue
		}
		// Out of the way, and the link into its place: gVisor does not exchange.
		if os.Rename(path, path+".old") == nil && os.Rename(link, path) == nil {
			swapped++
			time.Sleep(time.Millisecond)
			_ = os.Remove(path)
		}
		_ = os.Remove(path + ".old")
	}
	if swapped == 0 {
		result("swapped", errors.New("never"))
		return
	}
	result("swapped", nil)
}
