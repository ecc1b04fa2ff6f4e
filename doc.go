// Package cove is the root of the module: it holds no code, only the tests
// that keep the whole tree in shape. The program is in cmd/cove.
package cove
