package machine

import (
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

func TestMeminfo(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want Memory
		bad  bool
	}{
		"usual":           {"MemTotal:       24683520 kB\nMemFree:  1 kB\nMemAvailable:   23533568 kB\n", Memory{Total: 24105 << 20, Available: 22982 << 20}, false},
		"more than there": {"MemTotal: 4 kB\nMemAvailable: 8 kB\n", Memory{Total: 4096, Available: 4096}, false},
		"an old kernel":   {"MemTotal: 4 kB\nMemFree: 4 kB\n", Memory{}, true},
		"empty":           {"", Memory{}, true},
		"negative":        {"MemTotal: 4 kB\nMemAvailable: -4 kB\n", Memory{}, true},
		"too large":       {"MemTotal: 4 kB\nMemAvailable: 99999999999999999999 kB\n", Memory{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseMeminfo(tt.text)
			if (err != nil) != tt.bad || err == nil && got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func FuzzMeminfo(f *testing.F) {
	f.Add("MemTotal: 4 kB\nMemAvailable: 8 kB\n")
	f.Add("MemAvailable:\nMemTotal: x kB")
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := parseMeminfo(text); err == nil && (m.Total < 0 || m.Available < 0 || m.Available > m.Total) {
			t.Errorf("%q gives %+v", text, m)
		}
	})
}

func TestFloor(t *testing.T) {
	for total, want := range map[int64]int64{512: 128, 3000: 300, 8192: 819, 65536: 1024} {
		if got := (Memory{Total: total << 20}).Floor() >> 20; got != want {
			t.Errorf("of %d MiB %d stay free, want %d", total, got, want)
		}
	}
}

// This machine has something of everything, and a small cgroup bounds it.
func TestCapacity(t *testing.T) {
	c := Capacity("/nowhere/at/all")
	if c.VCPUs < 1 || c.MemoryMiB < 64 || c.DiskMiB < 1 {
		t.Errorf("this machine has %+v", c)
	}
	bounds := MemoryBounds()
	if len(bounds) == 0 || bounds[0].Group != "" || !strings.Contains(bounds[0].String(), "the machine has") {
		t.Errorf("bounds are %v", bounds)
	}
	if vcpus, memory := DefaultQuota(c); vcpus < 64 || memory < c.MemoryMiB {
		t.Errorf("quota of %d vCPUs and %d MiB", vcpus, memory)
	}
}

// The tightest bound decides whether there is enough for sandboxes.
func TestMemoryCheck(t *testing.T) {
	large, small := Memory{Total: 64 << 30, Available: 32 << 30}, Memory{Group: "/sys/fs/cgroup/cove", Total: 3000 << 20, Available: 400 << 20}
	for name, tt := range map[string]struct {
		bounds []Memory
		want   sandbox.CheckStatus
		detail string
	}{
		"enough":        {[]Memory{large}, sandbox.CheckOK, "the machine has 32768 of its 65536 MiB of memory available and keeps 1024 free"},
		"a small group": {[]Memory{large, small}, sandbox.CheckWarn, "the daemon's memory cgroup has 400 of its 3000 MiB left and keeps 300 free (/sys/fs/cgroup/cove)"},
		"unknown":       {nil, sandbox.CheckWarn, "does not report"},
	} {
		t.Run(name, func(t *testing.T) {
			p := probe{bounds: tt.bounds}
			if c := p.memory(); c.Status != tt.want || !strings.Contains(c.Detail, tt.detail) {
				t.Errorf("got %+v", c)
			}
		})
	}
}
