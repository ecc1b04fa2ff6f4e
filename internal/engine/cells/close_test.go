package cells

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// TestCloseEndsUnnamedCells checks that a closed engine leaves no cell that nobody else would
// end: neither the spare, nor one that has just been started. Cells that a directory names may
// be sandboxes, which live on. The cells do not notice that their connections have ended, as
// when they have only begun to run.
func TestCloseEndsUnnamedCells(t *testing.T) {
	needs.UserNS(t)
	program := filepath.Join(t.TempDir(), "cell")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		state func(*Engine, *process)
		want  bool // that it has ended
	}{
		"being started": {func(*Engine, *process) {}, true},
		"the spare":     {func(e *Engine, p *process) { e.spare = p }, true},
		"named":         {func(_ *Engine, p *process) { p.named = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Engine{pools: pools{}}
			e.ctx, e.cancel = context.WithCancel(t.Context())
			var err error
			if e.peerListener, err = net.Listen("unix", filepath.Join(t.TempDir(), "peers")); err != nil {
				t.Fatal(err)
			}
			p, err := e.startProcess(program, cell.Protocol)
			if err != nil {
				t.Fatal(err)
			}
			tt.state(e, p)
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if p.hasExited() != tt.want {
				t.Errorf("it has ended is %v after the engine was closed, want %v", !tt.want, tt.want)
			}
			p.dismiss()
			_ = p.cmd.Process.Kill() // it may have ended
			<-p.exited
		})
	}
}
