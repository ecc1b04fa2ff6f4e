package tiered

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// shared is [Config.Build] of a machine. The program of all checkpoints has a short name.
func (m *machine) shared() ([]Shared, error) {
	name := "program1"
	if !bytes.Equal(m.build, program) {
		sum := sha256.Sum256(m.build)
		name = "program" + hex.EncodeToString(sum[:])
	}
	return []Shared{{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(m.build)), nil }}}, nil
}

// stranger is an engine of another build: nobody here has its program.
type stranger struct{ *spreadEngine }

func (s stranger) Export(ctx context.Context, id string) (*engine.Export, error) {
	out, err := s.spreadEngine.Export(ctx, id)
	if err == nil {
		out.Files[1].ReadCloser = io.NopCloser(failing{errors.New("there is no such program")})
	}
	return out, err
}

// upgrade replaces the daemon with one of another build, whose nodes are of the one before.
func (m *machine) upgrade(build []byte) {
	m.t.Helper()
	m.stop()
	m.build = build
	m.other = true
	m.must(m.start())
}

// A server of the next build stores what nodes of the build before have kept, although none
// of it was stored before, and although sweeps have run since.
func TestBuildBefore(t *testing.T) {
	for name, test := range map[string]struct {
		before []byte
		want   engine.Place
	}{
		"stored":     {program, engine.PlaceStored},
		"not stored": {nil, engine.PlacePending},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				m := newMachine(t, b)
				m.roots.root = content("root", 1)
				m.spread = &spreadEngine{plainEngine: m.inner, standing: engine.StandingReady}
				m.build = test.before
				m.must(m.start())
				synctest.Wait()
				m.upgrade(content("next", 2))
				wait(3 * grace)
				m.add("ckp-one", "red", content("one", 1))
				wait(lastPause)
				wantPlace(t, m.e, "ckp-one", test.want)
				m.stop()
				if test.want != engine.PlaceStored {
					return
				}
				other := newMachine(t, b)
				other.must(other.start())
				other.wants("ckp-one", content("one", 1))
				other.stop()
			})
		})
	}
}

// The oldest builds are collected, in the order in which they ran last.
func TestOldBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		m := newMachine(t, b)
		m.build = program
		m.must(m.start())
		for n := range maxBuilds - 1 {
			m.upgrade(content(fmt.Sprint("build ", n), 1))
			synctest.Wait()
		}
		m.upgrade(program) // back to the first
		wait(3 * grace)
		if got := len(b.names("shared/")); got != maxBuilds {
			t.Fatalf("the bucket has %d programs", got)
		}
		m.upgrade(content("build of tomorrow", 1))
		wait(3 * grace)
		list, err := m.e.readBuilds(t.Context())
		if err != nil || len(list) != maxBuilds || !slices.Equal(list[1], []string{"program1"}) {
			t.Errorf("the list of builds is %v, %v", list, err)
		}
		objects := b.names("shared/")
		gone, err := m.e.vessel.sharedObject("program" + fmt.Sprintf("%x", sha256.Sum256(content("build 0", 1))))
		if err != nil || len(objects) != maxBuilds || slices.Contains(objects, gone) {
			t.Errorf("the bucket has %d programs, among them the oldest: %t", len(objects), slices.Contains(objects, gone))
		}
		m.stop()
	})
}

// What is damaged of the builds is replaced, and does not keep the rest from being collected.
func TestDamagedBuilds(t *testing.T) {
	for name, damage := range map[string]func(b *memoryBucket){
		"the list": func(b *memoryBucket) { b.objects[buildsObject] = stored{[]byte("nonsense"), time.Now()} },
		"a program": func(b *memoryBucket) {
			for _, name := range b.names("shared/") {
				b.objects[name] = stored{[]byte("nonsense"), time.Now()}
			}
		},
		"all": func(b *memoryBucket) {
			for _, name := range b.names("shared/") {
				delete(b.objects, name)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBucket()
				m := newMachine(t, b)
				m.build = content("build", 1)
				m.must(m.start())
				wait(3 * grace)
				b.mu.Lock()
				kept := len(b.objects)
				b.mu.Unlock()
				damage(b)
				m.add("ckp-one", "red", content("one", 1))
				synctest.Wait()
				m.must(m.e.RemoveCheckpoint(t.Context(), "ckp-one"))
				wait(3 * grace)
				if got := b.names("checkpoints/"); len(got) > 0 {
					t.Errorf("the bucket has %v", got)
				}
				m.restart()
				wait(3 * grace)
				if got := b.names(""); len(got) != kept {
					t.Errorf("the bucket has %d objects instead of %d: %v", len(got), kept, got)
				}
				m.stop()
			})
		})
	}
}

// A build is stored once the bucket works.
func TestBuildDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		b.breaks(errors.New("it is down"))
		m := newMachine(t, b)
		m.build = program
		m.must(m.start())
		wait(time.Minute)
		b.breaks(nil)
		wait(lastPause)
		if got := b.names("shared/"); len(got) != 1 {
			t.Errorf("the bucket has %v", got)
		}
		m.stop()
	})
}
