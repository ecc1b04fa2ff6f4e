package agent

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// processes calls f with the pid of every process in /proc.
func processes(f func(pid int)) error {
	dir, err := os.Open("/proc")
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if name[0] < '1' || name[0] > '9' {
				continue
			}
			if pid, err := strconv.Atoi(name); err == nil {
				f(pid)
			}
		}
		if err != nil || len(names) == 0 {
			return nil
		}
	}
}

// sessionMembers lists the processes of session sid.
func sessionMembers(sid int) (pids []int) {
	_ = processes(func(pid int) {
		if got, err := unix.Getsid(pid); err == nil && got == sid {
			pids = append(pids, pid)
		}
	})
	return pids
}

// signalSession sends sig to every process of session sid, whose leader is or was
// process sid, and returns how many it reached. With SIGKILL it repeats that until it
// finds no new process, so that none is left that could fork.
func signalSession(sid int, sig unix.Signal) int {
	reached := 0
	seen := map[int]bool{}
	for range 100 { // far more passes than are ever needed
		found := false
		// The group first, in one call: most jobs have no other processes.
		if unix.Kill(-sid, sig) == nil && len(seen) == 0 {
			reached++
		}
		for _, pid := range sessionMembers(sid) {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			found = true
			if pgid, err := unix.Getpgid(pid); err == nil && pgid == sid {
				continue // signalled with its group
			}
			if unix.Kill(pid, sig) == nil {
				reached++
			}
		}
		if sig != unix.SIGKILL || !found {
			break
		}
	}
	return reached
}

// leaderless reports whether session sid has processes but no leader: then sid cannot
// be the pid of a newer process.
func leaderless(sid int) bool {
	members := sessionMembers(sid)
	return len(members) > 0 && !slices.Contains(members, sid)
}
