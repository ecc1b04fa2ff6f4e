package filter

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
)

func TestRestorePrepares(t *testing.T) {
	opt := Options{Platform: (*systrap.Systrap)(nil).SeccompInfo(), HostFilesystem: true, ControllerFD: 7}
	if _, ok := prepared(opt); ok {
		t.Error("a program is prepared before Prepare")
	}
	Prepare(opt)
	got, ok := prepared(opt)
	want, _, err := newProgram(opt).Build()
	if err != nil {
		t.Fatal(err)
	}
	if !ok || !slices.Equal(got, want) {
		t.Errorf("prepared %d instructions (%v), want the %d of a program that is not", len(got), ok, len(want))
	}
	for name, change := range map[string]func(*Options){
		"another descriptor":      func(o *Options) { o.ControllerFD++ },
		"without the file system": func(o *Options) { o.HostFilesystem = false },
		"with a profiler":         func(o *Options) { o.ProfileEnable = true },
	} {
		other := opt
		change(&other)
		if _, ok := prepared(other); ok {
			t.Errorf("%s: the program for other options is used", name)
		}
	}
}
