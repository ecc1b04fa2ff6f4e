// Package filtertest checks seccomp programs that were compiled with their packages.
package filtertest

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
)

// Check compares a program with what is compiled here of the same rules. The program must
// kill the process for each system call that it does not allow.
func Check(t *testing.T, p precompiledseccomp.Program, vars precompiledseccomp.Values, rules, denyRules seccomp.SyscallRules, opts seccomp.ProgramOptions) {
	t.Helper()
	got, err := p.RenderInstructions(vars)
	if err != nil {
		t.Fatal(err)
	}
	for i, insn := range got {
		if insn.OpCode == bpf.Ret|bpf.K && insn.K != uint32(linux.SECCOMP_RET_ALLOW) && insn.K != uint32(linux.SECCOMP_RET_KILL_PROCESS) {
			t.Errorf("%s: instruction %d neither allows a call nor kills the process: %#x", p.Name, i, insn.K)
		}
	}
	program := seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: denyRules}, {Rules: rules, Action: seccomp.Allow}},
		Options:  opts,
	}
	want, _, err := program.Build()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: the program has %d instructions and differs from the %d that are compiled here", p.Name, len(got), len(want))
	}
}
