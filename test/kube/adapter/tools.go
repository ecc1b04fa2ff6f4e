//go:build tools

// Package adapter names the adapter of metrics that tests build.
package adapter

import _ "sigs.k8s.io/prometheus-adapter/cmd/adapter"
