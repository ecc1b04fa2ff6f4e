// Package sandbox is Cove's domain: what a sandbox is, what can be done with
// it, and how things go wrong. It imports only the standard library, and all
// other packages depend on it.
//
// [Service] is the whole of Cove as a caller sees it. The daemon's
// implementation applies authorisation and quotas; package client implements
// the same interface over HTTP. Every door (MCP, REST, CLI) is written against
// it and cannot tell the two apart.
//
// JSON tags in this package are the public wire format of REST, of the CLI's
// --json and of structured MCP results. Units are part of the field names.
package sandbox
