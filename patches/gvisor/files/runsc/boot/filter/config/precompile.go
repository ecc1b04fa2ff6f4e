package config

import (
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
)

// Precompile compiles the program for opt. Values that only the process has that installs
// it, which [Options.Vars] names, are left open.
func Precompile(opt Options) (precompiledseccomp.Program, error) {
	var names []string
	for name := range opt.Vars() {
		names = append(names, name)
	}
	return precompiledseccomp.Precompile(opt.ConfigKey(), names, func(vars precompiledseccomp.Values) *seccomp.Program {
		rules, denyRules := rules(opt, vars)
		return &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: denyRules.Copy()}, {Rules: rules.Copy(), Action: seccomp.Allow}},
			Options:  SeccompOptions(opt),
		}
	})
}
