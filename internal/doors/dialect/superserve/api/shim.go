package api

import _ "embed"

// Shim is a program that Node.js loads before a program that uses the SDK ("node
// --import"). It leads requests for the host names that the SDK has built in to the server
// that SUPERSERVE_BASE_URL names, and no others. If that names none of Cove's, it does
// nothing.
//
//go:embed shim.mjs
var Shim string
