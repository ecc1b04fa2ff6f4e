package filter

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// TestPrecompiled compares the programs in the source with those that are compiled here.
func TestPrecompiled(t *testing.T) {
	for _, direct := range []bool{true, false} {
		opt := Options{Platform: (*systrap.Systrap)(nil).SeccompInfo(), HostFilesystem: direct, ControllerFD: 7}
		p, ok := GetPrecompiled(opt.ConfigKey())
		if !ok {
			t.Errorf("there is no program for %s, only for %q", opt.ConfigKey(), ListPrecompiled())
			continue
		}
		got, err := p.RenderInstructions(opt.Vars())
		if err != nil {
			t.Fatal(err)
		}
		rules, denyRules := config.Rules(opt)
		program := seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: denyRules}, {Rules: rules, Action: seccomp.Allow}},
			Options:  config.SeccompOptions(opt),
		}
		want, _, err := program.Build()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the program in the source has %d instructions and differs from the %d that are compiled", opt.ConfigKey(), len(got), len(want))
		}
		opt.ProfileEnable = true
		if _, ok := GetPrecompiled(opt.ConfigKey()); ok {
			t.Error("there is a program for a sentry with a profiler")
		}
	}
}
