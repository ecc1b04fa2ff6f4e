// Package kernel runs interpreters that keep their state: a process each, to
// which code goes as messages, so that a run costs no process. The programs
// that do so inside the interpreters, the drivers, are in the directory
// drivers.
//
// A driver reads runs from descriptor 3 and writes what came of them to
// descriptor 4, as frames: a length in four bytes, big-endian, and JSON. Code
// writes to descriptors 1 and 2 as it likes. Before the agent passes on what a
// frame says, it reads both empty, so that all keeps its order; where a rich
// output is in the frame, a byte on descriptor 5 tells the driver to go on.
//
// The code can do what its driver can. So what comes is bounded and checked,
// and a kernel that breaks the rules is killed.
package kernel
