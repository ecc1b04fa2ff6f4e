// Package netlog stores the network log of a sandbox on disk. The cell writes the log
// while the daemon reads it, without coordination; the log outlives both.
//
// A log is a directory of segments: files of JSON lines, each named after the id of its
// first event. The oldest segments are removed when the log exceeds its size. Readers
// skip lines that a writer did not complete.
package netlog
