// Package statemachine takes random walks through the verbs of sandboxes, on real daemons
// with real sandboxes. It makes sandboxes, writes to them, pauses, resumes, forks,
// snapshots, restores, compares, merges and kills them in any order, while it kills the
// daemon, cells, gVisor and standby cells between steps and in the middle of them. As root,
// some steps fill the disk, and in some the machine loses its power, with everything that
// is not on its disk. After each step, a model says what every sandbox must hold, and which
// volumes, secrets and keys exist.
//
// COVE_WALK_STEPS is the number of steps of a walk; the default is 15, or 500 in "make
// soak". A failure prints the seed, for -rapid.seed.
package statemachine
