package layer

import (
	"crypto/sha256"
	"io/fs"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Kind is what a path of a layer is.
type Kind uint8

// The kinds. A whiteout says that the template's file of this path is removed.
const (
	KindFile Kind = iota + 1
	KindDirectory
	KindSymlink
	KindFIFO
	KindCharDevice
	KindBlockDevice
	KindSocket // in templates only: gVisor leaves sockets out of a layer
	KindWhiteout
)

// What stands for removed files in a tar stream: in a layer of an image (see the
// image specification's changesets), and as an overlay has it.
const (
	// Whiteout is the beginning of a name whose rest is removed.
	Whiteout = ".wh."
	// Opaque is the name of an entry beside which nothing of lower layers shows.
	Opaque = ".wh..wh..opq"
	// OverlayOpaque is a record of a directory; "y" means the same.
	OverlayOpaque = "SCHILY.xattr.trusted.overlay.opaque"
)

// FileType is the kind in the words of the domain.
func (k Kind) FileType() sandbox.FileType {
	switch k {
	case KindFile:
		return sandbox.TypeFile
	case KindDirectory:
		return sandbox.TypeDirectory
	case KindSymlink:
		return sandbox.TypeSymlink
	}
	return sandbox.TypeOther
}

// Hash is the SHA-256 digest of a file's content.
type Hash [sha256.Size]byte

// Entry is what a path is. Paths of a layer that are hard links to one file
// share one Entry. An Entry is not changed after it was read.
type Entry struct {
	Kind Kind
	// Opaque says of a directory that nothing of the template's directory of
	// the same path shows through it.
	Opaque bool
	// Mode is the permission bits with setuid, setgid and sticky: 07777.
	Mode     uint32
	UID, GID uint32
	// Major and Minor are a device's number.
	Major, Minor uint32
	// Size is bytes of a regular file, and zero for others.
	Size int64
	// Target is what a symbolic link says, unresolved.
	Target string
	// ModTime has the precision of gVisor's stream, which is seconds.
	ModTime time.Time

	// hash is of a regular file; hashed says that it is known, which it is
	// from the beginning for files of a layer.
	hash   Hash
	hashed bool
	// content is kept on demand; see ReadOptions.
	content []byte
	kept    bool
}

// node is a path of a layer with what is below it.
type node struct {
	entry    *Entry
	children map[string]*node
}

// Layer is the index of what a sandbox has changed. It is immutable and safe for
// concurrent use.
type Layer struct {
	root    *node
	entries int
	bytes   int64
}

// Entries is the number of paths in the layer.
func (l *Layer) Entries() int { return l.entries }

// ContentBytes is the size of all regular files in the layer together, each
// counted once.
func (l *Layer) ContentBytes() int64 { return l.bytes }

// Entry returns what the layer holds at an absolute clean path; it is nil if it
// does not mention the path. Use a [View] to see what a sandbox sees.
func (l *Layer) Entry(path string) *Entry {
	if n := l.find(path); n != nil {
		return n.entry
	}
	return nil
}

// Content returns the content of a file that was kept as [ReadOptions] said.
func (l *Layer) Content(path string) ([]byte, bool) {
	e := l.Entry(path)
	if e == nil || !e.kept {
		return nil, false
	}
	return e.content, true
}

func (l *Layer) find(path string) *node {
	n := l.root
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if name == "" || n == nil {
			break
		}
		n = n.children[name]
	}
	return n
}

// kindOf returns the kind for a mode of package fs.
func kindOf(m fs.FileMode) Kind {
	switch m.Type() {
	case 0:
		return KindFile
	case fs.ModeDir:
		return KindDirectory
	case fs.ModeSymlink:
		return KindSymlink
	case fs.ModeNamedPipe:
		return KindFIFO
	case fs.ModeDevice | fs.ModeCharDevice:
		return KindCharDevice
	case fs.ModeDevice:
		return KindBlockDevice
	}
	return KindSocket
}
