package filter

import (
	"maps"

	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
)

// preparation is a program that is compiled before it is installed.
type preparation struct {
	key  string
	vars precompiledseccomp.Values
	// done is closed when insns and err are set.
	done  chan struct{}
	insns []bpf.Instruction
	err   error
}

// preparing is the preparation of Prepare, or nil. It is written before Install is called.
var preparing *preparation

// Prepare starts to compile the program for opt in the background. Install waits for it, and
// installs it if its options are equal; otherwise Install compiles a program itself, as
// without Prepare. Prepare must be called at most once, and before Install.
func Prepare(opt Options) {
	p := &preparation{key: opt.ConfigKey(), vars: opt.Vars(), done: make(chan struct{})}
	preparing = p
	program := newProgram(opt)
	go func() { // S/R-SAFE: it ends before a save, which follows Install.
		defer close(p.done)
		p.insns, _, p.err = program.Build()
	}()
}

// prepared returns the instructions that Prepare has compiled for equal options.
func prepared(opt Options) ([]bpf.Instruction, bool) {
	p := preparing
	if p == nil || p.key != opt.ConfigKey() || !maps.Equal(p.vars, opt.Vars()) {
		return nil, false
	}
	<-p.done
	return p.insns, p.err == nil
}
