// Package kernel runs interpreters that keep their state. Each is a process that
// receives code in messages, so that a run starts no process. The programs that receive
// them inside the interpreters, the drivers, are in the directory drivers.
//
// A driver reads runs from descriptor 3 and writes results to descriptor 4, as frames:
// a length in four bytes, big-endian, and JSON. Code writes to descriptors 1 and 2 as
// it likes. Before the agent handles a frame, it reads both until they are empty, so
// that everything stays in order; after a frame with a rich output, the driver waits for
// a byte on descriptor 5.
//
// The code can do whatever its driver can. Messages are therefore bounded and checked,
// and a kernel that breaks the protocol is killed.
package kernel
