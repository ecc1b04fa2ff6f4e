// Package fleet measures a server's records and nodes when there are many: 50,000 sandboxes in
// a real PostgreSQL, on 200 simulated nodes. What is known of the nodes is in a directory, as
// with SQLite.
//
//	make bench-fleet
package fleet
