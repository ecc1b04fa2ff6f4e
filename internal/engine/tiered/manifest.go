package tiered

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/klauspost/compress/zstd"

	"github.com/cove-sh/cove/internal/engine"
)

// chunkSize is the size of a chunk, but for the last one of a file. Chunks begin at
// multiples of it: memory and files of a sandbox consist of pages, and a page that has not
// changed is where it was, so chunks of a fixed size are found again without a search for
// boundaries. Smaller ones would share more and need more requests.
const chunkSize = 1 << 20

// Bounds of what is read from a bucket.
const (
	maxSealedChunk    = chunkSize + chunkSize/8 + 1024 // compression can only add little
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
	// Chunks are the names of the chunks one after another. Zeros stand for a chunk of
	// zeros, which is not stored.
	Chunks []byte `json:"chunks,omitempty"`
}

// validID matches ids of checkpoints, validShared the names of what is shared.
var (
	validID     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,80}$`)
	validShared = regexp.MustCompile(`^[a-z0-9-]{1,100}$`)
	validName   = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}$`)
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
	case f.Shared == "" && int64(len(f.Chunks)) != (f.Size+chunkSize-1)/chunkSize*sumSize:
		return fmt.Errorf("the manifest has the wrong number of chunks for %q", f.Name)
	}
	return nil
}

// chunks calls each for the chunks of a file that are stored.
func (f *file) chunks(each func(at int64, size int, name sum) error) error {
	for i := 0; i+sumSize <= len(f.Chunks); i += sumSize {
		at := int64(i/sumSize) * chunkSize
		name := sum(f.Chunks[i : i+sumSize])
		if name == (sum{}) {
			continue
		}
		if err := each(at, int(min(chunkSize, f.Size-at)), name); err != nil {
			return err
		}
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
		zstd.WithWindowSize(chunkSize), zstd.WithLowerEncoderMem(true), zstd.WithEncoderConcurrency(4))
	if err != nil {
		return nil, err
	}
	out, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxManifest), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(4))
	return &press{in, out}, err
}

func (p *press) pack(plain []byte) []byte { return p.in.EncodeAll(plain, nil) }

// unpack decompresses at most limit bytes.
func (p *press) unpack(packed []byte, limit int) ([]byte, error) {
	// The frame says how much it holds: no more memory is used than that, nor than allowed.
	var h zstd.Header
	if err := h.Decode(packed); err != nil {
		return nil, err
	}
	if h.HasFCS && h.FrameContentSize < uint64(limit) { //nolint:gosec // positive
		limit = int(h.FrameContentSize) //nolint:gosec // smaller than an int
	}
	return p.out.DecodeAll(packed, make([]byte, 0, limit))
}
