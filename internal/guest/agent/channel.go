package agent

import "context"

// notify puts a value into a channel that holds one, unless it holds one already.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// closed reports whether a channel that is never sent to is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// await waits until done is closed and returns nil, or until ctx ends and returns
// its error.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		if closed(done) {
			return nil
		}
		return ctx.Err()
	}
}
