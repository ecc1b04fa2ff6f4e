package layer

import (
	"crypto/sha256"
	"io/fs"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Kind is the type of a file in a layer.
type Kind uint8

// The kinds. A whiteout removes the template's file of the same path.
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

// Markers of removed files in a tar stream: in a layer of an image (see the image
// specification's changesets), and in an overlay.
const (
	// Whiteout is the prefix of an entry that removes the rest of its name.
	Whiteout = ".wh."
	// Opaque is the name of an entry that hides its directory's content in lower layers.
	Opaque = ".wh..wh..opq"
	// OverlayOpaque is a PAX record of a directory; the value "y" marks it as opaque.
	OverlayOpaque = "SCHILY.xattr.trusted.overlay.opaque"
)

// FileType returns the kind as a [sandbox.FileType].
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

// Hash identifies the content of a file of a known size: the SHA-256 digest of its pages
// that are not zero, with their offsets, so that holes cost little.
type Hash [sha256.Size]byte

// Entry describes the file at a path. Hard links in a layer share one Entry. An Entry is
// not changed after it was read.
type Entry struct {
	Kind Kind
	// Opaque is set if a directory hides the template's directory of the same path.
	Opaque bool
	// Mode has the permission, setuid, setgid and sticky bits: 07777.
	Mode     uint32
	UID, GID uint32
	// Major and Minor are a device's number.
	Major, Minor uint32
	// Size is the size of a regular file in bytes, and 0 for others.
	Size int64
	// Target is the unresolved target of a symbolic link.
	Target string
	// ModTime has the precision of gVisor's stream: seconds.
	ModTime time.Time

	// hash is the hash of a regular file if hashed is set, as it is for all files of a
	// layer.
	hash   Hash
	hashed bool
	// sparse is set if a file came with holes, and pageBytes is the size of its pages then;
	// see [apply.TypeSparse].
	sparse    bool
	pageBytes int64
	// content is kept on demand, if kept is set; see ReadOptions.
	content []byte
	kept    bool
}

// node is a path of a layer with everything below it.
type node struct {
	entry    *Entry
	children map[string]*node
}

// Layer is the index of a sandbox's changes. It is immutable and safe for concurrent
// use.
type Layer struct {
	root    *node
	entries int   // number of paths
	bytes   int64 // content of all regular files; hard links are counted once
}

// Entry returns the layer's entry for an absolute clean path, or nil if it has none. Use a
// [View] for what a sandbox sees.
func (l *Layer) Entry(path string) *Entry {
	if n := l.find(path); n != nil {
		return n.entry
	}
	return nil
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

// kindOf returns the kind for a file mode.
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
