package cgroup

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const mib = 1 << 20

// TestRoom checks that the room of a group follows from its limit, its use and its files
// in memory.
func TestRoom(t *testing.T) {
	stat := func(names string, inactive, active int) string {
		f := strings.Fields(names)
		return fmt.Sprintf("cache 1\n%s %d\nmapped_file 7\n%s %d\n", f[0], inactive*mib, f[1], active*mib)
	}
	const v1, v2 = "total_inactive_file total_active_file", "inactive_file active_file"
	for name, tt := range map[string]struct {
		read  func(string) (Room, error)
		files map[string]string
		want  Room // without its directory
		fails bool
	}{
		"v1":            {room1, map[string]string{"memory.limit_in_bytes": "3145728000\n", "memory.usage_in_bytes": "1048576000\n", "memory.stat": stat(v1, 100, 40)}, Room{Limit: 3000 * mib, Free: 2120 * mib}, false},
		"v1, unlimited": {room1, map[string]string{"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "1\n", "memory.stat": ""}, Room{}, false},
		"v1, over it":   {room1, map[string]string{"memory.limit_in_bytes": "1048576\n", "memory.usage_in_bytes": "4194304\n", "memory.stat": ""}, Room{Limit: mib}, false},
		"v1, no files":  {room1, nil, Room{}, true},
		"v2":            {room2, map[string]string{"memory.max": "3145728000\n", "memory.high": "max\n", "memory.current": "1048576000\n", "memory.stat": stat(v2, 100, 40)}, Room{Limit: 3000 * mib, Free: 2120 * mib}, false},
		"v2, high":      {room2, map[string]string{"memory.max": "max\n", "memory.high": "2097152\n", "memory.current": "1048576\n", "memory.stat": ""}, Room{Limit: 2 * mib, Free: mib}, false},
		"v2, unlimited": {room2, map[string]string{"memory.max": "max\n", "memory.current": "1048576\n", "memory.stat": ""}, Room{}, false},
		"v2, its root":  {room2, map[string]string{"memory.stat": ""}, Room{}, true},
		"no number":     {room2, map[string]string{"memory.max": "much\n", "memory.current": "1\n", "memory.stat": ""}, Room{}, true},
		"cache above the use": {room2, map[string]string{"memory.max": "4194304\n", "memory.current": "1048576\n", "memory.stat": stat(v2, 9, 9)},
			Room{Limit: 4 * mib, Free: 4 * mib}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := tt.read(dir)
			if (err != nil) != tt.fails {
				t.Fatalf("error: %v", err)
			}
			if tt.want.Limit != 0 {
				tt.want.Dir = dir
			}
			if diff := cmp.Diff(tt.want, got); diff != "" && err == nil {
				t.Error(diff)
			}
		})
	}
}

// TestRoomsOfAncestors checks that a group's ancestors bound it too.
func TestRoomsOfAncestors(t *testing.T) {
	tr := newTree(t, "/system.slice/cove.service", "cpu memory pids\n")
	tr.cgroup("sys/fs/cgroup/system.slice", "cpu memory pids\n", "")
	tr.cgroup("sys/fs/cgroup/system.slice/cove.service", "cpu memory pids\n", fmt.Sprintln(os.Getpid()))
	tr.put("sys/fs/cgroup/system.slice/memory.max", "8388608\n")
	tr.put("sys/fs/cgroup/system.slice/memory.stat", "")
	tr.put("sys/fs/cgroup/system.slice/cove.service/memory.max", "max\n")
	tr.put("sys/fs/cgroup/system.slice/cove.service/memory.stat", "")
	want := []Room{{Dir: filepath.Join(tr.root, "sys/fs/cgroup/system.slice"), Limit: 8 * mib, Free: 8*mib - 4096}}
	if diff := cmp.Diff(want, tr.detect().memoryRooms()); diff != "" {
		t.Error(diff)
	}
}

// FuzzRoom checks that a group never has more room than its limit, whatever the kernel's
// files contain.
func FuzzRoom(f *testing.F) {
	f.Add("3145728000\n", "1048576000\n", "total_inactive_file 1\ntotal_active_file 2\n")
	f.Add("9223372036854771712", "-1", "total_inactive_file -9\ntotal_active_file 99999999999999999999\n")
	f.Add("max", "", "\n\n=")
	f.Fuzz(func(t *testing.T, limit, usage, stat string) {
		dir := t.TempDir()
		for file, content := range map[string]string{"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage, "memory.stat": stat} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := room1(dir)
		if err == nil && (r.Limit < 0 || r.Free < 0 || r.Free > max(r.Limit, 0) || r.Limit == math.MaxInt64) {
			t.Errorf("%q %q %q give %+v", limit, usage, stat, r)
		}
	})
}
