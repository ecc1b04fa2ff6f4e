//go:build tools

// Package runc names the program that tests build.
package runc

import _ "github.com/opencontainers/runc"
