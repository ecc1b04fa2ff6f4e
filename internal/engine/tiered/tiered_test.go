package tiered

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/objects"
	"github.com/cove-sh/cove/sandbox"
)

// withMachine runs a test with a fake clock on a machine whose daemon runs.
func withMachine(t *testing.T, f func(t *testing.T, b *memoryBucket, m *machine)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket()
		m := newMachine(t, b)
		m.roots.root = content("root", 2)
		m.must(m.start())
		f(t, b, m)
		m.stop()
	})
}

func wantPlace(t *testing.T, e *Engine, id string, want engine.Place) {
	t.Helper()
	if got := e.Kept(id); got != want {
		t.Errorf("the place of %s is %q, want %q", id, got, want)
	}
}

// The main story: what one machine has stored, another one has.
func TestNewMachine(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		state := slices.Concat(content("state", 3), make([]byte, 2*chunkSize), []byte("end"))
		m.add("ckp-one", "red", state)
		m.add("gld-two", "", []byte("stays here"))
		synctest.Wait()
		wantPlace(t, m.e, "ckp-one", engine.PlaceStored)
		wantPlace(t, m.e, "gld-two", "")

		other := newMachine(t, b)
		other.must(other.start())
		defer other.stop()
		list, err := other.e.Checkpoints(t.Context())
		if err != nil || len(list) != 1 || list[0].ID != "ckp-one" || list[0].Owner != "red" {
			t.Fatalf("the other machine has %+v, %v", list, err)
		}
		wantPlace(t, other.e, "ckp-one", engine.PlaceRemote)
		other.wants("ckp-one", state)
		wantPlace(t, other.e, "ckp-one", engine.PlaceStored)
		if !bytes.Equal(other.roots.root, m.roots.root) {
			t.Error("the root was not fetched")
		}
		if _, err := other.read("ckp-none"); err == nil {
			t.Error("an unknown checkpoint can be used")
		}
	})
}

// Nothing in the bucket tells its owner what it is, and teams share nothing.
func TestBucketLearnsNothing(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		state := content("a secret", 2)
		m.add("ckp-red", "red-team", state)
		synctest.Wait()
		before := len(b.names("chunks/"))
		m.add("ckp-blue", "blue-team", state)
		synctest.Wait()
		both := len(b.names("chunks/"))
		if both == before {
			t.Error("the same state of another team shares its chunks")
		}
		m.add("ckp-red2", "red-team", state)
		synctest.Wait()
		if n := len(b.names("chunks/")) - both; n != 0 {
			t.Errorf("the same state of the same team made %d chunks, want none", n)
		}
		for name, o := range b.objects {
			for _, word := range []string{"a secret", "red-team", "blue-team", "aaaa", "program", "installation-1", "nowhere"} {
				if bytes.Contains(o.data, []byte(word)) || strings.Contains(name, word) && !strings.HasPrefix(name, "checkpoints/") {
					t.Errorf("%s tells %q", name, word)
				}
			}
		}
	})
}

// Whatever single object is changed, exchanged or lost: an error, and nothing half restored.
func TestDamage(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 2))
		m.add("ckp-two", "red", content("two", 2))
		synctest.Wait()
		names := b.names("")
		for _, name := range names {
			if name == clockObject || name == checkpointObject("ckp-two") {
				continue
			}
			for what, change := range map[string]func(o []byte) []byte{
				"lost":          func([]byte) []byte { return nil },
				"a bit":         func(o []byte) []byte { o[len(o)/2] ^= 1; return o },
				"cut off":       func(o []byte) []byte { return o[:len(o)-1] },
				"empty":         func([]byte) []byte { return []byte{} },
				"longer":        func(o []byte) []byte { return append(o, 0) },
				"much too long": func(o []byte) []byte { return append(o, make([]byte, maxSealedChunk)...) },
				"another":       func([]byte) []byte { return b.objects[checkpointObject("ckp-two")].data },
			} {
				damagedBucket := b.clone()
				if data := change(bytes.Clone(b.objects[name].data)); data == nil {
					delete(damagedBucket.objects, name)
				} else {
					damagedBucket.objects[name] = stored{data, time.Now()}
				}
				other := newMachine(t, damagedBucket)
				err := other.start()
				if name == holderObject && what != "lost" {
					if !errors.Is(err, errForeign) {
						t.Errorf("%s: %s: the daemon starts: %v", name, what, err)
					}
					continue
				}
				other.must(err)
				one, err1 := other.read("ckp-one")
				two, err2 := other.read("ckp-two")
				for id, err := range map[string]error{"ckp-one": err1, "ckp-two": err2} {
					_, _, ferr := other.inner.find(id)
					if (err == nil) != (ferr == nil) {
						t.Errorf("%s: %s: %s: %v, but the engine has it: %v", name, what, id, err, ferr)
					}
				}
				switch {
				case err1 == nil && !bytes.Equal(one, content("one", 2)) || err2 == nil && !bytes.Equal(two, content("two", 2)):
					t.Errorf("%s: %s: other content is restored", name, what)
				case err1 == nil && err2 == nil && name != holderObject:
					t.Errorf("%s: %s: nobody notices", name, what)
				case err1 != nil && sandbox.CodeOf(err1) != sandbox.CodeUnavailable && name != checkpointObject("ckp-one"):
					t.Errorf("%s: %s: the error is %v", name, what, err1)
				}
				other.stop()
			}
		}
	})
}

// Uploads wait for a bucket that cannot be reached, for as long as it takes, and a restart
// of the daemon does not lose them.
func TestOutage(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		refused := errors.New("connection refused")
		b.breaks(refused)
		m.add("ckp-one", "red", content("one", 2))
		wait(24 * time.Hour)
		wantPlace(t, m.e, "ckp-one", engine.PlacePending)
		if since, err := m.e.Health(); !errors.Is(err, refused) || time.Since(since) < 23*time.Hour {
			t.Errorf("since %v: %v", since, err)
		}
		if n, bytes := m.e.Waiting(); n != 1 || bytes != 2*chunkSize {
			t.Errorf("%d with %d bytes wait", n, bytes)
		}
		m.restart()
		wait(time.Hour)
		m.wants("ckp-one", content("one", 2)) // it is here
		b.breaks(nil)
		wait(lastPause + time.Minute)
		wantPlace(t, m.e, "ckp-one", engine.PlaceStored)
		if _, err := m.e.Health(); err != nil {
			t.Error(err)
		}
		if n, _ := m.e.Waiting(); n != 0 {
			t.Errorf("%d wait", n)
		}
	})
}

// A new machine that cannot reach the bucket says so, and works once it can.
func TestNewMachineDuringOutage(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		b.breaks(errors.New("connection refused"))
		other := newMachine(t, b)
		other.must(other.start())
		defer other.stop()
		if _, err := other.read("ckp-one"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("got %v", err)
		}
		b.breaks(nil)
		other.wants("ckp-one", content("one", 1)) // before it knows what the bucket has
		wait(time.Minute)
		if list, err := other.e.Checkpoints(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("the checkpoints are %v, %v", list, err)
		}
	})
}

// The disk keeps what was used last, and never loses what is not in the bucket.
func TestCache(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.cache = 5 * chunkSize
		m.restart()
		for _, id := range []string{"ckp-1", "ckp-2", "ckp-3"} {
			m.add(id, "red", content(id, 2))
			wait(time.Minute)
		}
		wantPlace(t, m.e, "ckp-1", engine.PlaceRemote)
		wantPlace(t, m.e, "ckp-2", engine.PlaceStored)
		m.wants("ckp-1", content("ckp-1", 2))
		wantPlace(t, m.e, "ckp-2", engine.PlaceRemote)
		wantPlace(t, m.e, "ckp-3", engine.PlaceStored)
		b.breaks(errors.New("connection refused"))
		for _, id := range []string{"ckp-4", "ckp-5", "ckp-6"} {
			m.add(id, "red", content(id, 2))
			wait(time.Minute)
		}
		for _, id := range []string{"ckp-4", "ckp-5", "ckp-6"} {
			m.wants(id, content(id, 2))
		}
		if list, err := m.e.Checkpoints(t.Context()); err != nil || len(list) != 6 {
			t.Errorf("the checkpoints are %v, %v", list, err)
		}
	})
}

// What is removed is gone from the bucket, except what others need.
func TestRemove(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		shared := content("shared", 2)
		m.add("ckp-one", "red", slices.Concat(shared, content("one", 1)))
		m.add("ckp-two", "red", slices.Concat(shared, content("two", 1)))
		synctest.Wait()
		all := len(b.names(""))
		m.must(m.e.RemoveCheckpoint(t.Context(), "ckp-one"))
		if list, err := m.e.Checkpoints(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("the checkpoints are %v, %v", list, err)
		}
		wait(3 * time.Hour)
		if n := len(b.names("")); n != all-2+1 { // its manifest and its chunk; there is a clock now
			t.Errorf("the bucket has %d objects, and had %d", n, all)
		}
		m.must(m.inner.RemoveCheckpoint(t.Context(), "ckp-two"))
		m.restart()
		m.wants("ckp-two", slices.Concat(shared, content("two", 1)))
		m.must(m.e.RemoveCheckpoint(t.Context(), "ckp-two"))
		wait(3 * time.Hour)
		if names := b.names(""); !slices.Equal(names, []string{clockObject, holderObject}) {
			t.Errorf("the bucket still has %v", names)
		}
		if left, err := filepath.Glob(filepath.Join(m.dir, "objects", "*", "*")); err != nil || len(left) > 0 {
			t.Errorf("the disk still has %v, %v", left, err)
		}
	})
}

// What no record names is set aside, also if only the bucket has it, and comes back.
func TestSetAside(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		m.must(m.inner.RemoveCheckpoint(t.Context(), "ckp-one"))
		m.restart()
		aside := filepath.Join(m.dir, "aside")
		m.must(m.e.SetAside(t.Context(), "ckp-one", aside))
		if list, err := m.e.Checkpoints(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("the checkpoints are %v, %v", list, err)
		}
		wait(time.Minute)
		if len(b.names("checkpoints/")) > 0 {
			t.Error("it is still in the bucket")
		}
		_, err := m.e.BringBack(t.Context(), "ckp-one", aside)
		m.must(err)
		wait(time.Minute)
		wantPlace(t, m.e, "ckp-one", engine.PlaceStored)
	})
}

// The bucket of another installation, or one whose key is lost, is not touched.
func TestForeign(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		before := len(b.names(""))
		other := newMachine(t, b)
		other.key = 7
		if err := other.start(); !errors.Is(err, errForeign) {
			t.Errorf("another key: %v", err)
		}
		if n := len(b.names("")); n != before {
			t.Errorf("the bucket has %d objects, and had %d", n, before)
		}
	})
}

// A daemon that was cut off and replaced removes nothing any more.
func TestReplaced(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		other := newMachine(t, b)
		other.must(other.start())
		chunks := b.names("chunks/")
		// As if other were about to store its manifest.
		m.must(b.Delete(t.Context(), []string{checkpointObject("ckp-one")}))
		wait(grace - time.Minute)
		other.stop()
		wait(2 * time.Minute)
		if err := m.e.sweep(t.Context()); !errors.Is(err, errReplaced) {
			t.Errorf("got %v", err)
		}
		if got := b.names("chunks/"); !slices.Equal(got, chunks) {
			t.Errorf("%d chunks are left of %d", len(got), len(chunks))
		}
	})
}

// A bucket that loses everything gets what is on the disk again.
func TestBucketVanishes(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		m.add("ckp-one", "red", content("one", 1))
		synctest.Wait()
		clear(b.objects)
		m.restart()
		synctest.Wait()
		wantPlace(t, m.e, "ckp-one", engine.PlaceStored)
		other := newMachine(t, b)
		other.must(other.start())
		defer other.stop()
		other.wants("ckp-one", content("one", 1))
	})
}

// What is gone from the bucket is lost, unless another machine has used the bucket meanwhile:
// that one may have removed it.
func TestLostIsLogged(t *testing.T) {
	for name, other := range map[string]bool{"alone": false, "another machine": true} {
		t.Run(name, func(t *testing.T) {
			withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
				m.cache = 1
				m.restart()
				m.add("ckp-one", "red", content("one", 1))
				wait(time.Minute)
				wantPlace(t, m.e, "ckp-one", engine.PlaceRemote)
				m.stop()
				if other {
					next := newMachine(t, b)
					next.must(next.start())
					next.must(next.e.RemoveCheckpoint(t.Context(), "ckp-one"))
					wait(time.Minute)
					next.stop()
				} else {
					m.must(b.Delete(t.Context(), []string{checkpointObject("ckp-one")}))
				}
				m.log.Reset()
				m.must(m.start())
				if got := strings.Contains(m.log.String(), "has lost a checkpoint"); got == other {
					t.Errorf("the log has %q", m.log.String())
				}
				wantPlace(t, m.e, "ckp-one", "")
			})
		})
	}
}

// A checkpoint that is removed while it is uploaded leaves nothing.
func TestRemoveDuringUpload(t *testing.T) {
	withMachine(t, func(t *testing.T, b *memoryBucket, m *machine) {
		b.breaks(objects.ErrNoBucket)
		m.add("ckp-one", "red", content("one", 3))
		synctest.Wait()
		m.must(m.e.RemoveCheckpoint(t.Context(), "ckp-one"))
		b.breaks(nil)
		wait(3 * time.Hour)
		if names := b.names("chunks/"); len(names) > 0 {
			t.Errorf("the bucket has %v", names)
		}
	})
}
