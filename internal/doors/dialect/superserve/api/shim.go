package api

import _ "embed"

// Shim is a program that Node.js loads before a program that uses the SDK ("node
// --import"). It redirects requests for the host names built into the SDK, and no others,
// to the server that SUPERSERVE_BASE_URL names. If that is not a Cove server, it does
// nothing.
//
//go:embed shim.mjs
var Shim string
