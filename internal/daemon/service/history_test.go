package service

import "github.com/cove-sh/cove/sandbox"

// steps lists the history of a sandbox, newest first.
func (w *harness) steps(ref string) []sandbox.Snapshot {
	w.t.Helper()
	list, err := w.ListSnapshots(asRed(w.t), sandbox.ListSnapshotsRequest{Sandbox: ref, Automatic: true})
	must(w.t, err)
	var steps []sandbox.Snapshot
	for _, s := range list.Items {
		if s.Automatic {
			steps = append(steps, s)
		}
	}
	return steps
}
