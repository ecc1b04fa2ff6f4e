// Package limits bounds what slow or numerous clients can make the daemon hold: a minimum
// rate for request bodies ([MinBodyRate]), a memory budget for the bodies of all requests
// ([MemoryBudget]), a limit on connections and on how long a client may leave its receive
// buffer full ([Listen]), and a rate limit on failed logins ([LoginLimiter]).
//
// It does not limit traffic that keeps moving, however long it lasts, nor idle
// connections such as event streams, tunnels and WebSockets.
//
// The package also contains what an upload needs, which may be answered before it is read
// completely ([Receive]), and the checks that every door applies to a request first: the
// JSON is unambiguous ([CheckJSON]), and a request with an idempotency key was not
// answered before ([Requests]).
package limits
