// Package walk takes random walks through the verbs of sandboxes, on real
// daemons and with real sandboxes: they are made, written to, paused, resumed,
// forked, kept, restored, compared, merged and killed in any order, while the
// daemon, cells and gVisor are killed in between and in the middle. A model
// says after each step what every sandbox must hold.
//
// COVE_WALK_STEPS is how many steps a walk has, if not the default. A failure
// prints the seed, which -rapid.seed takes.
package walk
