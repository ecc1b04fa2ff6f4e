// Package machine finds out what this machine lets Cove do.
package machine
