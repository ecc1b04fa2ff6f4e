// Package fleet measures a server's records and nodes when there are many: 50,000 sandboxes in
// a real PostgreSQL, on 200 simulated nodes.
//
//	make bench-fleet
package fleet
