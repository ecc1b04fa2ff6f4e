// Package apply carries out, inside a sandbox, a merge that was planned outside.
// It is linked into the agent and has few dependencies.
//
// # The stream
//
// A merge is an ordinary tar stream in PAX format. Names are as gVisor writes
// them: "./etc/hosts", directories with a slash at the end; the root is "./".
// Entries are applied in their order:
//
//   - An entry with the PAX record COVE.remove=1 removes what is at its path, with
//     everything below it. Its type has no meaning. It is no error if there is
//     nothing at the path.
//   - A directory is made, or if there is one, gets the owner, mode and time.
//     The directory that an entry is in exists or comes before it.
//   - Any other entry replaces what is at its path, unless that is a directory.
//     The target of a hard link is an earlier file of the stream.
//   - An entry of the type [TypeSparse] is a regular file of the size in the PAX record
//     COVE.size. Its content has the pages of the file that are not zero, in order, each
//     after its offset as 8 bytes, the least significant first. The others are holes.
//   - The last entry has the PAX record COVE.commit=1 and the name "./". Without
//     it a stream is incomplete, and nothing is changed.
//
// Access and change times are not set, and neither are extended attributes.
package apply

// The PAX records of the stream. The value of the first two is "1", and that of the last a
// number of bytes.
const (
	RecordRemove = "COVE.remove"
	RecordCommit = "COVE.commit"
	RecordSize   = "COVE.size"
)

const (
	// TypeSparse is the type of a file with holes. Programs that do not know the type refuse
	// the stream.
	TypeSparse = 'H'
	// PageSize is the size of a page of such a file; the last one may be shorter.
	PageSize = 4096
)

// StagingPrefix is the prefix of the directory, in the root directory, in which a merge is
// prepared. Comparisons leave it out.
const StagingPrefix = ".cove-merge-"
