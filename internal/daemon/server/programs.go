package server

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/cove-sh/cove/internal/engine/cells"
	"github.com/cove-sh/cove/internal/engine/tiered"
)

// programs are the program and the agent of this build, by the names under which exports of
// checkpoints share them. Nodes of the same build have the same, and those of the builds
// before are in the object store, so none of a node's own is ever needed.
type programs struct {
	sums func() (sums, error)
}

type sums struct {
	program string
	agent   string
	content []byte // of the agent
}

// ownProgram is the file of this process.
const ownProgram = "/proc/self/exe"

func newPrograms() *programs {
	return &programs{sync.OnceValues(func() (s sums, err error) {
		f, err := os.Open(ownProgram)
		if err != nil {
			return s, err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return s, err
		}
		s.program = cells.SharedProgram(hex.EncodeToString(h.Sum(nil)))
		if s.content, _, err = localAgent(slog.New(slog.DiscardHandler)); err != nil {
			return s, err
		}
		sum := sha256.Sum256(s.content)
		s.agent = cells.SharedAgent(hex.EncodeToString(sum[:]))
		return s, nil
	})}
}

// open returns the content that a name stands for.
func (p *programs) open(name string) (io.ReadCloser, error) {
	s, err := p.sums()
	switch {
	case err != nil:
		return nil, err
	case name == s.program:
		return os.Open(ownProgram)
	case name == s.agent:
		return io.NopCloser(bytes.NewReader(s.content)), nil
	}
	return nil, errors.New("it has no " + name)
}

// shared returns what checkpoints of this build share.
func (p *programs) shared() ([]tiered.Shared, error) {
	s, err := p.sums()
	if err != nil {
		return nil, err
	}
	var all []tiered.Shared
	for _, name := range []string{s.program, s.agent} {
		all = append(all, tiered.Shared{Name: name, Open: func() (io.ReadCloser, error) { return p.open(name) }})
	}
	return all, nil
}
