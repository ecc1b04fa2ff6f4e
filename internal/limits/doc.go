// Package limits bounds what clients of the daemon's doors can make it hold by
// being slow, or by being many: how slowly the body of a request may come
// ([Pace]), how much memory bodies have together ([Memory]), how long a
// connection may refuse to take what is sent to it, and how many connections
// there are ([Listen]), and how often a stranger may try to get in ([Tries]).
//
// What flows is left alone, however long it lasts, and so is what is open and
// has nothing to say: streams of events, tunnels, WebSockets.
//
// It also says what all doors ask of a request before it is worked on: JSON that
// can be read in one way only ([CheckJSON]), and whether the request was
// answered before ([Requests]).
package limits
