package covetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PowerCut ends all cells of a daemon that is down, and makes its records those
// of an earlier boot.
func (d *Daemon) PowerCut(t testing.TB) {
	t.Helper()
	for _, pid := range d.Cells() {
		EndCell(t, pid)
	}
	cells, err := d.AnotherBoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if cells == 0 {
		t.Fatal("found no file about a cell's process")
	}
}

// AnotherBoot makes the records of a daemon that is down, and those of its
// cells, records of an earlier boot. It returns how many cells have one.
func (d *Daemon) AnotherBoot(ctx context.Context) (cells int, err error) {
	const earlier = "00000000-0000-4000-8000-000000000000"
	for _, parent := range []string{"cells", "*/cells"} {
		files, err := filepath.Glob(filepath.Join(d.StateDir, parent, "*", "process"))
		if err != nil {
			return 0, err
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				return 0, err
			}
			fields := strings.Fields(string(data))
			if len(fields) == 0 {
				continue // a loss of power has left the name alone
			}
			fields[len(fields)-1] = earlier
			if err := os.WriteFile(f, []byte(strings.Join(fields, " ")), 0o600); err != nil {
				return 0, err
			}
			cells++
		}
	}
	databases, err := filepath.Glob(filepath.Join(d.StateDir, "*.db"))
	if err != nil || len(databases) != 1 {
		return 0, fmt.Errorf("databases: %v, %w", databases, err)
	}
	db, err := sql.Open("sqlite", "file:"+databases[0])
	if err != nil {
		return 0, err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "UPDATE sandboxes SET boot_id = ?", earlier); err != nil {
		return 0, err
	}
	// The files of the database belong to whoever runs the daemon.
	info, err := os.Stat(d.StateDir)
	if err != nil {
		return 0, err
	}
	owner := info.Sys().(*syscall.Stat_t)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Chown(databases[0]+suffix, int(owner.Uid), int(owner.Gid)); err != nil && !os.IsNotExist(err) {
			return 0, err
		}
	}
	return cells, nil
}

// EndAll ends the daemon and all that it has started, and removes their cgroups
// and the given ones, as the loss of a machine's power does. It needs nothing of
// the state directory.
func (d *Daemon) EndAll(groups []string) error {
	d.Kill()
	ended := d.Tree()
	for _, pid := range ended {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) // it may have ended
		for line := range strings.Lines(string(data)) {
			if name := filepath.Base(strings.TrimSpace(line)); isStandby(name) {
				groups = append(groups, name)
			}
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	gone := func() bool {
		return !slices.ContainsFunc(ended, func(pid int) bool { return len(arguments(pid)) > 0 })
	}
	if !Eventually(time.Minute, gone) {
		return fmt.Errorf("some of the processes %v do not end", ended)
	}
	dirs := groupDirs(groups)
	slices.Reverse(dirs) // what is inside comes first
	for _, dir := range dirs {
		var err error
		if !Eventually(time.Minute, func() bool { err = os.Remove(dir); return err == nil || errors.Is(err, fs.ErrNotExist) }) {
			return err
		}
	}
	return nil
}
