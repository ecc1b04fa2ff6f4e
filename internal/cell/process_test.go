package cell

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestCPUNanos(t *testing.T) {
	tests := []struct {
		name, stat string
		want       int64
	}{
		{"plain", "1 (x) S 0 1 1 0 -1 0 0 0 0 0 10 5 2 3 20 0", 200_000_000},
		{"hostile name", "1 (a) b (c) 9 9) S 0 1 1 0 -1 0 0 0 0 0 10 5 2 3 20 0", 200_000_000},
		{"cut short", "1 (x) S 0 1", 0},
		{"no name", "1 x S", 0},
		{"empty", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := cpuNanos([]byte(tt.stat)); got != tt.want {
				t.Errorf("cpuNanos(%q) = %d, want %d", tt.stat, got, tt.want)
			}
		})
	}
}

func TestReadRollup(t *testing.T) {
	got := readRollup([]byte("5-6 ---p [rollup]\nRss: 100 kB\nPss:  40 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty:  2 kB\nPss_Shmem: 9 kB\nPss: x kB\n"))
	want := map[string]int64{"Rss": 100 << 10, "Pss": 40 << 10, "Private_Clean": 1 << 10, "Private_Dirty": 2 << 10, "Pss_Shmem": 9 << 10}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestProcessStatsCountsThisProcess(t *testing.T) {
	st := processStats([]string{"/proc/self"})
	if st.MemoryBytes <= 0 || st.PrivateBytes <= 0 || st.PrivateBytes > st.MemoryBytes {
		t.Errorf("processStats = %v, want memory above private memory above 0", st)
	}
}

func TestCopyBoundedDiscardsRest(t *testing.T) {
	var out strings.Builder
	in := strings.NewReader(strings.Repeat("x", 100))
	copyBounded(&out, in, 10)
	if out.Len() != 10 || in.Len() != 0 {
		t.Errorf("copied %d bytes and left %d, want 10 and 0", out.Len(), in.Len())
	}
}

func TestHoldsAny(t *testing.T) {
	tests := []struct {
		dir, path string
		want      bool
	}{
		{"/mnt", "/mnt/state", true},
		{"/mnt", "/mnt", true},
		{"/mnt", "/mntx/state", false},
		{"/mnt", "/var/lib/cove", false},
	}
	for _, tt := range tests {
		if got := holdsAny(tt.dir, []string{tt.path}); got != tt.want {
			t.Errorf("holdsAny(%q, %q) = %v, want %v", tt.dir, tt.path, got, tt.want)
		}
	}
}

func FuzzProcFiles(f *testing.F) {
	f.Add([]byte("1 (x) S 0 1 1 0 -1 0 0 0 0 0 10 5 2 3 20 0"))
	f.Add([]byte("Pss: 1 kB\nPrivate_Dirty: -1 kB"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cpuNanos(data)
		readRollup(data)
	})
}

// TestEachThread checks that no thread is left out that another one starts meanwhile.
func TestEachThread(t *testing.T) {
	starts := map[int]int{1: 3, 3: 4} // what a thread starts just before something is done to it
	threads, done := []int{1, 2}, map[int]int{}
	list := func() ([]int, error) { return slices.Clone(threads), nil }
	err := eachThread(list, func(tid int) error {
		if next := starts[tid]; next != 0 {
			threads = append(threads, next)
		}
		done[tid]++
		return nil
	})
	if want := map[int]int{1: 1, 2: 1, 3: 1, 4: 1}; err != nil || !maps.Equal(done, want) {
		t.Errorf("done: %v, %v", done, err)
	}
	refused := errors.New("refused")
	if err := eachThread(list, func(int) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("an error: %v", err)
	}
}
