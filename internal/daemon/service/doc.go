// Package service implements [sandbox.Service]: each verb of Cove once, with
// its validation, authorisation, quotas and audit, over the contracts of an
// engine, a store and a provider of templates.
//
// If the engine and the store disagree about a sandbox, the engine is right. A
// change of state is recorded before it is promised, so that [Service.Start] can
// repair whatever a crash left between two steps.
package service
