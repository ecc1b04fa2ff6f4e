package server

import "context"

// Hold makes a state directory if it is missing, for its owner only, and keeps
// daemons from it until release is called. It fails with conflict if one runs
// there, also one that was started on demand.
func Hold(ctx context.Context, dir string) (release func() error, err error) {
	if err := PrepareStateDir(dir); err != nil {
		return nil, err
	}
	return lockState(ctx, dir, 0, true)
}
