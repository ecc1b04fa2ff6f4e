// Command precompile compiles the programs of the seccomp filters of the sentry and the
// gofer for the options with which Cove starts them, and puts them into the source of the
// module in the directory of its argument. There, the packages that install the filters
// have a place for such programs, which gVisor's own build fills.
//
// On a machine whose kernel cannot kill a process for a system call, it leaves the programs
// out: what they do instead would be compiled for all machines.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform/systrap"
	sentry "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

func main() {
	err := run(os.Args[1])
	if errors.Is(err, errCannotKill) {
		fmt.Fprintln(os.Stderr, "precompile:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "precompile:", err)
		os.Exit(1)
	}
}

var errCannotKill = errors.New("filters of system calls are compiled each time that a sandbox starts, because this machine's kernel cannot kill a process for a system call")

func run(module string) error {
	if ok, err := killsProcess(); err != nil || !ok {
		return errors.Join(errCannotKill, err)
	}
	var ofSentry, ofGofer []precompiledseccomp.Program
	wanted := map[string]bool{}
	for _, direct := range []bool{true, false} {
		p, err := sentry.Precompile(sentry.Options{Platform: (*systrap.Systrap)(nil).SeccompInfo(), HostFilesystem: direct})
		if err != nil {
			return err
		}
		ofSentry = append(ofSentry, p)
		for _, lisafs := range []bool{true, false} {
			wanted[gofer.Options{DirectFS: direct, LisafsNeeded: lisafs}.ConfigKey()] = true
		}
	}
	all, err := gofer.PrecompiledPrograms()
	if err != nil {
		return err
	}
	for _, p := range all {
		if wanted[p.Name] {
			ofGofer = append(ofGofer, p)
		}
	}
	if len(ofGofer) != len(wanted) {
		return fmt.Errorf("gVisor compiles %d of %d programs of the gofer", len(ofGofer), len(wanted))
	}
	for dir, programs := range map[string][]precompiledseccomp.Program{"runsc/boot/filter": ofSentry, "runsc/fsgofer/filter": ofGofer} {
		if err := register(filepath.Join(module, dir, "filter_precompiled.go"), programs); err != nil {
			return err
		}
	}
	return nil
}

// killsProcess reports whether programs that are compiled here kill a process for a system
// call that it must not make.
func killsProcess() (bool, error) {
	insns, _, err := (&seccomp.Program{}).Build()
	if err != nil {
		return false, err
	}
	for _, insn := range insns {
		if insn.OpCode == bpf.Ret|bpf.K && insn.K != uint32(linux.SECCOMP_RET_ALLOW) && insn.K != uint32(linux.SECCOMP_RET_KILL_PROCESS) {
			return false, nil
		}
	}
	return true, nil
}

// register adds programs to the map that a file makes of them.
func register(file string, programs []precompiledseccomp.Program) error {
	const empty = "\tprograms := make(map[string]precompiledseccomp.Program)\n"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, after, ok := strings.Cut(string(text), empty)
	if !ok {
		return fmt.Errorf("%s makes no map of programs as %q", file, empty)
	}
	var b strings.Builder
	b.WriteString(before + empty)
	for _, p := range programs {
		b.WriteString(p.Registration("\t", "precompiledseccomp", "programs"))
	}
	b.WriteString(after)
	return os.WriteFile(file, []byte(b.String()), 0o644)
}
