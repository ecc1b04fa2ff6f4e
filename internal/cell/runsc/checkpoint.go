package runsc

import (
	"fmt"
	"strings"

	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/sandbox"
)

// CheckpointFiles are the names of the files that make up a checkpoint: the
// state of gVisor's kernel, and the pages of memory and of written files with
// their table.
var CheckpointFiles = []string{
	checkpointfiles.StateFileName,
	checkpointfiles.PagesMetadataFileName,
	checkpointfiles.PagesFileName,
}

// PagesFile is the one of [CheckpointFiles] with the pages.
const PagesFile = checkpointfiles.PagesFileName

// Pause stops all processes of the sandbox where they are.
func (s *Sandbox) Pause() error {
	if err := s.c.Pause(); err != nil {
		return fmt.Errorf("pause gVisor container: %w", err)
	}
	return nil
}

// Resume lets processes that were paused go on.
func (s *Sandbox) Resume() error {
	if err := s.c.Resume(); err != nil {
		return fmt.Errorf("resume gVisor container: %w", err)
	}
	return nil
}

// Checkpoint writes the sandbox's state to [CheckpointFiles] in a directory
// that holds none of them. Its processes stand still meanwhile and go on
// afterwards, also after an error, unless they were paused before.
//
// Pages go to a file of their own, uncompressed and without those that are all
// zero, so that they can be loaded as they are needed.
func (s *Sandbox) Checkpoint(dir string) error {
	if s.sharesWrites(dir) {
		if err := s.checkpointShared(dir); err != nil {
			return fmt.Errorf("checkpoint gVisor container: %w", err)
		}
		return nil
	}
	err := s.c.Checkpoint(s.conf, dir, sandbox.CheckpointOpts{
		Compression: statefile.CompressionLevelNone,
		Resume:      true,
	})
	if err != nil {
		return fmt.Errorf("checkpoint gVisor container: %w", err)
	}
	return nil
}

// Restore continues from a checkpoint, in place of [Sandbox.Start]. It returns
// when the processes run; pages that nobody has asked for yet are read from
// the directory's files in the background, which may be removed meanwhile.
func (s *Sandbox) Restore(dir string) error {
	err := OnOwnThread(func() error { return s.restoreServed(dir) })
	if err != nil {
		return fmt.Errorf("restore gVisor container: %w", err)
	}
	return nil
}

// CPUFeatures names the abilities of this machine's processor that programs in
// a sandbox see. A checkpoint can be restored where all of them are.
func CPUFeatures() []string {
	cpuid.Initialize()
	return strings.Fields(cpuid.HostFeatureSet().FlagString())
}
