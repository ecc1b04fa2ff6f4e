// Package agent is the program inside a sandbox. It runs commands, keeps their output,
// works on files, enforces limits on memory and processes, and is called over Connect
// (HTTP/1.1 or unencrypted HTTP/2) by any client that its listener admits; package
// agentv1 is the contract.
//
// In a sandbox it is PID 1: it then reaps orphans and enforces limits. As an ordinary
// process it does neither, and affects no process that it has not started.
//
// All requests are checked and bounded. The file system may be hostile and change at
// any moment.
package agent
