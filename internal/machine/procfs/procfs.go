// Package procfs finds the processes of this process's process-id namespace in /proc, even
// if /proc belongs to a namespace above it and so knows them by other ids, as below a
// container's /proc.
//
// /proc/self always leads to the reader. All other ids must be translated first.
package procfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Root is where procfs is mounted.
const Root = "/proc"

// depth is how many levels of process-id namespaces lie between /proc's and this
// process's. It is read once, after this process has mounted its /proc, if it does.
var depth = sync.OnceValues(func() (int, error) {
	ids, err := idsOf(filepath.Join(Root, "self"))
	return len(ids) - 1, err
})

// Own reports whether /proc belongs to this process's process-id namespace.
func Own() (bool, error) {
	d, err := depth()
	return d == 0, err
}

// Dir returns the directory of a process. It must not have been waited for yet, since
// another may have its id then.
func Dir(id int) (string, error) {
	own, err := Own()
	if err != nil {
		return "", err
	}
	if own {
		return dirOf(id), nil
	}
	return foreignDir(id)
}

func dirOf(id int) string { return filepath.Join(Root, strconv.Itoa(id)) }

// foreignDir translates an id by a pidfd, whose description has the id that its process
// has for the reader's /proc.
func foreignDir(id int) (string, error) {
	fd, err := unix.PidfdOpen(id, 0)
	if err != nil {
		return "", fmt.Errorf("open process %d: %w", id, err)
	}
	defer unix.Close(fd)
	info, err := os.ReadFile(filepath.Join(Root, "self/fdinfo", strconv.Itoa(fd)))
	if err != nil {
		return "", err
	}
	outer, err := strconv.Atoi(field(string(info), "Pid"))
	if err != nil || outer <= 0 {
		return "", fmt.Errorf("process %d has no id in %s", id, Root)
	}
	return dirOf(outer), nil
}

// Processes returns the directories of all processes of this process's namespace. If /proc
// belongs to another namespace, this process must be the first of its own, from which all
// others descend.
func Processes() ([]string, error) {
	own, err := Own()
	if err != nil {
		return nil, err
	}
	if own {
		return filepath.Glob(filepath.Join(Root, "[0-9]*"))
	}
	return descendants()
}

// descendants returns this process and all that descend from it. A process that gets
// another parent meanwhile may be missing.
func descendants() ([]string, error) {
	self, err := os.Readlink(filepath.Join(Root, "self"))
	if err != nil {
		return nil, err
	}
	dirs := []string{filepath.Join(Root, self)}
	for i := 0; i < len(dirs); i++ {
		for _, task := range tasks(dirs[i]) {
			data, err := os.ReadFile(filepath.Join(task, "children"))
			if err != nil && i == 0 {
				return nil, fmt.Errorf("list processes: %w", err)
			}
			for child := range strings.FieldsSeq(string(data)) {
				if dir := filepath.Join(Root, child); !slices.Contains(dirs, dir) {
					dirs = append(dirs, dir)
				}
			}
		}
	}
	return dirs, nil
}

// Threads returns the ids, in this process's namespace, of all threads of the processes
// that [Processes] lists.
func Threads() ([]int, error) {
	d, err := depth()
	if err != nil {
		return nil, err
	}
	dirs, err := Processes()
	if err != nil {
		return nil, err
	}
	var threads []int
	for _, dir := range dirs {
		for _, task := range tasks(dir) {
			if d == 0 {
				if id, err := strconv.Atoi(filepath.Base(task)); err == nil {
					threads = append(threads, id)
				}
			} else if ids, err := idsOf(task); err == nil && len(ids) > d {
				threads = append(threads, ids[d])
			}
		}
	}
	return threads, nil
}

// tasks returns the directories of a process's threads, or nothing if it has ended.
func tasks(dir string) []string {
	list, _ := filepath.Glob(filepath.Join(dir, "task/[0-9]*"))
	return list
}

// idsOf returns the ids of a process or thread in the namespaces from that of /proc down
// to its own.
func idsOf(dir string) ([]int, error) {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return nil, err
	}
	var ids []int
	for f := range strings.FieldsSeq(field(string(status), "NSpid")) {
		id, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("%s/status: %w", dir, err)
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s/status has no NSpid", dir)
	}
	return ids, nil
}

// field returns a field of a file such as /proc/PID/status, or "".
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
