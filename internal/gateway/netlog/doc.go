// Package netlog keeps the network log of a sandbox on disk: the cell writes
// it, the daemon reads it, both at the same time and without knowing of each
// other. It outlives both.
//
// A log is a directory of segments, files of JSON lines, each named for the
// id of its first event. The oldest go when all together are over the log's
// size. A line that was torn by the end of its writer is skipped by readers.
package netlog
