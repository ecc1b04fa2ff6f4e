package runsc

import (
	"errors"
	"slices"
	"testing"
)

func TestIsRole(t *testing.T) {
	tests := []struct {
		args []string
		want bool
	}{
		{[]string{"runsc-sandbox", "--root=/x", "boot"}, true},
		{[]string{"runsc-gofer", "gofer"}, true},
		{[]string{"runsc[getUsernsFD]"}, true},
		{[]string{"/proc/self/exe", "umount", "--sync-fd=3", "/proc"}, true},
		{[]string{"cove", "serve"}, false},
		{[]string{"/usr/bin/cove", "run", "--", "umount"}, false},
		{[]string{"cove"}, false},
		{nil, false},
	}
	for _, tt := range tests {
		if got := IsRole(tt.args); got != tt.want {
			t.Errorf("IsRole(%q) = %v, want %v", tt.args, got, tt.want)
		}
	}
}

func TestWithLimits(t *testing.T) {
	bundle := func(path string) ([]byte, error) {
		if path != "/b/limits.json" {
			return nil, errors.New("no such file")
		}
		return []byte(`{"memory_bytes":1024,"cpus":1}`), nil
	}
	tests := []struct {
		name       string
		args, want []string
	}{
		{"replaces", []string{"runsc-sandbox", "--root=/r", "boot", "--bundle=/b", "--total-memory", "99", "--cpu-num", "8", "id"},
			[]string{"runsc-sandbox", "--root=/r", "boot", "--cpu-num=1", "--total-memory=1024", "--bundle=/b", "id"}},
		{"replaces joined", []string{"runsc-sandbox", "boot", "--total-memory=99", "--bundle=/b", "id"},
			[]string{"runsc-sandbox", "boot", "--cpu-num=1", "--total-memory=1024", "--bundle=/b", "id"}},
		{"bundle out of sight", []string{"runsc-sandbox", "boot", "--bundle=/gone", "--total-memory=1024", "id"},
			[]string{"runsc-sandbox", "boot", "--bundle=/gone", "--total-memory=1024", "id"}},
		{"not boot", []string{"runsc-gofer", "gofer", "--bundle", "/b"}, []string{"runsc-gofer", "gofer", "--bundle", "/b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := withLimits(tt.args, bundle); !slices.Equal(got, tt.want) {
				t.Errorf("withLimits(%q)\n got %q\nwant %q", tt.args, got, tt.want)
			}
		})
	}
}
