// Package limits bounds what slow or numerous clients can make the daemon hold:
// a minimum rate for request bodies ([MinBodyRate]), a memory budget for the
// bodies of all requests ([MemoryBudget]), a limit on connections and on how long
// a client may leave its receive buffer full ([Listen]), and a rate limit on failed
// logins ([LoginLimiter]).
//
// Traffic that keeps moving is not limited, however long it lasts. Neither are idle
// connections: streams of events, tunnels, WebSockets.
//
// What an upload needs is here too: it may be answered before it is read ([Receive]).
//
// The package also holds the checks that every door applies to a request first:
// the JSON is unambiguous ([CheckJSON]), and a request with an idempotency key was
// not answered before ([Requests]).
package limits
