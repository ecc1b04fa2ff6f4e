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
	// Owner and Group are the names of UID and GID in the sandbox, or the numbers if
	// it has no names for them. They are empty if the sandbox's agent is too old to
	// report them.
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
	// SymlinkTarget is the target of a symbolic link, unresolved.
	SymlinkTarget string `json:"symlink_target,omitempty"`
	// LinkedFile is the file that a symbolic link finally leads to. It is nil if that
	// file does not exist, and for everything that is not a link.
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
	// Limit is in bytes; 0 reads to the end.
	Limit int64 `json:"limit,omitempty" query:"limit" doc:"In bytes; absent reads to the end."`
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
	// Mode is permission bits in octal. Empty keeps the mode of a file that is
	// replaced, and is "0644" for a new file.
	Mode string `json:"mode,omitempty" query:"mode" doc:"Permission bits in octal."`
	// MakeParents makes missing directories.
	MakeParents bool `json:"make_parents,omitempty" query:"make_parents" doc:"Make missing directories."`
	Append      bool `json:"append,omitempty" query:"append" doc:"Write at the end of the file, if it exists."`
	// Exclusive fails with conflict when the file exists.
	Exclusive bool `json:"exclusive,omitempty" query:"exclusive" doc:"Fail when the file exists."`
	// Owner is a user name or uid[:gid]; empty is the sandbox's user.
	Owner string `json:"owner,omitempty" query:"owner" doc:"A user name or uid[:gid]."`
}

// EditFileRequest replaces text in a file atomically. Unless ReplaceAll is set,
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

// ListFilesRequest asks for the entries of a directory, sorted by name; each
// directory comes before its contents.
type ListFilesRequest struct {
	Path string `json:"path" query:"path" doc:"Relative paths start at the sandbox's working directory."`
	// Depth is how many levels are listed, at most [MaxListDepth]; 0 is 1, the
	// directory's own entries.
	Depth int `json:"depth,omitempty" query:"depth" doc:"1, which is the default, is the directory's own entries."`
	Page
}

// MakeDirRequest asks for a directory. Missing parents are made too.
type MakeDirRequest struct {
	Path string `json:"path"`
	// Mode is permission bits in octal; empty is "0755".
	Mode string `json:"mode,omitempty"`
	// Exclusive fails with conflict when the directory exists.
	Exclusive bool `json:"exclusive,omitempty"`
	// Owner is who gets all that is made, a user name or uid[:gid]; empty is the
	// sandbox's user.
	Owner string `json:"owner,omitempty"`
}

// MakeSymlinkRequest asks for a symbolic link.
type MakeSymlinkRequest struct {
	// Path is the path of the link itself.
	Path string `json:"path"`
	// Target is where the link points, at most [MaxPathBytes]. It is stored unchanged
	// and need not exist; a relative target starts at the link's directory.
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

// WatchRequest asks for changes in a directory, or of a file.
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
