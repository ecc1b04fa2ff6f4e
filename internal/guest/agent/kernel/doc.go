// Package kernel runs interpreters that keep their state. Each is a process that receives
// code in messages, so a run does not start a process. The directory drivers has the
// drivers, the programs inside the interpreters that receive the messages.
//
// A driver reads runs from descriptor 3 and writes results to descriptor 4, as frames: a
// length in four bytes, big-endian, and JSON. Code may write anything to descriptors 1 and
// 2. Before the agent handles a frame, it reads both until they are empty, so that the
// order is kept; after a frame with a rich output, the driver waits for a byte on
// descriptor 5.
//
// The code can do whatever its driver can. Messages are therefore bounded and checked, and
// a kernel that breaks the protocol is killed.
package kernel
