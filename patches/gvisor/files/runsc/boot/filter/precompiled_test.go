package filter

import (
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
	"gvisor.dev/gvisor/runsc/boot/filter/filtertest"
)

func TestPrecompiled(t *testing.T) {
	for _, direct := range []bool{true, false} {
		opt := Options{Platform: (*systrap.Systrap)(nil).SeccompInfo(), HostFilesystem: direct, ControllerFD: 7}
		p, ok := GetPrecompiled(opt.ConfigKey())
		if !ok {
			t.Errorf("there is no program for %s, only for %q", opt.ConfigKey(), ListPrecompiled())
			continue
		}
		rules, denyRules := config.Rules(opt)
		filtertest.Check(t, p, opt.Vars(), rules, denyRules, config.SeccompOptions(opt))
		opt.ProfileEnable = true
		if _, ok := GetPrecompiled(opt.ConfigKey()); ok {
			t.Error("there is a program for a sentry with a profiler")
		}
	}
}
