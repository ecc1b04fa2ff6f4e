// Package agent is the program inside a sandbox. It runs commands, keeps their
// output, works on files, watches over memory and processes, and is driven over Connect
// (HTTP/1.1 or unencrypted HTTP/2) by whoever its listener lets in; package
// agentv1 is the contract.
//
// In a sandbox it is PID 1: it then reaps every orphan, and enforces limits
// inside. As an ordinary process it does neither and touches no process but
// those it started.
//
// Everything it is asked comes from outside its process and is bounded; what it
// finds in the file system may be hostile and change at any moment.
package agent
