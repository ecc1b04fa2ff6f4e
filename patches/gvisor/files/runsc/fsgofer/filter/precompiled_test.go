package filter

import (
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/runsc/boot/filter/filtertest"
	"gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

func TestPrecompiled(t *testing.T) {
	for _, opt := range []Options{{}, {DirectFS: true}, {LisafsNeeded: true}, {DirectFS: true, LisafsNeeded: true}} {
		p, ok := GetPrecompiled(opt.ConfigKey())
		if !ok {
			t.Errorf("there is no program for %s, only for %q", opt.ConfigKey(), ListPrecompiled())
			continue
		}
		rules, denyRules := config.Rules(opt)
		filtertest.Check(t, p, opt.Vars(), rules, denyRules, seccomp.ProgramOptions{})
	}
}
