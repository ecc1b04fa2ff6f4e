// Package intake bounds what clients of the daemon's doors can make it hold by
// being slow, or by being many: how slowly the body of a request may come
// ([Pace]), how much memory bodies have together ([Memory]), how long a
// connection may refuse to take what is sent to it, and how many connections
// there are ([Listen]), and how often a stranger may try to get in ([Tries]).
//
// What flows is left alone, however long it lasts, and so is what is open and
// has nothing to say: streams of events, tunnels, WebSockets.
package intake
