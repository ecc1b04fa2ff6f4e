package container

import "gvisor.dev/gvisor/runsc/specutils"

// SetProcDir sets specutils.ProcDir. It is a method, so that users of this package can ask
// whether the module has it.
func (Args) SetProcDir(dir func(pid int) string) { specutils.ProcDir = dir }
