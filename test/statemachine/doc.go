// Package statemachine takes random walks through the verbs of sandboxes, on real
// daemons and with real sandboxes: they are made, written to, paused, resumed,
// forked, kept, restored, compared, merged and killed in any order, while the
// daemon, cells, gVisor and the cells that wait ahead of need are killed in
// between and in the middle. As root the disk is full in some steps, and in some
// the machine loses its power, with all that is not on its disk. A model says
// after each step what every sandbox must hold, and which volumes, secrets and
// keys there are.
//
// COVE_WALK_STEPS is how many steps a walk has, if not 15, or 500 in "make soak".
// A failure
// prints the seed, which -rapid.seed takes.
package statemachine
