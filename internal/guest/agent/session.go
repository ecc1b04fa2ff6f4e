package agent

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// processes calls f with the number of every process that /proc shows.
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

// signalSession sends sig to every process of session sid, whose leader is or
// was process sid, and returns how many it reached. After SIGKILL none is left
// that can fork: it looks again until it finds no new one.
func signalSession(sid int, sig unix.Signal) int {
	reached := 0
	seen := map[int]bool{}
	for range 100 { // far more passes than a chase ever takes
		found := false
		// The group first and at once: most jobs are no more than that.
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
				continue // had it with its group
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

// leaderless reports whether session sid has processes but its leader is gone,
// so that sid cannot be the number of a newer process.
func leaderless(sid int) bool {
	members := sessionMembers(sid)
	for _, pid := range members {
		if pid == sid {
			return false
		}
	}
	return len(members) > 0
}
