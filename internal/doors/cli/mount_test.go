package cli

import (
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

func TestMountFlags(t *testing.T) {
	for s, want := range map[string]sandbox.Mount{
		"data:/data":      {Volume: "data", Target: "/data"},
		"data:/data:ro":   {Volume: "data", Target: "/data", ReadOnly: true},
		"data:/data:rw":   {Volume: "data", Target: "/data"},
		"/srv/x:/data:ro": {Host: "/srv/x", Target: "/data", ReadOnly: true},
	} {
		if got, err := parseVolume(s); err != nil || got != want {
			t.Errorf("--volume %s: %+v, %v", s, got, err)
		}
	}
	for s, want := range map[string]sandbox.Mount{
		"type=volume,source=data,target=/data,readonly":   {Volume: "data", Target: "/data", ReadOnly: true},
		"src=data,dst=/data,ro=false":                     {Volume: "data", Target: "/data"},
		"type=bind,source=/srv/x,destination=/data,ro":    {Host: "/srv/x", Target: "/data", ReadOnly: true},
		"type=tmpfs,target=/scratch,tmpfs-size=64m":       {Tmpfs: true, Target: "/scratch", SizeMiB: 64},
		"type=tmpfs,target=/scratch":                      {Tmpfs: true, Target: "/scratch"},
		"type=volume,source=data,target=/data,readonly=1": {Volume: "data", Target: "/data", ReadOnly: true},
	} {
		if got, err := parseMount(s); err != nil || got != want {
			t.Errorf("--mount %s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "data", ":/data", "data:", "data:/x:no", "data:/x:ro:ro"} {
		if got, err := parseVolume(s); err == nil {
			t.Errorf("--volume %s: %+v", s, got)
		}
	}
	for _, s := range []string{"", "type=volume", "source=data", "type=tmpfs,source=x,target=/x", "type=nfs,source=x,target=/x", "source=x,target=/x,size=1", "source=x,target=/x,ro=2", "type=tmpfs,target=/x,tmpfs-size=a"} {
		if got, err := parseMount(s); err == nil {
			t.Errorf("--mount %s: %+v", s, got)
		}
	}
}
