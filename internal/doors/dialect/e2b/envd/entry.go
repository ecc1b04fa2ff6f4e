package envd

import (
	"os"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/filesystempb"
	"github.com/cove-sh/cove/sandbox"
)

var fileTypes = map[sandbox.FileType]pb.FileType{
	sandbox.TypeFile:      pb.FileType_FILE_TYPE_FILE,
	sandbox.TypeDirectory: pb.FileType_FILE_TYPE_DIRECTORY,
}

// entryOf describes a file. A symbolic link has the kind and mode of its target; a
// dangling one has no kind, and clients omit it from listings.
func entryOf(f *sandbox.FileInfo) *pb.EntryInfo {
	e := &pb.EntryInfo{
		Name: f.Name, Path: f.Path, Size: f.Size, Owner: f.Owner, Group: f.Group,
		ModifiedTime: timestamppb.New(f.ModifiedAt),
	}
	if e.Owner == "" { // of an older agent, which does not send names
		e.Owner, e.Group = strconv.FormatUint(uint64(f.UID), 10), strconv.FormatUint(uint64(f.GID), 10)
	}
	kind, mode := f.Type, f.Mode
	if f.Type == sandbox.TypeSymlink {
		target := f.Path
		if l := f.LinkedFile; l != nil {
			kind, mode, target = l.Type, l.Mode, l.Path
		}
		e.SymlinkTarget = &target
	}
	e.Type = fileTypes[kind]
	bits := parseMode(mode)
	e.Mode = uint32(bits.Perm())
	e.Permissions = permissions(f.Type, bits)
	return e
}

// parseMode reads permission bits in octal.
func parseMode(text string) os.FileMode {
	n, err := strconv.ParseUint(text, 8, 12)
	if err != nil {
		return 0
	}
	mode := os.FileMode(n & 0o777)
	for bit, flag := range map[uint64]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if n&bit != 0 {
			mode |= flag
		}
	}
	return mode
}

// permissions formats permission bits as "-rw-r--r--"; links have all of them.
func permissions(kind sandbox.FileType, mode os.FileMode) string {
	switch kind {
	case sandbox.TypeSymlink:
		return (os.ModeSymlink | 0o777).String()
	case sandbox.TypeDirectory:
		mode |= os.ModeDir
	}
	return mode.String()
}
