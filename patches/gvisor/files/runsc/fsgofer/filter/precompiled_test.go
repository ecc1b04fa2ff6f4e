package filter

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// TestPrecompiled compares the programs in the source with those that are compiled here.
func TestPrecompiled(t *testing.T) {
	for _, opt := range []Options{{}, {DirectFS: true}, {LisafsNeeded: true}, {DirectFS: true, LisafsNeeded: true}} {
		p, ok := GetPrecompiled(opt.ConfigKey())
		if !ok {
			t.Errorf("there is no program for %s, only for %q", opt.ConfigKey(), ListPrecompiled())
			continue
		}
		got, err := p.RenderInstructions(opt.Vars())
		if err != nil {
			t.Fatal(err)
		}
		for i, insn := range got {
			if insn.OpCode == bpf.Ret|bpf.K && insn.K != uint32(linux.SECCOMP_RET_ALLOW) && insn.K != uint32(linux.SECCOMP_RET_KILL_PROCESS) {
				t.Errorf("%s: instruction %d neither allows a call nor kills the process: %#x", opt.ConfigKey(), i, insn.K)
			}
		}
		rules, denyRules := config.Rules(opt)
		program := seccomp.Program{RuleSets: []seccomp.RuleSet{{Rules: denyRules}, {Rules: rules, Action: seccomp.Allow}}}
		want, _, err := program.Build()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the program in the source has %d instructions and differs from the %d that are compiled", opt.ConfigKey(), len(got), len(want))
		}
	}
}
