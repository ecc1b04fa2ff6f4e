package runsc

import (
	"fmt"
	"strings"

	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/sandbox"
)

// CheckpointFiles are the names of the files of a checkpoint: the state of gVisor's
// kernel, the pages of memory and of written files, and the table of these pages.
var CheckpointFiles = []string{
	checkpointfiles.StateFileName,
	checkpointfiles.PagesMetadataFileName,
	checkpointfiles.PagesFileName,
}

// PagesFile is the file of [CheckpointFiles] with the pages.
const PagesFile = checkpointfiles.PagesFileName

// Pause suspends all processes of the sandbox.
func (s *Sandbox) Pause() error {
	if err := s.c.Pause(); err != nil {
		return fmt.Errorf("pause gVisor container: %w", err)
	}
	return nil
}

// Resume continues paused processes.
func (s *Sandbox) Resume() error {
	if err := s.c.Resume(); err != nil {
		return fmt.Errorf("resume gVisor container: %w", err)
	}
	return nil
}

// Checkpoint writes the sandbox's state to [CheckpointFiles] in a directory that has none
// of them. The sandbox's processes are suspended meanwhile. They continue afterwards,
// even after an error, unless they were paused before.
//
// The file of pages is uncompressed and omits pages of zeros, so that pages can be loaded
// on demand.
func (s *Sandbox) Checkpoint(dir string) error {
	var err error
	if s.sharesWrites(dir) {
		err = s.checkpointServed(dir, nil)
	} else {
		err = s.c.Checkpoint(s.conf, dir, sandbox.CheckpointOpts{Compression: statefile.CompressionLevelNone, Resume: true})
	}
	if err != nil {
		return fmt.Errorf("checkpoint gVisor container: %w", err)
	}
	return nil
}

// Restore continues from a checkpoint, instead of [Sandbox.Start]. It returns when the
// processes run. The remaining pages are then read from the directory's files in the
// background; the files may be removed meanwhile.
//
// rest is what the checkpoint lacks, or nil if it is complete.
func (s *Sandbox) Restore(dir string, rest Rest) error {
	err := OnOwnThread(func() error { return s.restoreServed(dir, rest) })
	if err != nil {
		return fmt.Errorf("restore gVisor container: %w", err)
	}
	return nil
}

// CPUFeatures returns the features of this machine's processor that are visible to
// programs in a sandbox. A checkpoint can be restored on machines that have all of them.
func CPUFeatures() []string {
	cpuid.Initialize()
	return strings.Fields(cpuid.HostFeatureSet().FlagString())
}
