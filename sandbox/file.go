package sandbox

import (
	"io"
	"time"
)

// FileType is the kind of a file.
type FileType string

// The kinds of files.
const (
	TypeFile      FileType = "file"
	TypeDirectory FileType = "directory"
	TypeSymlink   FileType = "symlink"
	TypeOther     FileType = "other"
)

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	// Path is absolute and clean.
	Path string   `json:"path"`
	Name string   `json:"name"`
	Type FileType `json:"type"`
	Size int64    `json:"size"`
	// Mode is the permission bits in octal, such as "0644".
	Mode       string    `json:"mode"`
	ModifiedAt time.Time `json:"modified_at"`
	UID        uint32    `json:"uid"`
	GID        uint32    `json:"gid"`
	// Owner and Group are the names of UID and GID in the sandbox, or the numbers
	// where it has no names for them. Empty if its agent is older than these.
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
	// SymlinkTarget is what a symbolic link says, unresolved.
	SymlinkTarget string `json:"symlink_target,omitempty"`
	// LinkedFile is what a symbolic link leads to in the end. It is nil if that
	// does not exist, and for all that is no link.
	LinkedFile *LinkedFile `json:"linked_file,omitempty"`
}

// LinkedFile is the file at the end of a symbolic link, all links on the way
// resolved.
type LinkedFile struct {
	// Path is absolute and clean.
	Path string   `json:"path"`
	Type FileType `json:"type"`
	// Mode is the permission bits in octal, such as "0644".
	Mode string `json:"mode"`
}

// ReadFileRequest asks for a range of a file. Relative paths start at the
// sandbox's working directory, here and everywhere.
type ReadFileRequest struct {
	Path   string `json:"path" query:"path" doc:"Relative paths start at the sandbox's working directory."`
	Offset int64  `json:"offset,omitempty" query:"offset" doc:"In bytes."`
	// Limit 0 is to the end.
	Limit int64 `json:"limit,omitempty" query:"limit" doc:"In bytes; absent is to the end."`
}

// FileReader is an open file's content with its description. The caller
// closes it.
type FileReader struct {
	Info FileInfo
	io.ReadCloser
}

// WriteFileRequest says where and how to write a file. Unless Append is set,
// readers see the old content or the whole new content, never a part.
type WriteFileRequest struct {
	Path string `json:"path" query:"path" doc:"Relative paths start at the sandbox's working directory."`
	// Mode is permission bits in octal; empty keeps those of the file that is
	// replaced, or is "0644".
	Mode string `json:"mode,omitempty" query:"mode" doc:"Permission bits in octal."`
	// MakeParents makes missing directories.
	MakeParents bool `json:"make_parents,omitempty" query:"make_parents" doc:"Make directories that are missing."`
	Append      bool `json:"append,omitempty" query:"append" doc:"Write at the end of the file, if it is there."`
	// Exclusive fails with conflict when the file exists.
	Exclusive bool `json:"exclusive,omitempty" query:"exclusive" doc:"Fail when the file exists."`
	// Owner is a user name or uid[:gid]; empty is the sandbox's user.
	Owner string `json:"owner,omitempty" query:"owner" doc:"A user name or uid[:gid]."`
}

// EditFileRequest replaces text in a file at once. Unless ReplaceAll is set,
// OldText must occur exactly once.
type EditFileRequest struct {
	Path       string `json:"path"`
	OldText    string `json:"old_text"`
	NewText    string `json:"new_text"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
}

// EditFileResult says what an edit did.
type EditFileResult struct {
	File         FileInfo `json:"file"`
	Replacements int      `json:"replacements"`
}

// ListFilesRequest asks for the entries of a directory, sorted by name, a
// directory before what is in it.
type ListFilesRequest struct {
	Path string `json:"path" query:"path" doc:"Relative paths start at the sandbox's working directory."`
	// Depth 1 (and 0) is the directory's own entries, at most [MaxListDepth].
	Depth int `json:"depth,omitempty" query:"depth" doc:"1, which is the default, is the directory's own entries."`
	Page
}

// MakeDirRequest asks for a directory. Missing parents are made with it.
type MakeDirRequest struct {
	Path string `json:"path"`
	// Mode is permission bits in octal; empty is "0755".
	Mode string `json:"mode,omitempty"`
	// Exclusive fails with conflict when the directory exists.
	Exclusive bool `json:"exclusive,omitempty"`
	// Owner of what is made is a user name or uid[:gid]; empty is the sandbox's
	// user.
	Owner string `json:"owner,omitempty"`
}

// MakeSymlinkRequest asks for a symbolic link.
type MakeSymlinkRequest struct {
	// Path is where the link will be.
	Path string `json:"path"`
	// Target is what the link says, at most [MaxPathBytes]. It is kept as it is
	// and need not exist; a relative one starts at the link's directory.
	Target string `json:"target"`
	// MakeParents makes missing directories.
	MakeParents bool `json:"make_parents,omitempty"`
	// Overwrite replaces an existing file or link, not a directory.
	Overwrite bool `json:"overwrite,omitempty"`
	// Owner is a user name or uid[:gid]; empty is the sandbox's user.
	Owner string `json:"owner,omitempty"`
}

// MoveFileRequest renames a file or directory.
type MoveFileRequest struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Overwrite replaces an existing file.
	Overwrite bool `json:"overwrite,omitempty"`
}

// WatchRequest asks for changes below a directory, or of a file.
type WatchRequest struct {
	Path      string `json:"path" query:"path" doc:"Relative paths start at the sandbox's working directory."`
	Recursive bool   `json:"recursive,omitempty" query:"recursive" doc:"Also changes in directories below it."`
}

// WatchKind is what happened to a watched file.
type WatchKind string

// The kinds of watch events. Ready comes first: changes from then on are
// reported. Overflow says that events were lost.
const (
	WatchReady      WatchKind = "ready"
	WatchCreated    WatchKind = "created"
	WatchModified   WatchKind = "modified"
	WatchDeleted    WatchKind = "deleted"
	WatchRenamed    WatchKind = "renamed"
	WatchAttributes WatchKind = "attributes"
	WatchOverflow   WatchKind = "overflow"
)

// WatchEvent is one change.
type WatchEvent struct {
	Kind WatchKind `json:"kind"`
	Path string    `json:"path,omitempty"`
}
