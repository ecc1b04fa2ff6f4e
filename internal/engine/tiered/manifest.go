package tiered

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/lazyregexp"
)

// Bounds of what is read from a bucket.
const (
	maxSealedChunk    = maxChunk + maxChunk/8 + 1024 // compression can only add little
	maxManifest       = 256 << 20
	maxSealedManifest = 64 << 20
	maxFiles          = 256
	maxFileSize       = 1 << 42
)

// manifestVersion is the version of the format of everything in the bucket.
const manifestVersion = 1

// manifest lists the chunks of a checkpoint, or of something that checkpoints share. It is
// stored last.
type manifest struct {
	Version int `json:"version"`
	// ID is the checkpoint's, or the name of what is shared.
	ID string `json:"id"`
	// Checkpoint and Description are nil for what is shared.
	Checkpoint  *engine.Checkpoint `json:"checkpoint,omitempty"`
	Description []byte             `json:"description,omitempty"`
	Files       []file             `json:"files"`
	// Root is the name under which the root of the checkpoint is shared, or empty.
	Root string `json:"root,omitempty"`
}

// file is a file in chunks.
type file struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// Shared is the name under which the file is shared; then it has no chunks here.
	Shared string `json:"shared,omitempty"`
	// Chunks lists the chunks one after another; see [chunk].
	Chunks []byte `json:"chunks,omitempty"`
}

// validID matches ids of checkpoints, validShared the names of what is shared.
var (
	validID     = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,80}$`)
	validShared = lazyregexp.New(`^[a-z0-9-]{1,100}$`)
	validName   = lazyregexp.New(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}$`)
)

// parseManifest reads a manifest, which is not trusted.
func parseManifest(data []byte, id string) (*manifest, error) {
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read a manifest: %w", err)
	}
	switch {
	case m.Version != manifestVersion:
		return nil, fmt.Errorf("the manifest has version %d, this program knows %d", m.Version, manifestVersion)
	case m.ID != id:
		return nil, fmt.Errorf("it is the manifest of %.80q", m.ID)
	case m.Checkpoint != nil && m.Checkpoint.ID != id:
		return nil, fmt.Errorf("the manifest is of checkpoint %.80q", m.Checkpoint.ID)
	case m.Root != "" && !validShared.MatchString(m.Root):
		return nil, fmt.Errorf("the manifest names the root %.80q", m.Root)
	case len(m.Files) > maxFiles:
		return nil, fmt.Errorf("the manifest has %d files", len(m.Files))
	}
	names := map[string]bool{}
	for i := range m.Files {
		if err := m.Files[i].check(); err != nil {
			return nil, err
		}
		if names[m.Files[i].Name] {
			return nil, fmt.Errorf("the manifest has %q twice", m.Files[i].Name)
		}
		names[m.Files[i].Name] = true
	}
	return &m, nil
}

func (f *file) check() error {
	switch {
	case !validName.MatchString(f.Name):
		return fmt.Errorf("the manifest names the file %.80q", f.Name)
	case f.Size < 0 || f.Size > maxFileSize:
		return fmt.Errorf("the manifest has a file of %d bytes", f.Size)
	case f.Shared != "" && (!validShared.MatchString(f.Shared) || len(f.Chunks) > 0):
		return fmt.Errorf("the manifest names the shared file %.80q", f.Shared)
	case f.Shared == "" && !f.whole():
		return fmt.Errorf("the manifest has other chunks for %q than its size needs", f.Name)
	}
	return nil
}

// whole reports whether the list of chunks is well-formed and as long as the file.
func (f *file) whole() bool {
	var end int64
	for list := f.Chunks; len(list) > 0; list = list[entrySize:] {
		if len(list) < entrySize {
			return false
		}
		c := chunkAt(list)
		if c.size <= 0 || c.size > maxChunk {
			return false
		}
		end += int64(c.size)
	}
	return end == f.Size
}

// chunk is an entry of a list of chunks: a name, and a size in four bytes. Zeros are the
// name of a chunk of zeros, which is not stored.
type chunk struct {
	name sum
	size int
}

const entrySize = sumSize + 4

func (c *chunk) append(list []byte) []byte {
	list = append(list, c.name[:]...)
	return binary.BigEndian.AppendUint32(list, uint32(c.size)) //nolint:gosec // at most maxChunk
}

// chunkAt returns the first entry of a list.
func chunkAt(list []byte) chunk {
	return chunk{sum(list[:sumSize]), int(binary.BigEndian.Uint32(list[sumSize:entrySize]))}
}

// chunks calls each for the chunks of a checked file that are stored.
func (f *file) chunks(each func(at int64, size int, name sum) error) error {
	var at int64
	for list := f.Chunks; len(list) > 0; list = list[entrySize:] {
		c := chunkAt(list)
		if c.name != (sum{}) {
			if err := each(at, c.size, c.name); err != nil {
				return err
			}
		}
		at += int64(c.size)
	}
	return nil
}

// file returns a file by its name, or nil.
func (m *manifest) file(name string) *file {
	for i := range m.Files {
		if m.Files[i].Name == name {
			return &m.Files[i]
		}
	}
	return nil
}

// press compresses and decompresses, for many goroutines at the same time.
type press struct {
	in  *zstd.Encoder
	out *zstd.Decoder
}

func newPress() (*press, error) {
	// What was decompressed is compared with a keyed hash: zstd's own checksum adds nothing.
	in, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(maxChunk), zstd.WithLowerEncoderMem(true), zstd.WithEncoderConcurrency(4))
	if err != nil {
		return nil, err
	}
	out, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxManifest), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(4))
	return &press{in, out}, err
}

func (p *press) pack(plain []byte) []byte { return p.in.EncodeAll(plain, nil) }

// unsized is the most that a frame holds which does not say how much it holds. The encoder
// says so from 256 bytes on; RFC 8878, section 3.1.1.1.1, lets it leave out smaller sizes.
const unsized = 255

// unpack decompresses at most limit bytes.
func (p *press) unpack(packed []byte, limit int) ([]byte, error) {
	// The frame says how much it holds: no more memory is used than that, nor than allowed.
	var h zstd.Header
	if err := h.Decode(packed); err != nil {
		return nil, err
	}
	size := uint64(unsized)
	if h.HasFCS {
		size = h.FrameContentSize
	}
	if size < uint64(limit) { //nolint:gosec // positive
		limit = int(size) //nolint:gosec // smaller than an int
	}
	return p.out.DecodeAll(packed, make([]byte, 0, limit))
}
